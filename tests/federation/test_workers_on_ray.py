"""Workers on real Ray: two nodes of a cluster in this machine, one of which dies."""

import pytest
import torch

from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import parse
from manifed.federation.rounds import free, run_rounds
from manifed.runs.cohort import cohort_transport
from tests.federation.test_workers import FRAMES, PRIVATE, PROJECTED, RSGD, SOME, table

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    import ray
    from ray.cluster_utils import Cluster

    here = Cluster()
    here.add_node(num_cpus=4, include_dashboard=False)
    ray.init(address=here.address, log_to_driver=False, logging_level="error")
    yield here
    ray.shutdown()
    here.shutdown()


def played(given, charge=free):
    config = parse(given)
    plan = plan_of(config)
    start = plan.server_update.initial(initial_point(config))
    with cohort_transport(config) as transport:
        reports = list(run_rounds(plan, start, transport, charge, num_rounds=3))
        return reports, transport


STEPS = {**RSGD, "step_size": 1e-3}


@pytest.mark.usefixtures("cluster")
def test_the_bits_are_those_of_one_process():
    case = (FRAMES, STEPS, PRIVATE, SOME)
    expected, _ = played(table(*case))
    for count in (1, 2, 4):
        found, _ = played(table(*case, workers=count, address="auto"))
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.equal(mine.state["x"], theirs.state["x"])
            assert mine.participants == theirs.participants


def test_a_node_that_dies_in_mid_run_fails_its_attempt_and_its_worker_starts_elsewhere(cluster):
    second = cluster.add_node(num_cpus=4)
    charged, kinds = [], []

    def charge(server_round, attempt, partitions):
        charged.append((server_round, attempt))
        if charged[-1] == (2, 0):
            cluster.remove_node(second, allow_graceful=False)

    retry = {"replies": {"on_failure": "retry", "timeout": 120.0}}
    given = table(FRAMES, PROJECTED, None, retry, workers=2, address="auto")
    found, transport = played(given, charge)
    kinds = {failure.kind for failure in found[1].failures.values()}
    assert charged == [(1, 0), (2, 0), (2, 1), (3, 0)]
    assert kinds == {"unavailable"}
    assert found[2].participants == tuple(range(13))
    assert len(transport.processes) == 2


@pytest.mark.usefixtures("cluster")
def test_a_worker_holds_no_more_than_its_share_of_the_budget():
    many = {
        "problem": {"kind": "least-squares"},
        "data": {"kind": "synthetic-least-squares", "num_clients": 20_000, "rows": 20},
    }
    given = table(many, RSGD, workers=2, address="auto", memory_budget_mb=256)
    given["engine"]["chunk_clients"] = 1000
    given["federation"] |= {"num_clients": 20_000, "num_rounds": 1}
    config = parse(given)
    plan = plan_of(config)
    start = plan.server_update.initial(initial_point(config))
    with cohort_transport(config) as transport:
        (report,) = run_rounds(plan, start, transport, num_rounds=1)
        grown = transport.grown_mb()
    assert len(report.participants) == 20_000
    assert max(grown) <= 256

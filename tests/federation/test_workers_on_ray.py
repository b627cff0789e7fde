"""Workers on real Ray: two nodes of a cluster in this machine, one of which dies."""

import gc
import os
import signal
import tempfile
import warnings
from contextlib import suppress

import pytest

from manifed.experiment.load import parse
from manifed.federation import workers
from manifed.runs.driver import cohort_transport
from tests.algorithms.gossip_runs import reports_of
from tests.federation.test_workers import (
    FAR,
    FRAMES,
    PRIVATE,
    PROJECTED,
    RSGD,
    SOME,
    assert_same,
    played,
    table,
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    made = tempfile.TemporaryDirectory(prefix="mf-", ignore_cleanup_errors=True)
    with made as folder, pytest.MonkeyPatch.context() as patch:  # sockets need a short path
        patch.setenv("RAY_TMPDIR", folder)
        here = Cluster()
        here.add_node(num_cpus=4, include_dashboard=False)
        ray.shutdown()  # what another test may have left; workers join the session that there is
        ray.init(address=here.address, log_to_driver=False, logging_level="error")
        yield here
        ray.shutdown()
        here.shutdown()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray leaves files open: a later test would be blamed
            gc.collect()


class Others:
    """Somebody else, who takes processors of a node."""

    def are_there(self):
        return True


@pytest.mark.usefixtures("cluster")
def test_the_bits_are_those_of_one_process():
    case = (FRAMES, FAR, PRIVATE, SOME)
    expected = played(*case)
    for count in (1, 2, 4):
        assert_same(played(*case, workers=count, address="auto"), expected)


@pytest.mark.usefixtures("cluster")
def test_a_worker_holds_no_more_than_its_share_of_the_budget():
    import ray

    def held_mb(_):  # of all tensors in the process: the same on every machine
        import gc

        import torch

        found = (o.untyped_storage() for o in gc.get_objects() if isinstance(o, torch.Tensor))
        return sum({each.data_ptr(): each.nbytes() for each in found}.values()) / 2**20

    many = {
        "problem": {"kind": "least-squares"},
        "data": {"kind": "synthetic-least-squares", "num_clients": 4000, "rows": 100},
    }
    engine = {"workers": 2, "address": "auto", "memory_budget_mb": 42, "chunk_clients": 100}
    config = parse(table(many, RSGD, federation={"num_clients": 4000, "num_rounds": 1}, **engine))
    with cohort_transport(config) as transport:
        (report,) = reports_of(config, transport=transport)
        held = ray.get([each.__ray_call__.remote(held_mb) for each in transport.actors])
    assert len(report.participants) == 4000
    assert 15 < min(held) <= max(held) <= 42 / 2


def test_a_node_that_dies_in_mid_run_fails_its_attempt_and_its_worker_starts_elsewhere(
    cluster, monkeypatch
):
    import ray

    monkeypatch.setattr(workers, "_AGAIN", 300.0)  # Ray takes its time to see that a node is gone
    others = ray.remote(num_cpus=3)(Others).remote()
    ray.get(others.are_there.remote())
    second = cluster.add_node(num_cpus=1)  # one processor is left on each: one worker on each
    charged = []

    def node_of(_):
        import ray

        return ray.get_runtime_context().get_node_id()

    def charge(server_round, attempt, partitions):
        charged.append((server_round, attempt))
        if charged[-1] == (2, 0):
            ray.kill(others)
            nodes = ray.get([each.__ray_call__.remote(node_of) for each in transport.actors])
            cluster.remove_node(second, allow_graceful=False)
            # A machine takes its processes along; here one may live long enough to answer.
            with suppress(ProcessLookupError):
                os.kill(transport.processes[nodes.index(second.node_id)], signal.SIGKILL)

    retry = {"replies": {"on_failure": "retry", "timeout": 120.0}}
    config = parse(table(FRAMES, PROJECTED, None, retry, workers=2, address="auto"))
    with cohort_transport(config) as transport:
        found = reports_of(config, transport=transport, charge=charge)
    assert charged == [(1, 0), (2, 0), (2, 1), (3, 0)]
    assert {failure.kind for failure in found[1].failures.values()} == {"unavailable"}
    assert found[2].participants == tuple(range(13))
    assert len(transport.processes) == 2

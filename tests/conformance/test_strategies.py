"""Every strategy drives rounds of its own: it gives the bits of the round function."""

import re
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import Strategy

from manifed.algorithms import tangent_mean
from manifed.algorithms.payloads import Displacement
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation.exchange import Replies
from manifed.federation.rounds import Course, Mean, free, run_rounds
from manifed.federation.stack import StackTransport
from manifed.flower.apps import server_app_of, strategy_of
from manifed.flower.records import tensors_from_record, tensors_to_record
from manifed.privacy.charging import opened
from manifed.runs.driver import Job
from manifed.runs.folder import RunFolder
from strategies.any_update import AnyUpdate
from strategies.control_variates import ControlVariates
from strategies.gossip import Gossip
from strategies.projection_mean import ProjectionMean
from strategies.secure_mean import SecureMean
from strategies.tangent_mean import TangentMean
from tests.algorithms.gossip_runs import grid_of
from tests.fresh import QUICKSTART, ROOT
from tests.tensors import assert_near, generator

SETS = ("federation.num_clients=4", "federation.num_rounds=3", "evaluation.is_enabled=false")
PUBLIC = "privacy={kind='none'}"
CLIENT = (
    "privacy={kind='client-level',l2_norm_clip=0.05,delta=0.01,"
    "noise={kind='multiplier',noise_multiplier=2.0}}"
)
MASKED = (
    "privacy={kind='correlated',unit='client',l2_norm_clip=1.0,delta=1e-3,noise_stddev=1.0,"
    "mask_stddev=5.0,noise_source='seed'}"
)
SUM = ("strategy={kind='tangent-mean',weights='num-examples'}",
       "privacy.trust={kind='secure-sum',collusion=0}")  # fmt: skip
SUMS = ("training={kind='projected',step_size=0.1,local_steps=2,upload='plain'}", CLIENT, SUM[1])
SOME = "federation.cohort={kind='fixed-size',cohort_size=2}"
COINS = "federation.cohort={kind='poisson',sampling_probability=0.5}"
RETRY = "federation.replies={on_failure='retry'}"
FLAT = ("problem={kind='least-squares'}", "federation.partition={kind='natural'}",
        "data={kind='synthetic-least-squares',num_clients=4,rows=9}")  # fmt: skip
SVRG = "training={kind='rfedsvrg',step_size=0.1,local_steps=2}"
PARTIAL = "training={kind='projected-partial',step_size=0.1,local_steps=2}"
RING = "training={kind='gossip',graph={kind='ring'},step_size=0.02}"
CASES = {
    "tangent mean": (TangentMean, (PUBLIC, SOME)),
    "tangent mean, examples": (TangentMean, (RETRY,)),
    "tangent mean, clients": (TangentMean, (CLIENT, COINS)),
    "any update": (AnyUpdate, (PUBLIC, "training={kind='rfedags',step_size=0.1}")),
    "any update, examples": (AnyUpdate, ("training={kind='rfedags',step_size=0.1}",)),
    "control variates, two exchanges": (ControlVariates, (PUBLIC, SVRG)),
    "control variates, examples": (ControlVariates, (SVRG, RETRY)),
    "control variates, some": (ControlVariates, (PUBLIC, PARTIAL, SOME)),
    "projection mean": (
        ProjectionMean, (PUBLIC, "training={kind='projected',step_size=0.1,local_steps=2}"),
    ),
    "projection mean, examples": (
        ProjectionMean, ("training={kind='projected',step_size=0.1,local_steps=2}", RETRY),
    ),
    "projection mean, clients": (
        ProjectionMean,
        (CLIENT, "training={kind='projected',step_size=0.1,local_steps=2,upload='plain'}"),
    ),
    "secure mean, examples": (SecureMean, (*SUM, RETRY)),
    "secure mean, clients": (SecureMean, SUMS),
    "gossip": (Gossip, (*FLAT, PUBLIC, RING)),
    "gossip, examples": (Gossip, (*FLAT, RING, RETRY)),
    "gossip, keys first": (
        Gossip,
        (*FLAT, MASKED, "training={kind='decor',step_size=0.02,graph={kind='ring'},"
         "pair_keys='exchanged'}"),
    ),
}  # fmt: skip


def config_of(*sets):
    return load(QUICKSTART, [*SETS, *sets])


@contextmanager
def job_of(config, folder):
    plan = plan_of(config)
    start = plan.server_update.start(initial_point(config))
    last = config.federation.num_rounds
    with opened(folder / "ledger.jsonl", plan.promise, last_round=last, header={}) as account:
        yield Job(config, plan, account, start, 1, {})


def rounds_of(job):
    made = strategy_of(job)
    made.go_on_at(job.first_round, job.state, job.last_accepted, lambda _: 0)
    return made, list(made.rounds(grid_of(job.config), job.num_rounds))


def facts(report):
    return (
        report.participants, set(report.failures), report.bytes_up, report.bytes_down,
        report.noise_origins,
    )  # fmt: skip


def in_memory(job, charge=free):
    """The reports of the round function."""
    transport = StackTransport(client_side(job.config))
    return list(run_rounds(job.plan, job.state, transport, charge, num_rounds=3))


def assert_alike(found, expected):
    assert len(found) == 3
    for mine, theirs in zip(found, expected, strict=True):
        assert facts(mine) == facts(theirs)
        for field, tensor in theirs.state.items():
            assert torch.equal(mine.state[field], tensor), field


def by_flower(job):
    """What comes of Flower's own loop."""
    theirs = strategy_of(job)
    start = tensors_to_record({"x": initial_point(job.config)})
    count = 3 * len(job.plan.phases) + len(job.plan.setup_phases)
    return theirs, Strategy.start(theirs, grid_of(job.config), start, num_rounds=count)


def assert_one_round_by_either_driver(name, folder):
    """The reports of the strategy and of the round function, in memory; and Flower's own loop."""
    kind, sets = CASES[name]
    config = config_of(*sets)
    with job_of(config, folder) as job:
        made, found = rounds_of(job)
        assert type(made) is kind
        assert_alike(found, in_memory(job))
    with job_of(config, folder / "again") as job:
        theirs, ran = by_flower(job)
        assert torch.equal(
            tensors_from_record(ran.arrays)["x"], tensors_from_record(made.arrays())["x"]
        )
        assert theirs.statement()["adversaries"] == made.statement()["adversaries"]
        assert len(ran.train_metrics_clientapp) == 3


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "again").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_a_strategy_gives_the_bits_of_the_round_function(name, folder):
    assert_one_round_by_either_driver(name, folder)


@pytest.mark.parametrize("sets", [SUM, SUMS])
def test_a_sum_is_released_by_either_driver(sets, folder):
    config = config_of(*sets, "privacy.noise_source=os")
    said = []
    with job_of(config, folder) as job:
        said.append(rounds_of(job)[0].statement())
    with job_of(config, folder / "again") as job:
        made, ran = by_flower(job)
        said.append(made.statement())
        assert len(ran.train_metrics_clientapp) == 3
        assert job.account.odometer.rounds_counted == 3
    assert said[0] == said[1]
    assert said[0]["label"] == "release"
    names = [one["name"] for one in said[0]["adversaries"]]
    assert names == ["coalition", "server", "one-node", "everybody"]


@pytest.mark.parametrize(
    "kind", [AnyUpdate, ControlVariates, Gossip, ProjectionMean, SecureMean, TangentMean]
)
@pytest.mark.parametrize("method", ["configure_train", "aggregate_train", "aggregate"])
def test_a_strategy_without_one_of_its_methods_fails(kind, method, folder, monkeypatch):
    assert method in vars(kind)

    def gone(*_, **__):
        raise AttributeError(method)

    monkeypatch.setattr(kind, method, gone)
    name = next(name for name, case in CASES.items() if case[0] is kind)
    with pytest.raises(AttributeError, match=method):
        assert_one_round_by_either_driver(name, folder)


@pytest.mark.parametrize("name", ["tangent mean, examples", "control variates, examples"])
def test_a_round_that_is_repeated_is_charged_and_reported_as_by_the_round_function(
    name, folder, monkeypatch
):
    update = RSGD if name.startswith("tangent") else RFedSVRG
    plain = update.client
    broken = []

    def fails(self, x, oracle, here):
        last = self.phases[-1].name
        if (here.round, here.draws.attempt, here.draws.partition, here.exchange) == (2, 0, 1, last):
            broken.append(1)
            raise RuntimeError("boom")
        return plain(self, x, oracle, here)

    monkeypatch.setattr(update, "client", fails)
    config = config_of(*CASES[name][1])
    charged = ([], [])
    with job_of(config, folder) as job:
        made = strategy_of(job)
        made.charge = lambda *paid: charged[0].append(paid)
        made.go_on_at(1, job.state, {}, lambda _: 0)
        found = list(made.rounds(grid_of(config), 3))
        transport = StackTransport(client_side(config))
        expected = list(
            run_rounds(
                job.plan, job.state, transport, lambda *paid: charged[1].append(paid),
                num_rounds=3,
            )
        )  # fmt: skip
    assert charged[0] == charged[1]
    assert [(r, a) for r, a, _ in charged[0]] == [(1, 0), (2, 0), (2, 1), (3, 0)]
    for mine, theirs in zip(found, expected, strict=True):
        assert facts(mine) == facts(theirs)
        assert torch.equal(mine.state["x"], theirs.state["x"])
    assert len(broken) == 2
    vector = 64 * 8
    asked = 2 * 4 * len(job.plan.phases) * vector  # twice, four clients; one vector was lost
    assert (found[1].bytes_down, found[1].bytes_up) == (asked, asked - vector)


# -- a round by hand -----------------------------------------------------------------------------
def made(**policy):
    """A strategy before its first round."""
    config = config_of(SOME)
    plan = plan_of(config)
    strategy = TangentMean.of_plan(replace(plan, policy=plan.policy.model_copy(update=policy)))
    strategy.go_on_at(1, plan.server_update.start(initial_point(config)), {}, lambda _: 0)
    return strategy


@pytest.fixture
def grid():
    return grid_of(config_of(SOME))


def test_a_round_by_hand_is_used_once_and_only_with_its_own_replies(grid):
    with pytest.raises(RoundFailed, match="configure_train"):
        made().aggregate_train(1, [])
    strategy = made()
    nothing = ArrayRecord()
    replies = list(
        grid.send_and_receive(strategy.configure_train(1, nothing, ConfigRecord(), grid))
    )
    strategy.aggregate_train(1, replies)
    with pytest.raises(RoundFailed, match="configure_train"):
        strategy.aggregate_train(1, replies)
    list(grid.send_and_receive(strategy.configure_train(2, nothing, ConfigRecord(), grid)))
    with pytest.raises(RoundFailed, match=r"Round 2: .*no reply .*\(node \d\)"):
        strategy.aggregate_train(2, replies)


def test_a_timeout_is_the_shorter_of_both_and_configs_for_clients_are_refused(grid, monkeypatch):
    waited = []
    plain = grid.send_and_receive

    def noting(messages, *, timeout=None):
        waited.append(timeout)
        return plain(messages, timeout=timeout)

    monkeypatch.setattr(grid, "send_and_receive", noting)
    made().start(grid, num_rounds=1, timeout=7.0)
    made(timeout=5.0).start(grid, num_rounds=1)
    assert waited == [7.0, 5.0]
    for name in ("train_config", "evaluate_config"):
        with pytest.raises(ConfigError, match=rf"{name}: expected none, got \['lr'\]"):
            made().start(grid, num_rounds=1, **{name: ConfigRecord({"lr": 0.1})})
    with pytest.raises(ConfigError, match="train_config: expected none"):
        Strategy.start(made(), grid, ArrayRecord(), 1, train_config=ConfigRecord({"lr": 0.1}))


def test_the_facts_of_a_round_come_back_as_a_metric_record(grid):
    told = made().start(grid, num_rounds=2).train_metrics_clientapp
    assert list(told) == [1, 2]
    assert dict(told[2]) == {
        "server-round": 2, "replies": 2, "failures": 0, "bytes-down": 1024, "bytes-up": 1024,
        "epsilon": pytest.approx(dict(told[2])["epsilon"]),
    }  # fmt: skip


def test_the_subclass_of_the_page_aggregates_in_its_own_way():
    page = (ROOT / "docs" / "flower.md").read_text()
    exec(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[-1], said := {})
    config = config_of()
    plan = plan_of(config)
    x = initial_point(config)
    made = said["Trimmed"].of_plan(plan)
    u = plan.manifold.tangent_gaussian(x.expand(4, *x.shape), 1.0, generator(0))
    now = Course(plan, plan.server_update.start(x)).opened()
    found = made.aggregate(now, Replies((0, 1, 2, 3), Displacement(u))).fields["u"]
    middle = (u.sum(0) - u.amax(0) - u.amin(0)) / 2
    torch.testing.assert_close(found, plan.manifold.proju(x, middle), rtol=1e-12, atol=1e-15)


# -- of a run ------------------------------------------------------------------------------------
class Other(tangent_mean.TangentMean):
    """A server update of another package, which may step in its own way."""

    kind: str = "other.package:Other"


def test_a_server_update_of_another_package_gets_the_strategy_of_any(tmp_path):
    with job_of(config_of(), tmp_path) as job:
        other = replace(job.plan, server_update=Other())
        assert type(strategy_of(replace(job, plan=other))) is AnyUpdate


def test_a_run_goes_through_the_strategy_that_it_is_given(tmp_path):
    class Still(TangentMean):
        def aggregate(self, now, replies):
            mean = super().aggregate(now, replies).fields
            return Mean({name: torch.zeros_like(u) for name, u in mean.items()})

        def charge(self, server_round, attempt, partitions):
            seen.append(server_round)
            super().charge(server_round, attempt, partitions)

    seen = []
    config = config_of("output.quiet=true")
    output = config.output.model_copy(update={"directory": str(tmp_path / "run")})
    config = config.model_copy(update={"output": output})

    def make(job):
        return Still.of_plan(job.plan, job.account, job.num_rounds)

    server_app_of(lambda _: config, make)(grid_of(config), Context(1, 1, {}, RecordDict(), {}))
    folder = RunFolder.open(tmp_path / "run")
    assert seen == [1, 2, 3]
    x = folder.load_tensors("model")["x"]
    assert_near(x, initial_point(config), 1e-15)
    assert folder.manifest()["final"]["epsilon"] > 0

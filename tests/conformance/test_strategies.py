"""Every strategy is a driver of a round of its own: it gives the bits of the round function."""

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import Strategy

from manifed.algorithms import rsgd, tangent_mean
from manifed.algorithms.payloads import Displacement
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import load
from manifed.federation.replies import Replies
from manifed.federation.rounds import Course, Mean, run_rounds
from manifed.federation.stack import StackTransport
from manifed.flower.apps import server_app_of, strategy_of
from manifed.flower.client import client_app_of
from manifed.flower.inline import InlineGrid
from manifed.flower.records import tensors_from_record, tensors_to_record
from manifed.privacy.account import opened
from manifed.runs.driver import Job
from manifed.runs.folder import RunFolder
from strategies.any_update import AnyUpdate
from strategies.control_variates import ControlVariates
from strategies.gossip import Gossip
from strategies.masked_mean import MaskedMean
from strategies.projection_mean import ProjectionMean
from strategies.tangent_mean import TangentMean

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"
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
    "gossip": (Gossip, (*FLAT, PUBLIC, RING)),
    "gossip, examples": (Gossip, (*FLAT, RING, RETRY)),
    "masked mean": (
        MaskedMean,
        (*FLAT, MASKED, "training={kind='masked-mean',step_size=0.02,graph={kind='ring'}}"),
    ),
}  # fmt: skip


def config_of(*sets):
    return load(QUICKSTART, [*SETS, *sets])


def grid_of(config):
    return InlineGrid(client_app_of(lambda _: config), config.federation.num_clients, {})


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


def assert_one_round_by_either_driver(name, folder):
    """The reports of the strategy and of the round function, in memory; and Flower's own loop."""
    kind, sets = CASES[name]
    config = config_of(*sets)
    with job_of(config, folder) as job:
        made, found = rounds_of(job)
        assert type(made) is kind
        transport = StackTransport(client_side(config))
        expected = list(run_rounds(job.plan, job.state, transport, num_rounds=3))
        assert len(found) == len(expected) == 3
        for mine, theirs in zip(found, expected, strict=True):
            assert facts(mine) == facts(theirs)
            for field, tensor in theirs.state.items():
                assert torch.equal(mine.state[field], tensor), field
    with job_of(config, folder / "again") as job:
        theirs = strategy_of(job)
        start = tensors_to_record({"x": initial_point(config)})
        count = 3 * len(job.plan.phases) + len(job.plan.setup_phases)
        if kind is MaskedMean:  # nobody is silent: no second exchange
            count = 3 + len(job.plan.setup_phases)
        ran = Strategy.start(theirs, grid_of(config), start, num_rounds=count)
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


METHODS = [
    (kind, method)
    for kind in (AnyUpdate, ControlVariates, Gossip, MaskedMean, ProjectionMean, TangentMean)
    for method in ("configure_train", "aggregate_train", "aggregate")
]


@pytest.mark.parametrize(("kind", "method"), METHODS)
def test_a_strategy_without_one_of_its_methods_fails(kind, method, folder, monkeypatch):
    def gone(*_, **__):
        raise AttributeError(method)

    assert method in vars(kind)
    monkeypatch.setattr(kind, method, gone)
    name = next(name for name, case in CASES.items() if case[0] is kind)
    with pytest.raises(AttributeError, match=method):
        assert_one_round_by_either_driver(name, folder)


@pytest.mark.parametrize("name", ["tangent mean, examples", "control variates, examples"])
def test_a_round_that_is_repeated_is_charged_and_reported_as_by_the_round_function(
    name, folder, monkeypatch
):
    update = (
        rsgd.RSGD
        if name.startswith("tangent")
        else resolve_name("manifed.algorithms.rfedsvrg:RFedSVRG")
    )
    plain = update.update
    broken = []

    def fails(self, phase, down, memory, oracle, manifold, draws):
        last = self.phases[-1].name
        if (draws.server_round, draws.attempt, draws.partition, phase) == (2, 0, 1, last):
            broken.append(1)
            raise RuntimeError("boom")
        return plain(self, phase, down, memory, oracle, manifold, draws)

    monkeypatch.setattr(update, "update", fails)
    assert_failing_alike(name, folder)
    assert len(broken) == 2


def assert_failing_alike(name, folder):
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


# -- a round by hand -----------------------------------------------------------------------------
@pytest.fixture
def parts():
    config = config_of(SOME)
    charged = []

    class Counting(TangentMean):
        def charge(self, server_round, attempt, partitions):
            charged.append((server_round, attempt, partitions))

    def make(**policy):
        plan = plan_of(config)
        changed = type(plan)(**{**vars(plan), "policy": plan.policy.model_copy(update=policy)})
        made = Counting.of_plan(changed)
        made.go_on_at(1, plan.server_update.start(initial_point(config)), {}, lambda _: 0)
        return made

    return make, grid_of(config), charged


def spoiling(grid, monkeypatch, times):
    deliver = grid._deliver
    broken = []

    def spoils(message):
        if message.metadata.message_type == "train" and len(broken) < times:
            broken.append(message)
            message.content["header"]["config-sha256"] = "another"
        return deliver(message)

    monkeypatch.setattr(grid, "_deliver", spoils)


def test_a_round_is_charged_before_its_messages_leave(parts, monkeypatch):
    make, grid, charged = parts
    seen = []
    deliver = grid._deliver
    monkeypatch.setattr(grid, "_deliver", lambda m: seen.append(len(charged)) or deliver(m))
    make().start(grid, num_rounds=2)
    assert seen[4:] == [1, 1, 2, 2]  # after the handshake


def test_a_retry_is_a_charge_of_its_own_with_another_cohort_and_the_bytes_of_both(
    parts, monkeypatch
):
    make, grid, charged = parts
    spoiling(grid, monkeypatch, 1)
    (report,) = make(on_failure="retry").rounds(grid, 1)
    assert [(r, a) for r, a, _ in charged] == [(1, 0), (1, 1)]
    assert len(report.failures) == 1
    assert (report.bytes_down, report.bytes_up) == (4 * 512, 3 * 512)


def test_bad_replies_end_a_round_when_too_few_are_left(parts, monkeypatch):
    make, grid, _ = parts
    spoiling(grid, monkeypatch, 9)
    with pytest.raises(RoundFailed, match=r"Round 1: Expected replies from 2 clients.*config"):
        make().start(grid, num_rounds=1)


def test_a_round_by_hand_is_used_once_and_only_with_its_own_replies(parts):
    make, grid, _ = parts
    with pytest.raises(RoundFailed, match="configure_train"):
        make().aggregate_train(1, [])
    made = make()
    nothing = ArrayRecord()
    replies = list(grid.send_and_receive(made.configure_train(1, nothing, ConfigRecord(), grid)))
    made.aggregate_train(1, replies)
    with pytest.raises(RoundFailed, match="configure_train"):
        made.aggregate_train(1, replies)
    list(grid.send_and_receive(made.configure_train(2, nothing, ConfigRecord(), grid)))
    with pytest.raises(RoundFailed, match=r"Round 2: .*no reply .*\(node \d\)"):
        made.aggregate_train(2, replies)


def test_a_timeout_is_the_shorter_of_both_and_configs_for_clients_are_refused(parts, monkeypatch):
    make, grid, _ = parts
    waited = []
    plain = grid.send_and_receive

    def noting(messages, *, timeout=None):
        waited.append(timeout)
        return plain(messages, timeout=timeout)

    monkeypatch.setattr(grid, "send_and_receive", noting)
    make().start(grid, num_rounds=1, timeout=7.0)
    make(timeout=5.0).start(grid, num_rounds=1)
    assert waited == [7.0, 5.0]
    for name in ("train_config", "evaluate_config"):
        with pytest.raises(ConfigError, match=rf"{name}: expected none, got \['lr'\]"):
            make().start(grid, num_rounds=1, **{name: ConfigRecord({"lr": 0.1})})
    with pytest.raises(ConfigError, match="train_config: expected none"):
        Strategy.start(make(), grid, ArrayRecord(), 1, train_config=ConfigRecord({"lr": 0.1}))


def test_the_facts_of_a_round_come_back_as_a_metric_record(parts):
    make, grid, _ = parts
    told = make().start(grid, num_rounds=2).train_metrics_clientapp
    assert list(told) == [1, 2]
    assert dict(told[2]) == {
        "server-round": 2, "replies": 2, "failures": 0, "bytes-down": 1024, "bytes-up": 1024,
        "epsilon": pytest.approx(dict(told[2])["epsilon"]),
    }  # fmt: skip


def test_the_subclass_of_the_page_aggregates_in_its_own_way():
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    block = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[-1]
    exec(block, said := {})
    config = config_of()
    plan = plan_of(config)
    x = initial_point(config)
    made = said["Trimmed"].of_plan(plan)
    u = plan.manifold.tangent_gaussian(x.expand(4, *x.shape), 1.0, torch.Generator().manual_seed(0))
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
        config = job.config.model_copy(update={"strategy": Other()})
        assert type(strategy_of(replace(job, config=config))) is AnyUpdate


def test_a_run_goes_through_the_strategy_that_it_is_given(tmp_path):
    class Still(TangentMean):
        def aggregate(self, now, replies):
            mean = super().aggregate(now, replies).fields
            return Mean({name: torch.zeros_like(u) for name, u in mean.items()})

        def charge(self, server_round, attempt, partitions):
            seen.append(server_round)
            super().charge(server_round, attempt, partitions)

    seen = []
    config = config_of("output.quiet=true", "output.plots=false")
    output = config.output.model_copy(update={"directory": str(tmp_path / "run")})
    config = config.model_copy(update={"output": output})

    def make(job):
        return Still.of_plan(job.plan, job.account, job.num_rounds)

    context = Context(1, 1, {}, RecordDict(), {})
    server_app_of(lambda _: config, make)(grid_of(config), context)
    folder = RunFolder.open(tmp_path / "run")
    assert seen == [1, 2, 3]
    x = folder.load_tensors("model")["x"]
    torch.testing.assert_close(x, initial_point(config), rtol=0, atol=1e-15)
    assert folder.manifest()["final"]["epsilon"] > 0

"""From a config the ServerApp makes the application's strategy, and the run goes through it."""

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import Strategy

from manifed.algorithms import tangent_mean
from manifed.algorithms.payloads import Displacement
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import load
from manifed.experiment.privacy import promise_of
from manifed.federation.aggregation import Mean
from manifed.federation.replies import Replies
from manifed.federation.rounds import begin, free, run_rounds
from manifed.federation.transport import MemoryTransport
from manifed.flower.apps import server_app_of
from manifed.flower.client import client_app_of
from manifed.flower.inline import InlineGrid
from manifed.flower.records import tensors_from_record, tensors_to_record
from manifed.flower.strategy import ManifoldStrategy, settings_of
from manifed.privacy.account import opened
from manifed.runs.driver import Job, Start
from manifed.runs.run_folder import RunFolder
from strategies.control_variates import ControlVariates
from strategies.of_config import strategy_of
from strategies.projection_mean import ProjectionMean
from strategies.tangent_mean import TangentMean

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"
SMALL = ("federation.num_clients=4", "federation.num_rounds=3")
PUBLIC = "privacy={kind='none'}"
CLIENT_LEVEL = (
    "privacy={kind='client-level',l2_norm_clip=0.05,delta=0.01,"
    "noise={kind='multiplier',noise_multiplier=2.0}}"
)
KINDS = {
    "tangent-mean": (TangentMean, ()),
    "client-level": (TangentMean, (CLIENT_LEVEL,)),
    "rfedsvrg": (
        ControlVariates,
        (PUBLIC, "training={kind='rfedsvrg',step_size=0.1,local_steps=2}"),
    ),
    "projected": (
        ProjectionMean,
        (
            PUBLIC,
            "federation.cohort={kind='all'}",
            "training={kind='projected',step_size=0.1,local_steps=2}",
        ),
    ),
}


def experiment(tmp_path, *sets):
    config = load(QUICKSTART, ["output.quiet=true", "output.plots=false", *sets])
    changes = {"directory": str(tmp_path / "run")}
    return config.model_copy(update={"output": config.output.model_copy(update=changes)})


def grid_of(config):
    return InlineGrid(client_app_of(lambda _: config), config.federation.num_clients, {})


def run_by(config, strategy):
    """The folder of a run through the ServerApp, and the strategies it made."""
    made = []

    def noted(job):
        made.append(strategy(job))
        return made[-1]

    context = Context(1, 1, {}, RecordDict(), {})
    server_app_of(lambda _: config, noted)(grid_of(config), context)
    return RunFolder.open(Path(config.output.directory)), made


@contextmanager
def job_of(config, ledger):
    plan = plan_of(config)
    promise = promise_of(config, plan.num_examples)
    start = Start(plan.server_update.initial(initial_point(config)), 1, {})
    last = config.federation.num_rounds
    with opened(ledger, promise, last_round=last, header={}) as account:
        yield Job(config, plan, promise, account, start)


def model_of(folder):
    return folder.load_tensors("model")["x"]


def model_in_memory(job, config):
    transport = MemoryTransport(client_side(config))
    *_, last = run_rounds(job.plan, job.start.state, transport, num_rounds=job.num_rounds)
    return job.plan.server_update.model(last.state, job.plan.manifold)


def test_the_server_app_gives_the_model_of_the_round_function(tmp_path):
    config = experiment(tmp_path)
    folder, (made,) = run_by(config, strategy_of)
    assert type(made) is TangentMean
    with job_of(config, tmp_path / "ledger.jsonl") as job:
        expected = model_in_memory(job, config)
    torch.testing.assert_close(model_of(folder), expected, rtol=0, atol=0)
    assert folder.manifest()["privacy"]["adversaries"] == made.statement()["adversaries"]


@pytest.mark.parametrize(
    "name",
    [*KINDS][2:] + [pytest.param(name, marks=pytest.mark.slow) for name in [*KINDS][:2]],
)
def test_its_strategy_and_flowers_own_loop_give_the_model_of_the_round_function(name, tmp_path):
    kind, sets = KINDS[name]
    config = experiment(tmp_path, *SMALL, *sets)
    folder, (ours,) = run_by(config, strategy_of)
    assert type(ours) is kind
    with job_of(config, tmp_path / "ledger.jsonl") as job:
        theirs, start = strategy_of(job), tensors_to_record({"x": initial_point(config)})
        rounds = job.num_rounds * len(job.plan.phases)
        found = Strategy.start(theirs, grid_of(config), start, num_rounds=rounds).arrays
        assert theirs.statement()["adversaries"] == ours.statement()["adversaries"]
        expected = model_in_memory(job, config)
    torch.testing.assert_close(model_of(folder), expected, rtol=0, atol=0)
    torch.testing.assert_close(tensors_from_record(found)["x"], expected, rtol=0, atol=0)


def test_a_subclass_sends_aggregates_and_charges_in_its_own_way(tmp_path):
    class Still(TangentMean):
        def send(self, now):
            seen.append(("send", now.server_round))
            return super().send(now)

        def aggregate(self, now, replies):
            mean = super().aggregate(now, replies).fields
            return Mean({name: torch.zeros_like(u) for name, u in mean.items()})

        def charge(self, server_round, attempt, partitions):
            seen.append(("charge", server_round))
            super().charge(server_round, attempt, partitions)

    def make(job):
        plan = job.plan
        return Still(
            plan.manifold, update=job.config.training, cohort=plan.cohort, **settings_of(job)
        )

    seen, config = [], experiment(tmp_path, *SMALL)
    folder, _ = run_by(config, make)
    assert seen == [(what, r) for r in (1, 2, 3) for what in ("charge", "send")]
    torch.testing.assert_close(model_of(folder), initial_point(config), rtol=0, atol=1e-15)
    assert folder.manifest()["final"]["epsilon"] > 0


class Other(tangent_mean.TangentMean):
    """A server update of another package, which may step in its own way."""

    kind: str = "other.package:Other"


def test_the_subclass_of_the_page_aggregates_in_its_own_way(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    block = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[-1]
    exec(block, said := {})
    config = experiment(tmp_path, *SMALL, "federation.cohort={kind='all'}")
    with job_of(config, tmp_path / "ledger.jsonl") as job:
        plan, x = job.plan, initial_point(config)
        made = said["Trimmed"](plan.manifold, update=config.training, **settings_of(job))
        generator = torch.Generator().manual_seed(0)
        u = plan.manifold.tangent_gaussian(x.expand(4, *x.shape), 1.0, generator)
        now = begin(plan, job.start.state, 1, 0, free, made)
        found = made.aggregate(now, Replies((0, 1, 2, 3), Displacement(u))).fields["u"]
    middle = (u.sum(0) - u.amax(0) - u.amin(0)) / 2
    torch.testing.assert_close(found, plan.manifold.proju(x, middle), rtol=1e-12, atol=1e-15)


def test_a_server_update_of_another_package_gets_the_librarys_strategy(tmp_path):
    with job_of(experiment(tmp_path, *SMALL), tmp_path / "ledger.jsonl") as job:
        config = job.config.model_copy(update={"strategy": Other()})
        made = strategy_of(replace(job, config=config))
    assert type(made) is ManifoldStrategy
    assert type(made.plan.server_update) is Other

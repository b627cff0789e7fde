"""A schedule: a client update whose Poisson batch grows with the round is charged what it draws."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.audit.of_config import costliest_first
from manifed.errors import BudgetExhausted, RoundFailed
from manifed.experiment.assembly import plan_of
from manifed.experiment.load import load
from manifed.federation.client import Uncharged
from manifed.federation.cohorts import FixedSize
from manifed.manifolds import Sphere
from manifed.oracles.minibatch import Full, Minibatch, Poisson
from manifed.plan import promise_of
from manifed.privacy.epsilon_bounds import external_epsilon
from manifed.privacy.events import EXTERNAL, SERVER, PoissonSampled
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.privacy.statement import Budget, Promise, audit_ledger
from manifed.privacy.tariff import ClientReleases, Tariff, Terms
from manifed.problems.frechet import FrechetMean
from tests.conformance.federated_loop import losing
from tests.fresh import QUICKSTART
from tests.privacy.forging import audited
from tests.privacy.releases import cost, poisson
from tests.privacy.test_blocks import made

ROUNDS = 6
SIZES = (40, 30)
DELTA = 1e-3
NOISE = 4.0


class Growing(RSGD):
    """RSGD whose Poisson batch is r times ``batch_size``, up to the shard, and whose steps fall."""

    kind: Literal["growing"] = "growing"
    minibatch: Minibatch = Full()
    batch_size: float = 8.0
    step_size: float = 0.2

    def in_round(self, server_round):
        return RSGD(
            step_size=self.step_size / math.sqrt(server_round),
            local_steps=self.local_steps,
            minibatch=Poisson(batch_size=server_round * self.batch_size),
        )


class Greedy(Growing):
    """Takes two steps after round 1, and from round 4 on charges for one of them."""

    def in_round(self, server_round):
        steps = 1 if server_round == 1 else 2
        return (Understated if server_round > 3 else RSGD)(step_size=0.1, local_steps=steps)


class Understated(RSGD):
    """Charges one gradient less than it asks for."""

    def releases(self, mechanism, num_examples):
        (charged,) = super().releases(mechanism, num_examples)
        return (charged.model_copy(update={"count": charged.count - 1}),)


def privacy(**changes):
    given = {"noise": manifed.Multiplier(noise_multiplier=NOISE), **changes}
    return manifed.ExampleLevel(l2_norm_clip=1.0, delta=DELTA, **given)


def run(algorithm=None, way=manifed.fit, **changes):
    generator = torch.Generator().manual_seed(0)
    shards = [torch.randn(n, 4, dtype=torch.float64, generator=generator) for n in SIZES]
    shards = [z / z.norm(dim=-1, keepdim=True) for z in shards]
    settings = {"privacy": privacy(), "rounds": ROUNDS, **changes}
    return way(FrechetMean(Sphere()), shards, algorithm or Growing(), **settings)


def directly_composed(size, rounds, growth=1):
    """Epsilon of batches min(8 r, N) for r = 1..rounds, written down without the library's loop."""
    rates = [min(8.0 * (r if growth else 1), size) / size for r in range(1, rounds + 1)]
    return cost(*(poisson(NOISE, rate) for rate in rates), delta=DELTA)


def test_the_ledger_the_curve_and_the_plan_say_what_the_batches_cost(tmp_path):
    found = run(ledger=tmp_path / "ledger.jsonl")
    exact = [max(directly_composed(n, r) for n in SIZES) for r in range(1, ROUNDS + 1)]
    assert found.curves["epsilon"] == pytest.approx(exact, rel=1e-9)
    audited = audit_ledger(tmp_path / "ledger.jsonl", DELTA)["adversaries"]
    assert [one["epsilon"] for one in audited] == pytest.approx([exact[-1]] * 2, rel=1e-9)
    stated = found.statement["adversaries"]
    assert [one["epsilon"] for one in stated] == pytest.approx([exact[-1]] * 2, rel=1e-9)
    assert run().curves == found.curves
    constant = max(directly_composed(n, ROUNDS, growth=0) for n in SIZES)
    assert exact[-1] > 1.5 * constant  # what a price of round 1 for every round would have said


@pytest.mark.parametrize("has_ledger", [False, True])
def test_the_filter_stops_where_the_growing_batches_pass_the_budget(tmp_path, has_ledger):
    budget = max(directly_composed(n, 4) for n in SIZES) * (1 + 1e-9)
    ledger = tmp_path / "ledger.jsonl" if has_ledger else None
    found = run(privacy=privacy(max_epsilon=budget), ledger=ledger)
    assert found.curves["round"] == [1, 2, 3, 4]
    assert "round 5 would be cohort draw 5" in found.stopped
    with pytest.raises(BudgetExhausted):
        list(run(way=manifed.federate, privacy=privacy(max_epsilon=budget)))


def test_each_round_is_held_to_its_own_charge():
    rounds = run(Greedy(), way=manifed.federate)
    assert [next(rounds).server_round for _ in range(3)] == [1, 2, 3]
    with pytest.raises(RoundFailed, match=Uncharged.__name__):
        next(rounds)


# -- cohorts that are drawn, rounds that are made again ---------------------------------------
HALF = FixedSize(cohort_size=1)
AGAIN = manifed.ReplyPolicy(on_failure="retry", max_attempts=2)


def event(size, server_round):
    return poisson(NOISE, min(8.0 * server_round, size) / size)


def to_an_outsider(rounds=range(1, ROUNDS + 1), attempts=1, sizes=SIZES):
    """The mixture of every planned draw: one of two clients, by a fair coin."""
    return max(
        external_epsilon(tuple(((event(n, r),), 0.5, attempts) for r in rounds), DELTA)
        for n in sizes
    )


def spent(told, delta=DELTA):
    rows = audit_ledger(told, delta) if isinstance(told, Path) else told
    return {one["name"]: one["epsilon"] for one in rows["adversaries"]}


def test_drawn_cohorts_cost_the_server_what_was_drawn_and_an_outsider_what_was_planned(tmp_path):
    found = run(cohort=HALF, ledger=tmp_path / "ledger.jsonl")
    drawn = [HALF.draw(2, r, 0, NoiseSource.from_seed(0)) for r in range(1, ROUNDS + 1)]
    own = max(
        cost(*(event(n, r) for r, who in enumerate(drawn, 1) if i in who), delta=DELTA)
        for i, n in enumerate(SIZES)
    )
    for told in (found.statement, tmp_path / "ledger.jsonl"):
        assert spent(told) == pytest.approx({"server": own, "external": to_an_outsider()}, rel=1e-6)
    assert to_an_outsider() < max(directly_composed(n, ROUNDS) for n in SIZES)


def test_a_run_that_fails_costs_an_outsider_what_was_planned(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    abort = manifed.ReplyPolicy(on_failure="abort")
    with pytest.raises(RoundFailed):
        run(cohort=HALF, ledger=ledger, transport=losing(3), replies=abort)
    assert spent(ledger)["external"] == pytest.approx(to_an_outsider(), rel=1e-6)


def test_a_retry_is_one_more_charge_of_its_round(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    found = run(replies=AGAIN, ledger=ledger, transport=losing(4))
    rounds = [1, 2, 3, 4, 4, 5, 6]
    own = max(cost(*(event(n, r) for r in rounds), delta=DELTA) for n in SIZES)
    assert spent(found.statement)["server"] == pytest.approx(own, rel=1e-9)
    assert spent(ledger)["server"] == pytest.approx(own, rel=1e-9)
    hidden = run(rounds=3, cohort=HALF, replies=AGAIN)  # nothing failed, and each round could have
    own = to_an_outsider(range(1, 4), attempts=2)
    assert spent(hidden.statement)["external"] == pytest.approx(own, rel=1e-6)


def tariff_of(rounds, **more):
    """A client of 40 examples, round by round."""
    each = [ClientReleases(partitions=(0,), releases=(event(40, r),)) for r in rounds]
    return Tariff(tuple(Terms(population=1, updates=(one,), **more) for one in each))


def test_a_budget_against_an_outsider_stops_at_a_round_that_no_cohort_decides():
    tariff = tariff_of(range(1, 7), sampling=PoissonSampled(sampling_probability=0.5))
    tariff = replace(tariff, attempts=2)
    budget = to_an_outsider(range(1, 5), attempts=2, sizes=(40,)) * (1 + 1e-9)
    allowed = Promise(tariff, ROUNDS, budget=Budget(budget, DELTA, EXTERNAL))
    assert allowed.planned_draws == 4
    assert allowed.pays((1, 2, 1, 1))
    assert allowed.pays((2, 2, 2, 2))
    assert not allowed.pays((1, 1, 1, 3))  # round 4 once more than planned, after a crash
    assert not allowed.pays((1, 1, 1, 1, 1))
    known = Promise(tariff, ROUNDS, budget=Budget(directly_composed(40, 4), DELTA, SERVER))
    assert known.pays((1, 1, 1, 1))
    assert not known.pays((1, 2, 1, 1))  # who sees cohorts pays for what was made, and no more


def test_a_target_that_a_round_made_again_passes_is_told():
    target = Budget(directly_composed(40, 3), DELTA, SERVER)
    allowed = Promise(
        tariff_of((1, 2, 3)), 3, budget=replace(target, epsilon=9.0), target=target, calibrated=3
    )
    assert allowed.passed_target((1, 1, 1)) is None
    assert "4 cohort draws cost" in allowed.passed_target((1, 1, 2))


def test_the_audit_attacks_the_round_that_costs_most():
    noised = ExampleMechanism(l2_norm_clip=1.0, noise=Noise(multiplier=NOISE))
    assert costliest_first(Growing(), noised, 40, 4) == (4, 3, 2, 1)
    assert costliest_first(Growing(), noised, 24, 6)[0] == 3  # the whole shard, from here on


# -- runs that go on --------------------------------------------------------------------------
PLUG_IN = """
from typing import Literal

from manifed.algorithms.rsgd import RSGD
from manifed.oracles.minibatch import Poisson


class Growing(RSGD):
    kind: Literal["grown_batches:Growing"] = "grown_batches:Growing"

    def in_round(self, server_round):
        return RSGD(step_size=self.step_size, minibatch=Poisson(batch_size=20.0 * server_round))
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """A config whose batches grow, by an algorithm of another package."""
    (tmp_path / "grown_batches.py").write_text(PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)
    sets = (
        "federation.num_clients=2",
        "federation.num_rounds=4",
        "output.quiet=true",
        "evaluation.is_enabled=false",
        "training={kind='grown_batches:Growing',step_size=0.2}",
        f"privacy={{kind='example-level',l2_norm_clip=1.0,delta=1e-4,"
        f"noise={{kind='multiplier',noise_multiplier={NOISE}}}}}",
        f"output.directory='{tmp_path / 'run'}'",
    )
    yield lambda *more: load(QUICKSTART, [*sets, *more])
    sys.modules.pop("grown_batches", None)


@pytest.mark.parametrize(
    "cohort",
    [pytest.param("{kind='all'}", marks=pytest.mark.slow), "{kind='fixed-size',cohort_size=1}"],
    ids=["all", "half"],
)
def test_a_scheduled_run_goes_on_and_pays_for_the_round_it_makes_again(experiment, cohort):
    config = experiment(f"federation.cohort={cohort}")
    made(config, until=3)
    again = config.output.model_copy(update={"resume": True})
    folder, _ = made(config.model_copy(update={"output": again}))
    assert folder.manifest()["final"]["rounds"] == 4
    odometer = audited(folder.ledger_path)
    assert [odometer.attempts(r) for r in (1, 2, 3, 4, 5)] == [1, 1, 2, 1, 0]
    promise = promise_of(config.setting, plan_of(config).num_examples)
    of_client = [
        tuple((promise.tariff.of(r).updates[k].releases,
               promise.terms.participation_probability, 1 + (r == 3)) for r in (1, 2, 3, 4))
        for k in range(2)
    ]  # fmt: skip
    own = max(external_epsilon(rounds, 1e-4) for rounds in of_client)
    assert spent(folder.ledger_path, 1e-4)["external"] == pytest.approx(own, rel=1e-6)

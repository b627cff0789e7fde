"""A schedule: a client update whose Poisson batch grows with the round is charged what it draws."""

import math
from typing import Literal

import pytest
import torch

import manifed
from manifed.algorithms.rsgd import RSGD
from manifed.errors import BudgetExhausted, ConfigError, RoundFailed
from manifed.federation.client import Uncharged
from manifed.federation.cohorts import FixedSize
from manifed.manifolds.sphere import Sphere
from manifed.oracles.minibatch import Poisson
from manifed.privacy import accountant
from manifed.privacy.events import GaussianRelease, PoissonSampled
from manifed.privacy.statement import audit_ledger
from manifed.problems.frechet_mean import FrechetMean

ROUNDS, SIZES, DELTA, NOISE = 6, (40, 30), 1e-3, 4.0


class Growing(RSGD):
    """RSGD whose Poisson batch is r times ``batch_size``, up to the shard, and whose steps fall."""

    kind: Literal["growing"] = "growing"
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
    noise = manifed.Multiplier(noise_multiplier=NOISE)
    return manifed.ExampleLevel(l2_norm_clip=1.0, noise=noise, delta=DELTA, **changes)


def run(algorithm=None, way=manifed.fit, **changes):
    generator = torch.Generator().manual_seed(0)
    shards = [torch.randn(n, 4, dtype=torch.float64, generator=generator) for n in SIZES]
    shards = [z / z.norm(dim=-1, keepdim=True) for z in shards]
    settings = {"privacy": privacy(), "rounds": ROUNDS, **changes}
    return way(FrechetMean(Sphere()), shards, algorithm or Growing(), **settings)


def directly_composed(size, rounds, growth=1):
    """Epsilon of batches min(8 r, N) for r = 1..rounds, written down without the library's loop."""
    rates = [min(8.0 * (r if growth else 1), size) / size for r in range(1, rounds + 1)]
    return accountant.epsilon(
        [
            GaussianRelease(
                unit="example",
                neighboring_relation="add-or-remove",
                noise_multiplier=NOISE,
                sampling=PoissonSampled(sampling_probability=rate),
            )
            for rate in rates
        ],
        DELTA,
    )


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


def test_a_target_is_met_by_the_whole_schedule():
    target = manifed.ExampleLevel(
        l2_norm_clip=1.0, noise=manifed.Target(epsilon=2.0, delta=DELTA), delta=DELTA
    )
    assert run(privacy=target).curves["epsilon"][-1] == pytest.approx(2.0, rel=1e-3)


def test_each_round_is_held_to_its_own_charge():
    rounds = run(Greedy(), way=manifed.federate)
    assert [next(rounds).server_round for _ in range(3)] == [1, 2, 3]
    with pytest.raises(RoundFailed, match=Uncharged.__name__):
        next(rounds)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"cohort": FixedSize(cohort_size=1)}, "federation.cohort.kind"),
        ({"replies": manifed.ReplyPolicy(on_failure="retry")}, "federation.replies.on_failure"),
    ],
)
def test_what_nothing_prices_is_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        run(**settings)

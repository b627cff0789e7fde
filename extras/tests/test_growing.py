"""Schedules of step, noise and batch: drawn as charged, composed exactly, calibrated as a whole."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import manifed
from extras.tests.fits import CLIENT_LEVEL, DELTA, epsilon_of, fit, rows_of
from manifed.algorithms.projected import Projected
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.federation.client import ClientSetup
from manifed.oracles.minibatch import Full, Poisson, WithoutReplacement
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.statement import audit_ledger
from manifed.problems.pca import PrincipalEigenvector
from manifed.schedules import Geometric, Polynomial
from manifed_extras.growing import GrowingProjected, GrowingRSGD
from reproduction.endless import epsilon_of_rho
from tests.fresh import QUICKSTART
from tests.tensors import assert_near

ROUNDS = 6
NOISE = 8.0
FALLING = GrowingRSGD(
    step_size=0.2,
    minibatch=Full(),
    step_sizes=Polynomial(scale=1.0, exponent=-0.5),
    noise_multipliers=Geometric(scale=1.0, ratio=0.8),
)


def run(algorithm=FALLING, noise=NOISE, rounds=ROUNDS, **changes):
    return fit(algorithm, noise, rounds=rounds, **changes)


def composed(rounds, ratio=0.8):
    """Epsilon of one Gaussian release of mu^2 = sum 1 / (z ratio^(r-1))^2."""
    return epsilon_of(math.sqrt(sum((NOISE * ratio**r) ** -2 for r in range(rounds))))


@pytest.mark.parametrize(
    ("minibatch", "exponent", "sizes"),
    [
        (Poisson(batch_size=8.0), 1.0, [8, 16, 24, 80]),
        (WithoutReplacement(batch_size=3), 1.1, [3, 7, 11, 38]),  # 3 r^1.1 rounded up
    ],
    ids=["poisson", "whole examples"],
)
def test_a_schedule_says_what_a_round_is(minibatch, exponent, sizes):
    update = FALLING.in_round(4)
    assert update.step_size == pytest.approx(0.1)
    assert update.noise_factor == pytest.approx(0.8**3)
    growth = Polynomial(scale=1.0, exponent=exponent)
    growing = GrowingRSGD(step_size=0.1, minibatch=minibatch, batch_sizes=growth)
    assert [growing.in_round(r).minibatch.batch_size for r in (1, 2, 3, 10)] == sizes


STEPPED = GrowingProjected(
    step_size=0.2, local_steps=3, step_sizes=Polynomial(scale=1.0, exponent=-0.5)
)


def projected_by_hand(shards, x, steps, local_steps):
    """Algorithm 1 of projected federated learning with another eta in every round."""
    mean = None
    before = x
    c = [torch.zeros_like(x) for _ in shards]
    for r, eta in enumerate(steps):
        anchor = x / x.norm()
        if mean is not None:
            last = steps[r - 1]
            c = [(before - x) / (last * local_steps) - g for g in mean]
        assert sum(c).norm() < 1e-12
        ends = []
        mean = []
        for rows, own in zip(shards, c, strict=True):
            z_hat = anchor
            total = torch.zeros_like(x)
            for _ in range(local_steps):
                z = z_hat / z_hat.norm()
                s = rows @ z
                g = -2 * (s @ rows / len(rows) - (s @ s / len(rows)) * z)
                z_hat = z_hat - eta * (g + own)
                total = total + g
            ends.append(z_hat)
            mean.append(total / local_steps)
        before = anchor
        x = sum(ends) / len(ends)
    return x / x.norm()


def test_projected_steps_follow_their_schedule_and_corrections_still_cancel():
    shards = rows_of(30, 20, 10, seed=3)
    x = torch.ones(4, dtype=torch.float64) / 2
    found = manifed.fit(PrincipalEigenvector(), shards, STEPPED, rounds=5, start=x).model
    steps = [0.2 * r**-0.5 for r in range(1, 6)]
    expected = projected_by_hand(shards, x, steps, 3)
    assert_near(found, expected, 1e-12)
    plain = manifed.fit(
        PrincipalEigenvector(), shards, Projected(step_size=0.2, local_steps=3), rounds=5, start=x
    )
    assert float((plain.model - found).norm()) > 1e-3


def test_rounds_without_end_have_a_price_that_none_of_them_exceeds():
    """z_r = r^0.6: the sum of squares is below zeta(1.2) = 5.5916."""
    growing = GrowingProjected(
        step_size=0.2,
        upload="plain",
        minibatch=Full(),
        noise_multipliers=Polynomial(scale=1.0, exponent=0.6),
    )
    found = run(growing, rounds=30).curves["epsilon"]
    whole = epsilon_of_rho(5.591583 / (2 * NOISE**2), DELTA)
    squares = np.arange(1, 31) ** -1.2
    exact = [epsilon_of_rho(rho, DELTA) for rho in squares.cumsum() / (2 * NOISE**2)]
    assert found == pytest.approx(exact, rel=1e-9)
    assert found[-1] < whole < 1.5 * found[-1]


def test_every_round_is_charged_its_own_noise(tmp_path):
    found = run(ledger=tmp_path / "ledger.jsonl")
    exact = [composed(r) for r in range(1, ROUNDS + 1)]
    assert found.curves["epsilon"] == pytest.approx(exact, rel=1e-9)
    audited = audit_ledger(tmp_path / "ledger.jsonl", DELTA)["adversaries"]
    assert [one["epsilon"] for one in audited] == pytest.approx([exact[-1]] * 2, rel=1e-9)
    assert exact[-1] > 1.5 * composed(ROUNDS, ratio=1.0)  # a price of round 1 for every round


def test_one_scale_makes_the_whole_schedule_meet_its_target():
    found = run(noise=manifed.Target(epsilon=1.5, delta=DELTA)).curves["epsilon"]
    assert 0.998 * 1.5 <= found[-1] <= 1.5
    assert all(small < large for small, large in pairwise(found))


def test_every_round_draws_the_noise_that_it_is_charged():
    mechanism = ExampleMechanism(l2_norm_clip=1.0, noise=Noise(multiplier=NOISE))
    setup = ClientSetup(PrincipalEigenvector(), FALLING, mechanism)
    for server_round in (1, 3):
        (query,) = setup.in_round(server_round).queries(5)
        (event,) = setup.releases(server_round, 5)
        assert query.stddev == pytest.approx(NOISE * 0.8 ** (server_round - 1) / 5)
        assert query.stddev == pytest.approx(event.noise_multiplier * query.sensitivity)


BASE = "training.kind='manifed_extras.growing:GrowingRSGD'"


@pytest.mark.parametrize(
    ("sets", "match"),
    [
        (
            ["training.noise_multipliers={kind='geometric',scale=1.0,ratio=0.1}"],
            "noise_multipliers: expect",
        ),
        (
            ["training.batch_sizes={kind='polynomial',scale=1.0,exponent=1.0}"],
            "batch_sizes: goes with",
        ),
        (
            [CLIENT_LEVEL, "training.noise_multipliers={kind='geometric',scale=1.0,ratio=0.9}"],
            "noise_multipliers: scales the noise of clients",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(sets, match):
    with pytest.raises(ConfigError, match=match):
        load(QUICKSTART, [BASE, *sets])

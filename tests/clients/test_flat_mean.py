"""The closed-form private mean: exact mean, exact sensitivity, exact law of its noise."""

import math
from functools import lru_cache

import pytest
import torch
from scipy import stats

from clients.draws import Draws
from clients.flat_mean import FlatMean, check_flat
from clients.minibatch import Full
from clients.rsgd import RSGD
from clients.turn import ClientHalf, Seat, take_turn
from manifolds import SPD, Euclidean, Lorentz, SPDLogCholesky, SPDLogEuclidean
from privacy import accountant, gaussian
from privacy.mechanism import ExampleLens, RelativeNoise
from privacy.noise import NoiseSource
from problems.base import Examples
from problems.frechet_mean import FrechetMean
from wire.payloads import Point

FLAT = [SPDLogEuclidean(), SPDLogCholesky()]
FALSE_POSITIVE = 1e-6


def draws_of(server_round=1):
    return Draws(NoiseSource.from_seed(8), 0, server_round)


def cloud(manifold, n=9, m=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    points = manifold.random_point(n + 1, m, m, generator=generator)
    return points[0], points[1:]


@pytest.mark.parametrize("manifold", FLAT, ids=lambda m: m.name)
def test_without_clip_and_noise_it_is_the_frechet_mean_from_any_centre(manifold):
    centre, points = cloud(manifold)
    plain = FlatMean(l2_norm_clip=1e9, noise_multiplier=0.0)
    exact = manifold.frechet_mean(points)
    for start in (centre, points[3]):
        found = plain.estimate(start, points, manifold, draws_of())
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("manifold", FLAT, ids=lambda m: m.name)
@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_the_sensitivity_is_attained_and_never_exceeded(manifold, relation):
    """Replace-one moves an example; add-or-remove takes it away (n stays the public divisor)."""
    centre, points = cloud(manifold)
    mean = FlatMean(l2_norm_clip=0.4, noise_multiplier=1.0, neighboring_relation=relation)
    before, worst = mean.clipped_mean(centre, points, manifold), 0.0
    direction = 5 * manifold.from_coords(centre, torch.eye(4, dtype=torch.float64))
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        changed = points.clone()
        changed[0] = manifold.random_point(4, 4, generator=generator) * 10.0**seed
        if relation == "add-or-remove":
            changed[0] = centre  # a zero logarithm: what is left when the example goes
        after = mean.clipped_mean(centre, changed, manifold)
        worst = max(worst, float(manifold.norm(centre, after - before)))
    far = points.clone()
    far[0] = manifold.expmap(centre, direction)
    against = far.clone()
    away = relation == "replace-one"
    against[0] = manifold.expmap(centre, -direction) if away else centre
    moved = mean.clipped_mean(centre, far, manifold) - mean.clipped_mean(centre, against, manifold)
    assert worst <= mean.sensitivity(9) * (1 + 1e-9)
    assert float(manifold.norm(centre, moved)) == pytest.approx(mean.sensitivity(9))


@lru_cache
def summed_squares(index):
    """Sum of squared chart distances of the estimate to the clipped mean, over the variance."""
    manifold = FLAT[index]
    centre, points = cloud(manifold)
    mean = FlatMean(l2_norm_clip=0.4, noise_multiplier=0.7)
    exact = manifold.expmap(centre, mean.clipped_mean(centre, points, manifold))
    count = 8000
    source = NoiseSource.from_seed(8)
    draws = Draws(source, tuple(range(count)), 1)
    estimates = mean.estimate(centre.expand(count, 4, 4), points, manifold, draws)
    total = float(manifold.dist(exact, estimates).square().sum())
    return total / mean.stddev(9) ** 2, count * manifold.dim((4, 4))


@pytest.mark.statistical
@pytest.mark.parametrize("index", [0, 1], ids=[m.name for m in FLAT])
@pytest.mark.parametrize(("scale", "is_accepted"), [(1.0, True), (0.98, False), (1.02, False)])
def test_the_estimate_is_gaussian_around_the_clipped_mean(index, scale, is_accepted):
    """In a flat metric dist(estimate, clipped mean)^2 / sigma^2 is exactly chi-square."""
    total, freedom = summed_squares(index)
    tail = stats.chi2.cdf(total * scale**2, freedom)
    assert (FALSE_POSITIVE / 2 < tail < 1 - FALSE_POSITIVE / 2) == is_accepted


def test_its_price_is_the_gaussian_mechanisms():
    release = FlatMean(l2_norm_clip=1.0, noise_multiplier=2.5).release()
    assert accountant.epsilon([release], 1e-6) == gaussian.epsilon(1e-6, mu=1 / 2.5)
    assert release.count == 1
    free = FlatMean(l2_norm_clip=1.0, noise_multiplier=0.0).release()
    assert accountant.epsilon([free], 1e-6) == math.inf


@pytest.mark.parametrize("manifold", FLAT, ids=lambda m: m.name)
def test_one_step_of_dp_rgd_is_it(manifold):
    """Step 1/2 on dist^2 with gradients clipped to 2C: same release, same number."""
    centre, points = cloud(manifold)
    mean = FlatMean(l2_norm_clip=0.4, noise_multiplier=0.7, neighboring_relation="replace-one")
    lens = ExampleLens(
        l2_norm_clip=0.8, neighboring_relation="replace-one", noise=RelativeNoise(multiplier=0.7)
    )
    training = RSGD(step_size=0.5, minibatch=Full())
    half = ClientHalf(FrechetMean(manifold), training, lens)
    examples = Examples({"z": points}, {"z": 2})
    source = NoiseSource.from_seed(8)
    up = take_turn(half, Seat(0, 1, 0, "train"), Point(centre), None, examples, 9, source).up
    quiet = mean.model_copy(update={"noise_multiplier": 0.0})
    exact = manifold.expmap(centre, quiet.clipped_mean(centre, points, manifold))
    silent = ClientHalf(FrechetMean(manifold), training, ExampleLens(l2_norm_clip=0.8))
    plain = take_turn(silent, Seat(0, 1, 0, "train"), Point(centre), None, examples, 9, source).up
    torch.testing.assert_close(manifold.expmap(centre, plain.u), exact, rtol=1e-9, atol=1e-9)
    ours = mean.estimate(centre, points, manifold, draws_of())
    assert float(manifold.dist(ours, exact)) == pytest.approx(
        float(manifold.norm(centre, up.u - plain.u))
    )
    stated = training.releases(lens, 9)[0].noise_multiplier
    assert stated == pytest.approx(mean.release().noise_multiplier)


def test_a_bad_example_counts_as_the_centre():
    manifold = FLAT[0]
    centre, points = cloud(manifold)
    mean = FlatMean(l2_norm_clip=0.4, noise_multiplier=0.0)
    broken, neutral = points.clone(), points.clone()
    broken[2] = torch.zeros(4, 4)
    neutral[2] = centre
    found = mean.clipped_mean(centre, broken, manifold)
    torch.testing.assert_close(found, mean.clipped_mean(centre, neutral, manifold))


def test_curved_metrics_are_refused():
    check_flat(Euclidean())
    for manifold in (SPD(), Lorentz()):
        with pytest.raises(ValueError, match=f"Expected a flat metric .* got {manifold.name}"):
            check_flat(manifold)

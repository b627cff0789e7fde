"""Client-level privacy: the clip bounds one client's influence, the noise has the stated law."""

import math
from functools import lru_cache

import pytest
import torch
from scipy import stats

from manifed.federation.rounds import ServerDraws
from manifed.manifolds.sphere import Sphere
from manifed.privacy.mechanism import AdaptiveClip, ClientMechanism
from manifed.privacy.noise import NoiseSource

SPHERE = Sphere()
DIM = 51
COHORT = 5.0


def setup(seed=0, count=5, dim=DIM):
    generator = torch.Generator().manual_seed(seed)
    x = SPHERE.random(dim, generator=generator)
    u = SPHERE.proju(x, 3 * torch.randn(count, dim, generator=generator, dtype=torch.float64))
    return x, u


def mean_of(x, u, multiplier, *, space="tangent", server_round=1):
    mechanism = ClientMechanism(l2_norm_clip=0.5, noise_multiplier=multiplier)
    draws = ServerDraws(NoiseSource.from_seed(3), server_round, 0)
    return release(mechanism, u, x, draws, is_tangent=space == "tangent").mean


def release(mechanism, u, x, draws, **options):
    options = {"expected_cohort": COHORT, **options}
    return mechanism.noised_mean(u, x, SPHERE, draws.normals, **options)


@pytest.mark.parametrize("space", ["tangent", "ambient"])
def test_one_client_moves_the_mean_by_at_most_its_bound(space):
    for seed in range(20):
        x, u = setup(seed)
        with_all = mean_of(x, u, 0.0, space=space)
        without = mean_of(x, u[1:], 0.0, space=space)
        assert float((with_all - without).norm()) <= 0.5 / COHORT * (1 + 1e-12)


def test_a_client_of_nan_counts_as_zero():
    x, u = setup()
    u[0] = float("nan")
    torch.testing.assert_close(mean_of(x, u, 0.0), mean_of(x, u[1:], 0.0), rtol=0, atol=1e-14)


def test_an_empty_cohort_still_releases_its_noise():
    x, u = setup()
    noise = mean_of(x, u[:0], 2.0)
    assert float(noise.norm()) > 0
    assert abs(float(noise @ x)) < 1e-12


@lru_cache
def summed_squares(space):
    """(sum of |noise|^2 over the stated variance, degrees of freedom)."""
    x, u = setup(dim=501)
    rounds = range(1, 251)
    each = (mean_of(x, u[:0], 2.0, space=space, server_round=r) for r in rounds)
    total = sum(float(noise.square().sum()) for noise in each)
    return total / (2.0 * 0.5 / COHORT) ** 2, len(rounds) * (len(x) - (space == "tangent"))


@pytest.mark.statistical
@pytest.mark.parametrize("space", ["tangent", "ambient"])
@pytest.mark.parametrize(("scale", "is_accepted"), [(1.0, True), (0.98, False), (1.02, False)])
def test_the_noise_is_chi_square_with_the_stated_stddev(scale, is_accepted, space):
    total, freedom = summed_squares(space)
    tail = stats.chi2.cdf(total * scale**2, freedom)
    assert (5e-7 < tail < 1 - 5e-7) == is_accepted


def adaptive_mechanism(multiplier=0.5):
    adaptive = AdaptiveClip(target_quantile=0.5, quantile_noise_multiplier=5.0)
    return ClientMechanism(l2_norm_clip=20.0, noise_multiplier=multiplier, adaptive=adaptive)


def test_quantile_and_mean_together_cost_the_stated_multiplier():
    mechanism = adaptive_mechanism()
    together = (mechanism.upload_noise_multiplier**-2 + 5.0**-2) ** -0.5
    assert together == pytest.approx(0.5, rel=1e-12)
    cheap = mechanism.model_copy(update={"adaptive": AdaptiveClip(quantile_noise_multiplier=0.4)})
    with pytest.raises(ValueError, match=r"quantile_noise_multiplier > .*0\.5.* got 0\.4"):
        assert cheap.upload_noise_multiplier


def test_the_clip_norm_finds_the_median_of_the_norms():
    generator = torch.Generator().manual_seed(0)
    x = SPHERE.random(DIM, generator=generator)
    u = SPHERE.proju(x, torch.randn(200, DIM, generator=generator, dtype=torch.float64))
    lengths = torch.linspace(0.5, 1.5, 200, dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True) * lengths[:, None]
    mechanism = adaptive_mechanism()
    clip = 20.0
    for server_round in range(1, 101):
        draws = ServerDraws(NoiseSource.from_seed(3), server_round, 0)
        clip = release(mechanism, u, x, draws, expected_cohort=200.0, l2_norm_clip=clip).next_clip
    assert 0.9 < clip < 1.1


def test_one_client_moves_the_quantile_by_at_most_its_sensitivity():
    x, u = setup(count=9)
    mechanism = adaptive_mechanism(multiplier=0.0)
    draws = ServerDraws(NoiseSource.from_seed(3), 1, 0)

    def log_clip(uploads):
        return math.log(release(mechanism, uploads, x, draws, l2_norm_clip=3.0).next_clip)

    moved = abs(log_clip(u) - log_clip(u[1:]))
    assert moved == pytest.approx(0.2 * 0.5 / COHORT, rel=1e-9)


def test_replacing_a_client_is_noised_as_two_changes():
    x, u = setup()
    made = []
    for relation in ("add-or-remove", "replace-one"):
        mechanism = ClientMechanism(
            l2_norm_clip=0.5, noise_multiplier=2.0, neighboring_relation=relation
        )
        draws = ServerDraws(NoiseSource.from_seed(3), 1, 0)
        made.append(release(mechanism, u[:0], x, draws).mean)
    torch.testing.assert_close(made[1], 2 * made[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_mean_divides_by_the_expected_cohort_whoever_came(count):
    x, u = setup(count=count)
    small = 1e-3 * u / u.norm(dim=1, keepdim=True)
    expected = small.sum(0) / COHORT
    torch.testing.assert_close(mean_of(x, small, 0.0), expected, rtol=1e-12, atol=1e-18)

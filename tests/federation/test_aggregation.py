"""Client-level privacy: the clip bounds one client's influence, the noise has the stated law."""

import math

import pytest
import torch

from manifed.federation.plan import ServerDraws
from manifed.manifolds.sphere import Sphere
from manifed.privacy.mechanism import AdaptiveClip, ClientMechanism
from manifed.privacy.random_numbers import NoiseSource
from tests.statistics.laws import assert_chi_square
from tests.tensors import normals

SPHERE = Sphere()
COHORT = 5.0


def setup(seed=0, count=5, dim=51):
    x = SPHERE.projx(normals(seed, dim))
    return x, SPHERE.proju(x, 3 * normals(seed + 1000, count, dim))


def mean_of(x, u, multiplier, *, space="tangent", server_round=1):
    mechanism = ClientMechanism(l2_norm_clip=0.5, noise_multiplier=multiplier)
    return release(mechanism, u, x, server_round, is_tangent=space == "tangent")[0]


def release(mechanism, u, x, server_round=1, expected_cohort=COHORT, **options):
    draws = ServerDraws(NoiseSource.from_seed(3), server_round, 0)
    return mechanism.noised_mean(
        u, x, SPHERE, draws.normals, expected_cohort=expected_cohort, **options
    )


@pytest.mark.statistical
@pytest.mark.parametrize("space", ["tangent", "ambient"])
def test_the_noise_is_chi_square_with_the_stated_stddev(space):
    x, u = setup(dim=501)
    rounds = range(1, 251)
    each = (mean_of(x, u[:0], 2.0, space=space, server_round=r) for r in rounds)
    total = sum(float(noise.square().sum()) for noise in each) / (2.0 * 0.5 / COHORT) ** 2
    assert_chi_square(total, len(rounds) * (len(x) - (space == "tangent")))


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
    x, u = setup(count=200)
    u *= torch.linspace(0.5, 1.5, 200)[:, None] / u.norm(dim=1, keepdim=True)
    mechanism = adaptive_mechanism()
    clip = 20.0
    for server_round in range(1, 101):
        _, clip = release(mechanism, u, x, server_round, 200.0, l2_norm_clip=clip)
    assert 0.9 < clip < 1.1


def test_one_client_moves_the_quantile_by_at_most_its_sensitivity():
    x, u = setup(count=9)
    mechanism = adaptive_mechanism(multiplier=0.0)
    one, other = (release(mechanism, part, x, l2_norm_clip=3.0)[1] for part in (u, u[1:]))
    assert abs(math.log(one / other)) == pytest.approx(0.2 * 0.5 / COHORT, rel=1e-9)


def test_replacing_a_client_is_noised_as_two_changes():
    x, u = setup()
    two = ClientMechanism(
        l2_norm_clip=0.5, noise_multiplier=2.0, neighboring_relation="replace-one"
    )
    torch.testing.assert_close(
        release(two, u[:0], x)[0], 2 * mean_of(x, u[:0], 2.0), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_mean_divides_by_the_expected_cohort_whoever_came(count):
    x, u = setup(count=count)
    small = 1e-3 * u / u.norm(dim=1, keepdim=True)
    expected = small.sum(0) / COHORT
    torch.testing.assert_close(mean_of(x, small, 0.0), expected, rtol=1e-12, atol=1e-18)

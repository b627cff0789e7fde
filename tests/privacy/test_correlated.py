"""Gaussian noise with a covariance: exact by one coordinate, against integrals over the plane."""

import math
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from pydantic import ValidationError

from manifed.privacy import accountant
from manifed.privacy.charges import Reservation, Terms
from manifed.privacy.cohorts import members
from manifed.privacy.covariance import largest_mu
from manifed.privacy.events import CorrelatedRelease, GaussianRelease, PoissonSampled, Unsampled
from manifed.privacy.odometer import Odometer

SIGMA = ((2.0, 0.9), (0.9, 1.0))
CHANGES = ((1.0, 0.2), (-0.3, 1.0), (0.5, 0.6))
WHO = {"unit": "example", "neighboring_relation": "add-or-remove"}


def release(**changes):
    return CorrelatedRelease(**WHO, **{"covariance": SIGMA, "sensitivities": CHANGES, **changes})


def delta_on_the_plane(s, rate, epsilon, step=0.05, far=9.0):
    """The hockey-stick divergence of q N(s, Sigma) + (1 - q) N(0, Sigma) and N(0, Sigma)."""
    ticks = np.arange(-far, far, step)
    grid = np.stack(np.meshgrid(ticks, ticks, indexing="ij"), axis=-1)
    inverse, scale = np.linalg.inv(SIGMA), 2 * math.pi * math.sqrt(np.linalg.det(SIGMA))

    def density(mean):
        off = grid - np.asarray(mean)
        return np.exp(-0.5 * np.einsum("...i,ij,...j->...", off, inverse, off)) / scale

    absent = density((0.0, 0.0))
    present = (1 - rate) * absent + rate * density(s)
    both = ((present, absent), (absent, present))
    return max((np.maximum(p - math.exp(epsilon) * q, 0)).sum() * step**2 for p, q in both)


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_the_price_is_that_of_the_worst_change_by_brute_force(rate, epsilon):
    sampling = Unsampled() if rate == 1 else PoissonSampled(sampling_probability=rate)
    brute = max(delta_on_the_plane(s, rate, epsilon) for s in CHANGES)
    found = accountant.delta([release(sampling=sampling)], epsilon)
    assert found == pytest.approx(brute, rel=2e-3)
    between = np.mean(CHANGES, axis=0)  # no change of the convex hull costs more
    assert delta_on_the_plane(between, rate, epsilon) < brute


def test_the_mu_is_exact_and_never_below():
    generator = np.random.default_rng(0)
    for size in (1, 3, 8):
        a = generator.normal(size=(size, size))
        sigma = a @ a.T + 1e-6 * np.eye(size)
        sigma = (sigma + sigma.T) / 2
        s = generator.normal(size=size)
        with mp.workdps(60):
            exact = mp.sqrt((mp.matrix(s).T * mp.lu_solve(mp.matrix(sigma), mp.matrix(s)))[0])
            found = largest_mu(tuple(map(tuple, sigma)), (tuple(s),))
            assert exact <= found <= exact * (1 + mp.mpf(10) ** -9)
            z = release(covariance=sigma.tolist(), sensitivities=[s.tolist()]).noise_multiplier
            assert z <= 1 / exact


def test_without_correlation_it_is_the_gaussian_release_and_composes_with_it():
    plain = GaussianRelease(**WHO, noise_multiplier=2.0, count=3)
    same = release(covariance=((4.0, 0.0), (0.0, 4.0)), sensitivities=((1.0, 0.0),), count=3)
    assert accountant.epsilon([same], 1e-5) == pytest.approx(accountant.epsilon([plain], 1e-5))
    both = accountant.epsilon([plain, same], 1e-5)
    assert both == pytest.approx(accountant.epsilon([plain.times(2)], 1e-5))
    still = release(sensitivities=((0.0, 0.0),))
    assert accountant.epsilon([still], 1e-5) == 0.0
    prices = [accountant.epsilon([release().times(n)], 1e-5) for n in (1, 2, 4)]
    assert all(a < b for a, b in pairwise(prices))


@pytest.mark.parametrize("sampling", [Unsampled(), PoissonSampled(sampling_probability=0.2)])
def test_a_ledger_carries_and_prices_it(sampling):
    event = release(sampling=sampling, count=2)
    terms = Terms(population=1, updates=({"partitions": (0,), "releases": (event,)},))
    body = Reservation(1, 3, 0, members([0]), terms=terms).body()
    found = Reservation.of_body(body, None)
    assert found.terms == terms
    odometer = Odometer()
    odometer.reserve(found)
    server, _ = odometer.spent(1e-5)
    assert server.epsilon == pytest.approx(accountant.epsilon([event.times(3)], 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"covariance": ((1.0, 0.5), (0.4, 1.0))}, "symmetric"),
        ({"covariance": ((1.0, 1.0), (1.0, 1.0))}, "positive definite"),
        ({"covariance": ((1.0, 0.0), (0.0, -1.0))}, "positive definite"),
        ({"sensitivities": ((1.0,),)}, "sensitivities: expected vectors of length 2"),
        ({"sensitivities": ()}, "at least 1 item"),
        ({"covariance": ((1.0, math.nan), (math.nan, 1.0))}, "finite"),
    ],
)
def test_what_has_no_price_is_refused(changes, match):
    with pytest.raises(ValidationError, match=match):
        release(**changes)

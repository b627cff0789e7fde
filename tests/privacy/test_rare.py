"""Releases of tiny sampling rates have a price at once, and it is an upper bound."""

import math
import time

import pytest

from manifed.privacy import accountant, gaussian, rare
from manifed.privacy.calibration import least_multiplier
from tests.privacy.releases import poisson, release

DELTA = 1e-5


def step(rate, count=600, z=1.0):
    return poisson(z, rate, count)


@pytest.mark.parametrize("rate", [9e-7, 1e-9, 1e-12, 1e-300, 5e-324])
def test_a_tiny_rate_is_priced_and_calibrated_at_once(rate):
    began = time.process_time()
    assert 0 <= accountant.epsilon([step(rate)], DELTA) < 20
    found = least_multiplier(lambda z: accountant.epsilon([step(rate, z=z)], DELTA), 2.0)
    assert accountant.epsilon([step(rate, z=found)], DELTA) <= 2.0
    assert time.process_time() - began < 2.0


def exact(q, z, n, epsilon):
    """delta of n releases with the coins revealed, by the binomial formula itself."""
    return math.fsum(
        math.comb(n, k) * q**k * (1 - q) ** (n - k) * gaussian.delta(epsilon, mu=math.sqrt(k) / z)
        for k in range(1, n + 1)
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_the_bound_is_the_mixture_over_the_revealed_coins(epsilon):
    q, z, n = 5e-7, 0.7, 40
    assert rare.delta([(z, q, n)], 0.0, epsilon) == pytest.approx(exact(q, z, n, epsilon), rel=1e-6)


def test_it_lies_above_the_accountant_that_keeps_the_coins_hidden():
    hidden = accountant.delta([step(1e-6, count=100)], 0.5)
    assert rare.delta([(1.0, 1e-6, 100)], 0.0, 0.5) >= hidden


def test_epsilon_and_delta_are_inverse_and_monotone():
    groups = [(1.0, 5e-7, 10**6), (0.8, 1e-8, 10**6)]
    found = rare.epsilon(groups, 0.3, DELTA)
    assert rare.delta(groups, 0.3, found) <= DELTA
    assert rare.delta(groups, 0.3, found * (1 - 1e-6)) > DELTA
    assert rare.epsilon([(1.0, 5e-7, 2 * 10**6), groups[1]], 0.3, DELTA) >= found
    assert rare.epsilon(groups, 0.4, DELTA) >= found


def test_less_than_delta_of_participation_costs_nothing_and_more_costs_something():
    assert accountant.epsilon([step(1e-9, count=9000, z=0.01)], DELTA) == 0.0
    assert accountant.epsilon([step(1e-9, count=11000, z=0.01)], DELTA) > 1.0


def test_a_rare_release_beside_plain_ones_costs_at_least_what_they_cost():
    plain = release(2.0)
    alone = accountant.epsilon([plain], DELTA)
    assert alone <= accountant.epsilon([plain, step(1e-9)], DELTA) <= alone * 1.2

"""Closed forms of the Gaussian mechanism: exact, one-sided, and inverse to each other."""

import math

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr as phi

from manifed.privacy.composition import compose, gaussian_delta, gaussian_epsilon
from tests.privacy.releases import release

MUS = st.integers(-60, 30).map(lambda n: 10.0 ** (n / 10))
DELTAS = st.integers(1, 24).map(lambda n: 10.0 ** (-n / 2))


def composed_mu(*pairs):
    return compose(release(z, count=count) for z, count in pairs).mu


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_delta_is_the_textbook_formula_rounded_up(epsilon, mu):
    expected = phi(-epsilon / mu + mu / 2) - math.exp(epsilon) * phi(-epsilon / mu - mu / 2)
    found = gaussian_delta(epsilon, mu=mu)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert found >= expected - 1e-16


@given(MUS, DELTAS)
def test_epsilon_agrees_with_dp_accounting_and_errs_on_the_private_side(mu, delta):
    found = gaussian_epsilon(delta, mu=mu)
    assert gaussian_delta(found, mu=mu) <= delta
    if found > 0:
        assert gaussian_delta(found * (1 - 1e-9), mu=mu) > delta * (1 - 1e-6)
        with np.errstate(divide="ignore"):
            theirs = gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta)
        assert found == pytest.approx(theirs, rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), max_size=5))
def test_composition_adds_squares(pairs):
    found = composed_mu(*((z / 10, count) for z, count in pairs))
    assert found**2 == pytest.approx(sum(100 * count / z**2 for z, count in pairs), rel=1e-12)


def test_extremes():
    assert gaussian_epsilon(0.0, mu=1.0) == math.inf
    assert gaussian_epsilon(0.0, mu=0.0) == 0.0
    assert gaussian_epsilon(1.0, mu=math.inf) == 0.0
    assert gaussian_epsilon(0.5, mu=math.inf) == math.inf
    assert gaussian_delta(math.inf, mu=5.0) == 0.0
    assert composed_mu((0.0, 1)) == math.inf
    assert composed_mu((0.0, 0)) == 0.0
    assert 4.9e5 < gaussian_epsilon(1e-5, mu=1000.0) < 5.1e5
    assert 0 < gaussian_epsilon(1e-300, mu=1e-6) < 1e-4

"""Calibration ends on the private side, wastes little, and says when it cannot."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.privacy import epsilon_bounds
from manifed.privacy.composition import gaussian_delta
from manifed.privacy.epsilon_bounds import least_multiplier
from tests.privacy.releases import outside, poisson, release, subset

STEPS = {
    "unsampled": lambda z, n: release(z, count=n),
    "poisson": lambda z, n: poisson(z, 0.05, n),
    "subset": lambda z, n: subset(z, 10, 1000, n),
}


def price(kind, multiplier, count=1, delta=1e-5):
    return epsilon_bounds.epsilon([STEPS[kind](multiplier, count)], delta)


def check(cost, target):
    """What is found costs at most the target, and wastes little of it."""
    found = least_multiplier(cost, target)
    assert 0.995 * target <= cost(found) <= target
    return found


@settings(max_examples=15)
@given(
    st.sampled_from(["unsampled", "poisson"]),
    st.integers(1, 400),
    st.integers(-20, 20).map(lambda n: 10.0 ** (n / 20)),
    st.integers(2, 9).map(lambda n: 10.0**-n),
)
def test_calibrated_noise_never_exceeds_the_target_and_wastes_little(kind, count, target, delta):
    check(lambda z: price(kind, z, count, delta), target)


@pytest.mark.slow
def test_subsets_are_calibrated_too():
    check(lambda z: price("subset", z, 100), 1.0)


def test_any_price_can_be_the_target():
    external = check(lambda z: outside([poisson(z, 0.05, 3)], 0.1, 50), 2.0)
    assert external < check(lambda z: price("poisson", z, 150), 2.0)


@pytest.mark.parametrize(("target", "delta"), [(1e-3, 1e-9), (1.0, 1e-5), (50.0, 0.3)])
def test_the_unsampled_answer_is_the_closed_form(target, delta):
    found = least_multiplier(lambda z: price("unsampled", z, 1, delta), target)
    spent, saved = (gaussian_delta(target, mu=f / found) for f in (1 - 1e-9, 1.005))
    assert spent <= delta <= saved


def test_a_run_without_releases_needs_no_noise():
    assert least_multiplier(lambda z: price("poisson", z, 0), 1.0) == 0.0


def test_a_target_no_noise_meets_is_refused_with_its_numbers():
    with pytest.raises(ValueError, match=r"No noise multiplier .* target_epsilon = 0.25"):
        least_multiplier(lambda z: 0.5 + price("unsampled", z), 0.25)


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf])
def test_targets_that_are_none_are_refused(target):
    with pytest.raises(ValueError, match="target_epsilon"):
        least_multiplier(lambda z: price("unsampled", z), target)

"""Calibration ends on the private side, wastes little, and says when it cannot."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.privacy import accountant, gaussian
from manifed.privacy.calibration import noise_multiplier
from manifed.privacy.events import (
    GaussianRelease,
    PoissonSampled,
    SampledWithoutReplacement,
    Unsampled,
    repeated,
)
from manifed.privacy.participation import external_epsilon

settings.register_profile("privacy", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("privacy")
SAMPLINGS = {
    "unsampled": (Unsampled(), "add-or-remove"),
    "poisson": (PoissonSampled(sampling_probability=0.05), "add-or-remove"),
    "subset": (SampledWithoutReplacement(sample_size=10, population=1000), "replace-one"),
}


def maker(kind, count=1):
    sampling, relation = SAMPLINGS[kind]

    def make(multiplier):
        return [
            GaussianRelease(
                unit="example",
                neighboring_relation=relation,
                noise_multiplier=multiplier,
                sampling=sampling,
                count=count,
            )
        ]

    return make


def wastes_little(price, target):
    return 0.995 * target <= price <= target


@settings(max_examples=15)
@given(
    st.sampled_from(["unsampled", "poisson"]),
    st.integers(1, 400),
    st.integers(-20, 20).map(lambda n: 10.0 ** (n / 20)),
    st.integers(2, 9).map(lambda n: 10.0**-n),
)
def test_calibrated_noise_never_exceeds_the_target_and_wastes_little(kind, count, target, delta):
    make = maker(kind, count)
    found = noise_multiplier(make, target_epsilon=target, target_delta=delta)
    assert wastes_little(accountant.epsilon(make(found), delta), target)


@pytest.mark.slow
def test_subsets_are_calibrated_too():
    make = maker("subset", 100)
    found = noise_multiplier(make, target_epsilon=1.0, target_delta=1e-5)
    assert wastes_little(accountant.epsilon(make(found), 1e-5), 1.0)


def test_any_price_can_be_the_target():
    def price(releases, delta):
        return external_epsilon(releases, participation_probability=0.1, num_rounds=50, delta=delta)

    make = maker("poisson", 3)
    found = noise_multiplier(make, target_epsilon=2.0, target_delta=1e-5, price=price)
    assert wastes_little(price(make(found), 1e-5), 2.0)
    server = noise_multiplier(
        lambda z: repeated(make(z), 50), target_epsilon=2.0, target_delta=1e-5
    )
    assert found < server


@pytest.mark.parametrize(("target", "delta"), [(1e-3, 1e-9), (1.0, 1e-5), (50.0, 0.3)])
def test_the_unsampled_answer_is_the_closed_form(target, delta):
    found = noise_multiplier(maker("unsampled"), target_epsilon=target, target_delta=delta)
    least = 1 / gaussian.largest_mu(target, delta)
    assert least * (1 - 1e-9) <= found <= least * 1.005


def test_a_run_without_releases_needs_no_noise():
    found = noise_multiplier(maker("poisson", 0), target_epsilon=1.0, target_delta=1e-5)
    assert found == 0.0


def test_a_target_no_noise_meets_is_refused_with_its_numbers():
    def price(releases, delta):
        return 0.5 + accountant.epsilon(releases, delta)

    with pytest.raises(ValueError, match=r"No noise multiplier .* target_epsilon = 0.25"):
        noise_multiplier(maker("unsampled"), target_epsilon=0.25, target_delta=1e-5, price=price)


@pytest.mark.parametrize(
    ("target", "delta", "message"),
    [
        (0.0, 1e-5, "target_epsilon"),
        (-1.0, 1e-5, "target_epsilon"),
        (math.inf, 1e-5, "target_epsilon"),
        (1.0, 0.0, "target_delta"),
        (1.0, 1.0, "target_delta"),
    ],
)
def test_targets_that_are_none_are_refused(target, delta, message):
    with pytest.raises(ValueError, match=message):
        noise_multiplier(maker("unsampled"), target_epsilon=target, target_delta=delta)

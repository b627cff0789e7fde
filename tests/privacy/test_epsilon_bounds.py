"""Prices agree with dp-accounting and closed forms, are monotone, and refuse by name."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from manifed.privacy.composition import NoValidBound, gaussian_epsilon
from manifed.privacy.events import Release, repeated
from tests.golden.make_privacy_epsilons import composed
from tests.privacy.releases import cost, laplace, outside, poisson, release, subset

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "privacy_epsilons.json").read_text())


@pytest.mark.golden
def test_the_golden_table_covers_every_adversary_and_sampling():
    assert len(GOLDEN) >= 60
    seen = {(c["adversary"], r["sampling"]["kind"]) for c in GOLDEN for r in c["releases"]}
    assert len(seen) == 9


@pytest.mark.golden
@pytest.mark.parametrize(
    "case",
    GOLDEN,
    ids=[f"{c['adversary']} {c['name']} {c['times']} {c['delta']:g}" for c in GOLDEN],
)
def test_epsilon_agrees_with_dp_accounting(case):
    releases = [Release.model_validate(r) for r in case["releases"]]
    if case["adversary"] == "external":
        found = outside(releases, case["rate"], case["times"], case["delta"])
    else:
        found = cost(*repeated(releases, case["times"]), delta=case["delta"])
    assert found == pytest.approx(case["epsilon"], rel=1e-3)


def by_dp_accounting(releases):
    return composed([one.model_dump() for one in releases], 1, 1e-5)


@pytest.mark.parametrize(
    "releases",
    [
        [release(2.0, count=3)],
        [poisson(1.0, 0.1, 4), release(9.0)],
        [subset(2.0, 3, 300, 5)],
        [laplace(1.0)],
        [laplace(10.0, 500)],
        [laplace(5.0, 20), release(3.0, count=5)],
        [laplace(20.0, 99), poisson(1.0, 0.01, 9)],
    ],
)
def test_releases_cost_the_same_at_dp_accounting(releases):
    found = cost(*releases)
    assert found == pytest.approx(by_dp_accounting(releases), rel=1e-3)


@pytest.mark.parametrize(
    ("releases", "words"),
    [
        ([release(1.0), release(1.0, unit="client")], "one privacy unit"),
        ([release(1.0), release(1.0, relation="replace-one")], "one neighbouring relation"),
        (
            [poisson(1.0, 0.1, relation="replace-one")],
            "Poisson sampling is priced under add-or-remove",
        ),
        (
            [subset(1.0, 1, 10, relation="add-or-remove")],
            "without replacement is priced under replace-one",
        ),
    ],
)
def test_a_combination_without_a_bound_is_refused_by_name(releases, words):
    with pytest.raises(NoValidBound, match=words):
        cost(*releases, delta=0.5)


@pytest.mark.parametrize("z", [0.3, 1.0, 8.0])
def test_one_laplace_release_costs_its_closed_form_and_many_at_most_their_sum(z):
    """delta(epsilon) = 1 - exp((epsilon - 1/z) / 2), by its hockey-stick divergence."""
    for delta in (1e-2, 1e-5):
        exact = 1 / z + 2 * math.log1p(-delta)
        found = cost(laplace(z), delta=delta)
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-4)
    half = cost(laplace(z), delta=-math.expm1(-0.25 / z))
    assert half == pytest.approx(0.5 / z, rel=1e-4)
    assert cost(laplace(z, 7), delta=0.0) == pytest.approx(7 / z, rel=1e-9)
    assert cost(laplace(z, 7), delta=1e-9) <= 7 / z * SLACK


def test_laplace_noise_composes_with_whatever_else_was_released():
    both = [laplace(9.0, 30), release(4.0, count=3)]
    for part in ([both[0]], [both[1]]):
        assert cost(*part) < cost(*both)
    assert cost(*both, delta=0.0) == math.inf
    subsets = [subset(2.0, 3, 300, 5), laplace(9.0, 30, "replace-one")]
    most = cost(release(2.0, count=5), laplace(9.0, 30))
    assert cost(*subsets[:1]) < cost(*subsets) <= most * SLACK
    rare = [poisson(2.0, 1e-8, 9), laplace(9.0, 30)]
    assert cost(*rare) < 1.05 * cost(laplace(9.0, 30), delta=1e-6)
    seen = cost(laplace(9.0, 20))
    assert 0 < outside([laplace(9.0)], 0.1, 20) < seen


@pytest.mark.parametrize(
    "bare", [release(0.0), poisson(0.0, 0.01), subset(0.0, 1, 9), laplace(0.0), laplace(1e-3)]
)
def test_no_noise_is_an_infinite_epsilon(bare):
    assert cost(bare) == math.inf
    assert cost(bare, delta=0.0) == math.inf
    noised = release(5.0, relation=bare.neighboring_relation)
    assert cost(noised, bare) == math.inf


@pytest.mark.parametrize("z", [1e-3, 1e-9, 1e-160, 5e-324, 1e9, 1e300])
def test_extreme_noise_has_a_price(z):
    for bare in (release(z), poisson(z, 0.5, 3), subset(z, 3, 9)):
        epsilon = cost(bare)
        assert epsilon > 1e5 if z < 1 else epsilon < 1e-3


@pytest.mark.parametrize("rate", [9e-7, 1e-9, 1e-12, 5e-324])
def test_a_tiny_sampling_rate_costs_little_and_no_more_than_more(rate):
    found = cost(poisson(1.0, rate, 600))
    assert 0 <= found <= cost(poisson(1.0, 1e-6, 600)) + 0.3
    sure = cost(poisson(0.01, rate, 600))
    assert found <= sure <= cost(release(0.01, count=600))
    seen = [poisson(2.0, rate, 600), release(3.0)]
    assert cost(*seen) >= cost(*seen[1:])


def test_the_ends_of_delta_and_of_counts():
    for releases in ([], [release(0.0, count=0)], [poisson(0.0, 0.5, 0)]):
        assert cost(*releases, delta=0.0) == 0.0
    for releases in ([release(1.0)], [poisson(1.0, 0.1, 9)], [subset(1.0, 1, 10)]):
        assert cost(*releases, delta=0.0) == math.inf
        assert cost(*releases, delta=1.0) == 0.0
        assert math.isfinite(cost(*releases, delta=1e-200))


@pytest.mark.parametrize("delta", [-1e-9, 1.1, math.nan])
def test_a_delta_that_is_no_probability_is_refused(delta):
    with pytest.raises(ValueError, match="0 <= delta <= 1"):
        cost(release(1.0), delta=delta)


def test_sampling_everybody_is_no_sampling():
    exact = cost(release(2.0, count=5))
    assert cost(poisson(2.0, 1.0, 5)) == exact
    assert cost(subset(2.0, 7, 7, 5)) == exact


@pytest.mark.parametrize(("size", "epsilon_of_everybody"), [(200, 1.0), (600, 4.0), (1190, 12.0)])
def test_sampling_never_costs_more_than_taking_everybody(size, epsilon_of_everybody):
    """The published subset bound does at high rates; the smaller of the two holds."""
    price = lambda mu: gaussian_epsilon(1e-5, mu=mu) - epsilon_of_everybody  # noqa: E731
    z = math.sqrt(60) / optimize.brentq(price, 0.01, 10)
    sampled = [subset(z, size, 1200, 60), release(3 * z, relation="replace-one")]
    whole = [release(z, count=60, relation="replace-one"), sampled[1]]
    most = cost(*whole)
    assert cost(*sampled) <= most * SLACK
    least = min(map(by_dp_accounting, (whole, sampled)))
    assert cost(*sampled) == pytest.approx(least, rel=2e-3)


@pytest.mark.parametrize("size", [1, 300, 700, 999])
@pytest.mark.parametrize("z", [0.7, 2.0])
def test_a_price_of_a_subset_is_not_below_what_one_record_gives_away(size, z):
    """The record is +1/2 or -1/2 and all others 0: delta by quadrature, unpriced for less."""
    q = size / 1000
    x = np.linspace(-12 * z, 12 * z, 200_001)
    one, other = ((1 - q) * _density(x, z) + q * _density(x - s, z) for s in (0.5, -0.5))
    for epsilon in (0.01, 0.1, 0.5, 1.0):
        least = np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0.0), x)
        if least > 0:
            priced = cost(subset(z, size, 1000), delta=least * (1 - 1e-6))
            assert priced >= epsilon * (1 - 1e-6)


def _density(x, z):
    return np.exp(-((x / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi))


NOISES = st.integers(6, 60).map(lambda n: n / 10)
RATES = st.integers(1, 60).map(lambda n: n / 100)
COUNTS = st.integers(1, 300)
DELTAS = st.integers(2, 9).map(lambda n: 10.0**-n)
SLACK = 1 + 1e-9


@settings(max_examples=40)
@given(st.sampled_from(["unsampled", "poisson", "laplace"]), NOISES, RATES, COUNTS, DELTAS)
def test_prices_are_monotone_in_every_parameter(kind, z, q, count, delta):
    def price(z, count=count, delta=delta, rate=q):
        made = {"unsampled": release(z, count=count), "poisson": poisson(z, rate, count),
                "laplace": laplace(10 * z, count)}  # fmt: skip
        return cost(made[kind], delta=delta)

    base = price(z)
    assert price(1.05 * z) <= base * SLACK
    for dearer in (price(z, count + 1), price(z, delta=delta / 2), price(z, rate=1.05 * q)):
        assert dearer * SLACK >= base
    if kind == "poisson":
        assert base <= cost(release(z, count=count), delta=delta) * (1 + 1e-4)
        more = [poisson(z, q, count), release(9.0)]
        assert cost(*more, delta=delta) * SLACK >= base


@pytest.mark.slow
@pytest.mark.parametrize(("z", "size", "count"), [(1.0, 1, 300), (2.5, 50, 30), (4.0, 20, 1)])
def test_subset_prices_are_monotone_in_every_parameter(z, size, count):
    base = cost(subset(z, size, 1000, count))
    assert cost(subset(1.05 * z, size, 1000, count)) <= base
    for dearer in (subset(z, size + 1, 1000, count), subset(z, size, 1000, count + 1)):
        assert cost(dearer) >= base


def test_a_run_that_asks_after_every_round_is_not_slow():
    """200 growing counts share their transforms; a generous bound for a busy machine."""
    import time

    began = time.process_time()
    for count in range(1, 201):
        cost(poisson(1.07, 0.053, 3 * count))
    assert time.process_time() - began < 10.0

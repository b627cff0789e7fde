"""A private search costs what Papernot and Steinke (2022) prove, and is drawn from that law."""

import math

import mpmath
import pytest

from manifed.privacy import renyi
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import GaussianRelease, PoissonSampled
from manifed.privacy.tuning import Search, epsilon

DELTA = 1e-5


def gaussian(multiplier, **more):
    return GaussianRelease(
        unit="example", neighboring_relation="add-or-remove", noise_multiplier=multiplier, **more
    )


def law(eta, gamma, k):
    """Definition 1 as printed: a product over l."""
    eta, gamma = mpmath.mpf(eta), mpmath.mpf(gamma)
    if eta == 0:
        return (1 - gamma) ** k / (k * mpmath.log(1 / gamma))
    product = mpmath.mpf(1)
    for i in range(k):
        product *= (i + eta) / (i + 1)
    return (1 - gamma) ** k / (gamma**-eta - 1) * product


def theorem_2(multiplier, search):
    """The least epsilon of Theorem 2 and Proposition 12 of Canonne, Kamath, Steinke over orders."""
    rho = 1 / (2 * mpmath.mpf(multiplier) ** 2)
    gamma, eta = mpmath.mpf(search.gamma), mpmath.mpf(search.shape)
    orders = [mpmath.mpf(float(a)) for a in renyi.orders() if a > 1]
    constant = min((1 + eta) * ((1 - 1 / b) * rho * b + mpmath.log(1 / gamma) / b) for b in orders)
    return min(
        rho * a + constant + mpmath.log(mpmath.mpf(search.mean)) / (a - 1)
        + mpmath.log1p(-1 / a) - mpmath.log(mpmath.mpf(DELTA) * a) / (a - 1)
        for a in orders
    )  # fmt: skip


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("mean", [1.5, 10.0, 200.0])
def test_the_number_of_runs_follows_the_printed_law(shape, mean):
    search = Search(mean=mean, shape=shape)
    for k in (1, 2, 7, 40):
        expected = law(shape, search.gamma, k)
        assert search.probability(k) == pytest.approx(float(expected), rel=1e-9)
    if mean > 100:
        return
    most = 40 * int(mean) + 400
    weights = [search.probability(k) for k in range(most)]
    assert math.fsum(weights) == pytest.approx(1.0, abs=2e-3 if shape == 0 else 1e-6)
    found = math.fsum(k * p for k, p in enumerate(weights))
    assert found == pytest.approx(mean, rel=1e-2)


@pytest.mark.parametrize("shape", [0.5, 1.0, math.inf])
def test_a_draw_inverts_the_distribution(shape):
    search = Search(mean=4.0, shape=shape)
    below = 0.0
    for k in range(12):
        here = search.probability(k)
        if here > 1e-9:
            assert search.draw(below + here / 2) == k
        below += here


@pytest.mark.parametrize("shape", [0.0, 1.0])
@pytest.mark.parametrize(("multiplier", "mean"), [(2.0, 10.0), (8.0, 3.0), (30.0, 100.0)])
def test_a_search_costs_what_theorem_2_says(multiplier, mean, shape):
    search = Search(mean=mean, shape=shape)
    expected = float(theorem_2(multiplier, search))
    assert epsilon([gaussian(multiplier)], search, DELTA) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mean", [2.0, 20.0])
def test_a_poisson_search_costs_what_theorem_6_says(mean):
    rho, found = 1 / (2 * 5.0**2), []
    orders = [float(a) for a in renyi.orders() if a > 1]
    for a in orders:
        level = math.log1p(1 / (a - 1))
        slack = renyi.delta(renyi.orders() * rho, level)
        total = rho * a + mean * slack + math.log(mean) / (a - 1)
        found.append(total + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1))
    search = Search(mean=mean, shape=math.inf)
    assert epsilon([gaussian(5.0)], search, DELTA) == pytest.approx(max(0, min(found)), rel=1e-6)


def test_a_search_costs_more_than_a_run_and_more_the_longer_it_is():
    release = [gaussian(10.0)]
    one = renyi.epsilon(renyi.orders() / 200, DELTA)
    costs = [epsilon(release, Search(mean=mean), DELTA) for mean in (1.0, 5.0, 50.0)]
    assert one < costs[0] < costs[1] < costs[2] < 4 * one
    assert epsilon(release * 3, Search(mean=5.0), DELTA) > costs[1]


def test_what_has_no_price_is_refused():
    assert epsilon([], Search(mean=3.0), DELTA) == 0.0
    assert epsilon([gaussian(0.0)], Search(mean=3.0), DELTA) == math.inf
    sampled = gaussian(2.0, sampling=PoissonSampled(sampling_probability=0.1))
    assert (
        0
        < epsilon([sampled], Search(mean=3.0), DELTA)
        < epsilon([gaussian(2.0)], Search(mean=3.0), DELTA)
    )
    other = gaussian(2.0).model_copy(update={"neighboring_relation": "replace-one"})
    with pytest.raises(NoValidBound, match="one neighbouring relation"):
        epsilon([gaussian(2.0), other], Search(mean=3.0), DELTA)
    with pytest.raises(ValueError, match="0 < delta < 1, got 0"):
        epsilon([gaussian(2.0)], Search(mean=3.0), 0)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Search(mean=0.5)

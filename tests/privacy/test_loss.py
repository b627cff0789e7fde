"""Loss distributions are upper bounds, agree with closed forms, and compose like convolutions."""

import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr as phi

from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.loss import Loss, LossPmf, gaussian_loss
from manifed.privacy.renyi import subset_divergences
from tests.tensors import assert_near

SETTINGS = [(1.0, 0.05), (0.5, 0.01), (2.0, 0.3), (0.3, 0.5), (5.0, 0.001)]


def exact_delta(epsilon, z, q):
    """Hockey sticks of the sampled Gaussian: the better of removing and adding an example."""

    inner = math.exp(epsilon) - (1 - q)
    removed = 0.0
    if inner > 0:
        x = z**2 * math.log(inner / q) + 0.5
        removed = q * phi((1 - x) / z) - inner * phi(-x / z)
    added = 0.0
    rest = math.exp(-epsilon) - (1 - q)
    if rest > 0:
        x = z**2 * math.log(rest / q) + 0.5
        mixture = (1 - q) * phi(x / z) + q * phi((x - 1) / z)
        added = phi(x / z) - math.exp(epsilon) * mixture
    return max(removed, added)


def delta_of(loss, epsilon):
    """The hockey-stick divergence of the worse direction."""
    found = []
    for side in loss.sides:
        losses = side.interval * (side.lowest + np.arange(len(side.masses)))
        is_above = losses > epsilon
        excess = -np.expm1(epsilon - losses[is_above])
        found.append(side.infinity + float(excess @ side.masses[is_above]))
    return max(found)


@pytest.mark.parametrize(("z", "q"), SETTINGS)
@pytest.mark.parametrize("interval", [2.0**-7, 2.0**-10])
def test_one_release_bounds_the_exact_curve_and_meets_it_on_the_grid(z, q, interval):
    loss = gaussian_loss(z, q, interval)
    for point in range(0, 200, 7):
        on_grid = point * interval
        between = (point + 0.37) * interval
        assert delta_of(loss, on_grid) == pytest.approx(
            exact_delta(on_grid, z, q), rel=1e-8, abs=1e-14
        )
        assert delta_of(loss, between) >= exact_delta(between, z, q) * (1 - 1e-12) - 1e-15


@pytest.mark.parametrize(("z", "q"), SETTINGS)
def test_masses_and_infinity_are_a_distribution(z, q):
    loss = gaussian_loss(z, q, 2.0**-9)
    for pmf in (*loss.sides, loss.composed(7).sides[0], loss.mixed(0.3).sides[-1]):
        assert (pmf.masses >= 0).all()
        assert pmf.masses.sum() + pmf.infinity == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 9, 100])
@pytest.mark.parametrize("z", [0.5, 3.0, 40.0])
def test_unsampled_composition_is_the_closed_form_from_above(z, count):
    loss = gaussian_loss(z, 1.0, min(2.0**-7, 2.0 ** math.floor(math.log2(0.02 / z))))
    mu = math.sqrt(count) / z
    for delta in (1e-3, 1e-6, 1e-9):
        exact = gaussian_epsilon(delta, mu=mu)
        found = loss.composed(count).epsilon(delta)
        assert exact <= found * (1 + 1e-9)
        assert found <= exact * 1.001 or (found == math.inf and exact > 600)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6))
def test_composing_is_convolving(seed, first, second):
    masses = np.random.default_rng(seed).random(9)
    masses *= 0.9 / masses.sum()
    pmf = LossPmf(0.25, -4, masses, 0.1)
    at_once = pmf.composed(first + second)
    in_two = pmf.composed(first).convolved(pmf.composed(second))
    expected = np.array([1.0])
    for _ in range(first + second):
        expected = np.convolve(expected, masses)
    for found in (at_once, in_two):
        dense = np.zeros(len(expected))
        start = found.lowest + 4 * (first + second)
        dense[start : start + len(found.masses)] = found.masses
        assert_near(dense, expected, 1e-14)
        assert found.infinity == pytest.approx(1 - 0.9 ** (first + second), abs=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_epsilon_and_delta_are_inverse(seed, count):
    masses = np.random.default_rng(seed).random(21)
    loss = Loss((LossPmf(0.125, -9, masses / masses.sum(), 0.0).composed(count),))
    for delta in (0.3, 1e-2, 1e-5):
        epsilon = loss.epsilon(delta)
        assert delta_of(loss, epsilon) <= delta * (1 + 1e-9)
        if epsilon > 0:
            assert delta_of(loss, epsilon * (1 - 1e-6)) >= delta


@pytest.mark.parametrize("count", [5000, 100_000])
def test_rounding_of_transforms_stays_below_what_is_charged_for_it(count):
    """Against the same power in extended precision."""
    fft = pytest.importorskip("scipy.fft")
    pmf = gaussian_loss(2.0, 0.01, 2.0**-12).sides[0]
    found = pmf.composed(count)
    size = 1 << (len(found.masses) + len(pmf.masses)).bit_length()
    padded = np.zeros(size, dtype=np.longdouble)
    padded[: len(pmf.masses)] = pmf.masses
    square = fft.rfft(padded)
    result = np.longdouble(1.0)
    left = count
    while left:
        result = result * square if left & 1 else result
        square = square * square
        left = left >> 1
    low = found.lowest - pmf.lowest * count
    exact = np.roll(fft.irfft(result, size), -(low % size))[: len(found.masses)]
    tail_error = np.abs(np.cumsum((found.masses - exact)[::-1])).max()
    assert tail_error < found.infinity


@settings(max_examples=25)
@given(
    st.integers(4, 40).map(lambda n: n / 10),
    st.integers(1, 90).map(lambda n: n / 100),
    st.integers(1, 200),
    st.integers(2, 9).map(lambda n: 10.0**-n),
)
def test_a_coarser_grid_never_promises_more(z, q, count, delta):
    coarse = gaussian_loss(z, q, 2.0**-6).composed(count)
    fine = gaussian_loss(z, q, 2.0**-9).composed(count)
    assert coarse.epsilon(delta) >= fine.epsilon(delta) * (1 - 1e-9)


# -- uniform subsets, in Rényi divergence --------------------------------------------------------
ORDERS = np.array([1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 8.5, 16.0, 30.0, 63.0, 100.0])


@pytest.mark.parametrize("z", [0.4, 0.7, 1.3, 3.0])
@pytest.mark.parametrize(("size", "population"), [(1, 100_000), (50, 1000), (500, 1000)])
def test_it_is_dp_accountings_bound(z, size, population):
    ours = subset_divergences(z, size, population, ORDERS)
    theirs = rdp_privacy_accountant._compute_rdp_sample_wor_gaussian(size / population, z, ORDERS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("z", [20.0, 150.0])
def test_large_multipliers_keep_their_digits(z):
    """At share 1/2 the divergence of N(0, z^2) and N(1, z^2) bounds it times 7 q^2 or less."""
    ours = subset_divergences(z, 500, 1000, ORDERS)
    theirs = rdp_privacy_accountant._compute_rdp_sample_wor_gaussian(0.5, z, ORDERS)
    assert (ours <= theirs * (1 + 1e-6)).all()
    assert (ours <= 7 * 0.25 * ORDERS / (2 * z**2)).all()
    assert theirs[-1] > 7 * 0.25 * ORDERS[-1] / (2 * z**2)


def test_it_never_falls_below_what_the_best_known_pair_needs():
    """Its lower bound: the Poisson pair of the same rate, which a subset contains."""
    for z in (0.5, 1.0, 5.0):
        ours = subset_divergences(z, 10, 1000, ORDERS)
        pair = rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(0.01, z, ORDERS)
        assert (ours >= pair).all()


def test_a_small_multiplier_does_not_overflow():
    with np.errstate(over="raise"):
        ours = subset_divergences(0.02, 10, 1000, ORDERS)
    pair = rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(0.01, 0.02, ORDERS)
    assert (ours >= pair).all()


def test_a_whole_population_is_no_subset():
    found = subset_divergences(2.0, 7, 7, ORDERS)
    np.testing.assert_allclose(found, ORDERS / 8)

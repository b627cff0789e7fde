"""The vectorised subset bound is dp-accounting's, except where that one loses its digits."""

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant

from manifed.privacy.subset_divergence import subset_divergences

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


def test_many_orders_agree_with_few():
    """Interpolated powers only raise the bound, and by little."""
    many = np.arange(2.0, 1500.0)
    few = np.array([2.0, 77.0, 600.0, 1499.0])
    for z in (1.0, 8.0):
        dense, sparse = subset_divergences(z, 1, 5000, many), subset_divergences(z, 1, 5000, few)
        at = np.searchsorted(many, few)
        np.testing.assert_allclose(dense[at], sparse, rtol=2e-3)
        assert (np.diff((many - 1) * dense) > 0).all()


def test_a_whole_population_is_no_subset():
    found = subset_divergences(2.0, 7, 7, ORDERS)
    np.testing.assert_allclose(found, ORDERS / 8)


@pytest.mark.parametrize("arguments", [(0.0, 1, 5), (1.0, 0, 5), (1.0, 6, 5)])
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError, match="Expected z > 0, 1 <= sample_size <= population"):
        subset_divergences(*arguments, ORDERS)
    with pytest.raises(ValueError, match="orders > 1"):
        subset_divergences(1.0, 1, 5, np.array([1.0, 2.0]))

"""The synthetic recipes have the laws that the papers state."""

import numpy as np
import pytest

from manifed.problems import synthetic


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_eigengap_blocks_have_the_stated_singular_values():
    z, sources = synthetic.eigengap(3, 30, 12, rng(), gap=1e-2)
    assert z.shape == (90, 12)
    for i in range(3):
        values = np.linalg.svd(z[sources == i], compute_uv=False)
        assert values[:5] == pytest.approx([1.0, 0.989, 0.988, 0.987, 0.986], abs=1e-12)
        assert (values[5:] < 0.5).all()


def test_a_shared_basis_aligns_the_clients_and_separate_ones_do_not():
    def leading(is_shared: bool) -> float:
        z, sources = synthetic.eigengap(4, 30, 12, rng(1), gap=0.1, is_shared_basis=is_shared)
        tops = [np.linalg.svd(z[sources == i])[2][0] for i in range(4)]
        return min(abs(float(tops[0] @ top)) for top in tops)

    assert leading(is_shared=True) == pytest.approx(1.0, abs=1e-9)
    assert leading(is_shared=False) < 0.9


def test_eigengap_refuses_fewer_rows_than_columns():
    with pytest.raises(ValueError, match=r"rows >= d >= 5 .* rows=10, d=12"):
        synthetic.eigengap(2, 10, 12, rng())


def test_growing_variance_is_a_variance_not_a_stddev():
    """Client i has variance 2i/n: chi-square band at 1e-6 from 4 000 entries a client."""
    from scipy.stats import chi2

    z, sources = synthetic.growing_variance(5, 200, 20, rng(3))
    for i in range(5):
        square = float(np.square(z[sources == i]).sum()) / (2 * (i + 1) / 5)
        assert chi2.ppf(5e-7, 4000) < square < chi2.isf(5e-7, 4000)
        if i != 2:  # 2i/n = 1.2 for i = 3: closest to its own square
            wrong = square / (2 * (i + 1) / 5)
            assert not chi2.ppf(5e-7, 4000) < wrong < chi2.isf(5e-7, 4000)


@pytest.mark.parametrize("radius", [0.5, 1.0])
def test_wishart_matrices_stay_within_the_radius(radius):
    z = synthetic.wishart(300, 2, rng(), radius=radius)
    values = np.linalg.eigvalsh(z)
    assert z.shape == (300, 2, 2)
    assert (values > 0).all()
    assert np.sqrt(np.square(np.log(values)).sum(-1)).max() < radius


def test_wishart_says_when_rejection_is_hopeless():
    with pytest.raises(ValueError, match="raise radius or lower d"):
        synthetic.wishart(5, 6, rng(), radius=0.05)


def test_all_wishart_matrices_have_the_identity_as_mean():
    z = synthetic.wishart(20000, 3, rng(5), radius=None)
    assert np.abs(z.mean(0) - np.eye(3)).max() < 5 * np.sqrt(2 / 3 / 20000)


def test_low_rank_columns_are_what_they_say():
    drawn = synthetic.low_rank(10, 100, 100, 2, rng())
    seen = drawn["mask"].mean()
    assert seen == pytest.approx(0.2196, abs=5 * np.sqrt(0.2196 * 0.78 / 1e5))
    assert (drawn["column"][drawn["mask"] == 0] == 0).all()
    full = synthetic.low_rank(3, 20, 9, 2, rng(), oversampling=9 * 60 / (2 * (9 + 60 - 2)))
    basis, column = full["true_basis"], full["column"]
    assert full["mask"].all()
    assert np.abs(column.T - basis @ (basis.T @ column.T)).max() < 1e-12


def test_heterogeneous_low_rank_clients_have_different_subspaces():
    rate = 9 * 60 / (2 * (9 + 60 - 2))
    drawn = synthetic.low_rank(3, 20, 9, 2, rng(), oversampling=rate, heterogeneity=0.3)
    column, sources = drawn["column"], drawn["sources"]
    ranks = [np.linalg.matrix_rank(column[sources == i], tol=1e-9) for i in range(3)]
    assert ranks == [2, 2, 2]
    assert np.linalg.matrix_rank(column, tol=1e-9) > 2


def test_low_rank_refuses_a_rate_above_one():
    with pytest.raises(ValueError, match="lower oversampling"):
        synthetic.low_rank(2, 5, 5, 2, rng())


def test_scaled_identities_are_decors():
    a, b, sources = synthetic.scaled_identities(4, 3, rng())
    assert a.shape == (12, 3)
    assert np.allclose(a[sources == 2], 3 / 2 * np.eye(3))
    assert b.shape == (12,)


def test_least_squares_targets_follow_one_truth_unless_heterogeneous():
    a, b, _ = synthetic.least_squares(4, 20, 3, rng(), noise_stddev=0.0)
    assert np.linalg.lstsq(a, b)[1] == pytest.approx([0.0], abs=1e-20)
    a, b, _ = synthetic.least_squares(4, 20, 3, rng(), noise_stddev=0.0, heterogeneity=1.0)
    assert np.linalg.lstsq(a, b)[1][0] > 1.0


def test_the_logistic_stand_in_is_shaped_like_a9a():
    features, labels = synthetic.one_hot_logistic(4000, rng())
    assert features.shape == (4000, 123)
    assert set(np.unique(features)) == {0.0, 1.0}
    assert (features.sum(1) == 14).all()
    assert (labels == 1).mean() == pytest.approx(0.24, abs=1e-3)


def test_spd_lognormal_matrices_are_positive_definite_and_symmetric():
    z = synthetic.lognormal_spd(50, 6, rng())
    assert np.array_equal(z, np.swapaxes(z, 1, 2))
    assert np.linalg.eigvalsh(z).min() > 0


def test_the_sphere_cloud_is_on_the_sphere_at_the_stated_spread():
    z = synthetic.sphere_cloud(2000, 4, rng(), 0.05)
    assert np.abs(np.linalg.norm(z, axis=1) - 1).max() < 1e-14
    mean = z.mean(0) / np.linalg.norm(z.mean(0))
    square = np.square(np.arccos(z @ mean)).mean()
    assert square == pytest.approx(3 * 0.05**2, rel=5 * np.sqrt(2 / 6000))


def test_recipes_repeat_for_the_same_seed():
    first = synthetic.low_rank(2, 30, 30, 2, rng(4), oversampling=3, noise_stddev=0.1)
    again = synthetic.low_rank(2, 30, 30, 2, rng(4), oversampling=3, noise_stddev=0.1)
    assert all(np.array_equal(first[key], again[key]) for key in first)

"""The synthetic recipes have the laws that the papers state."""

import numpy as np
import pytest
from scipy.stats import chi2

from manifed.problems import synthetic
from reproduction import recipes


def drawn(recipe, seed=0, **fields):
    found = recipe(**fields).load(None, seed)
    arrays = {key: tensor.numpy() for key, tensor in found.examples.tensors.items()}
    return arrays, found.sources, found


def test_eigengap_blocks_have_the_stated_singular_values():
    made = {"num_clients": 3, "rows": 30, "dimension": 12}
    arrays, sources, _ = drawn(recipes.Eigengap, gap=1e-2, **made)
    assert arrays["z"].shape == (90, 12)
    for i in range(3):
        values = np.linalg.svd(arrays["z"][sources == i], compute_uv=False)
        assert values[:5] == pytest.approx([1.0, 0.989, 0.988, 0.987, 0.986], abs=1e-12)
        assert (values[5:] < 0.5).all()


def test_growing_variance_is_a_variance_not_a_stddev():
    """Client i has variance 2i/n: chi-square band at 1e-6 from 4 000 entries a client."""
    arrays, sources, _ = drawn(synthetic.SyntheticPCA, 3, num_clients=5, rows=200, dimension=20)
    for i in range(5):
        square = float(np.square(arrays["z"][sources == i]).sum()) / (2 * (i + 1) / 5)
        assert chi2.ppf(5e-7, 4000) < square < chi2.isf(5e-7, 4000)
        if i != 2:  # 2i/n = 1.2 for i = 3: closest to its own square
            wrong = square / (2 * (i + 1) / 5)
            assert not chi2.ppf(5e-7, 4000) < wrong < chi2.isf(5e-7, 4000)


def test_low_rank_columns_are_what_they_say():
    seen = drawn(recipes.LowRank)[0]
    assert seen["mask"].mean() == pytest.approx(0.2196, abs=5 * np.sqrt(0.2196 * 0.78 / 1e5))
    assert (seen["column"][seen["mask"] == 0] == 0).all()
    sizes = {"num_clients": 3, "columns": 20, "dimension": 9,
             "oversampling": 9 * 60 / (2 * (9 + 60 - 2))}  # fmt: skip
    full, _, found = drawn(recipes.LowRank, **sizes)
    basis = found.meta["true_basis"].numpy()
    column = full["column"]
    assert full["mask"].all()
    assert np.abs(column.T - basis @ (basis.T @ column.T)).max() < 1e-12


@pytest.mark.parametrize(
    ("recipe", "fields", "told"),
    [
        (recipes.Eigengap, {"rows": 10, "dimension": 12}, "d >= 5 .* rows=10, d=12"),
        (recipes.Wishart, {"num_examples": 5, "dimension": 6, "radius": 0.05}, "or lower d"),
        (recipes.LowRank, {"num_clients": 2, "columns": 5, "dimension": 5},
         "lower oversampling"),
    ],
)  # fmt: skip
def test_sizes_that_no_recipe_has_are_refused(recipe, fields, told):
    with pytest.raises(ValueError, match=told):
        drawn(recipe, **fields)

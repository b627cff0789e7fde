"""A scaled metric far from 1: norms that a clip may believe, and scales that are refused."""

import math

import pytest
import torch

from manifed.manifolds import Euclidean, Product, Scaled, Sphere, Stiefel

SHORT = torch.full((100_000,), 1.5e-162, dtype=torch.float64)
"""Squares of most entries vanish in float64."""
SHORT[0] = 3e-162


@pytest.mark.parametrize("scale", [1e-10, 1e-3, 1e10])
def test_no_norm_is_below_the_exact_one_where_the_bases_squares_vanish(scale):
    for u in (SHORT, SHORT * 1e10, SHORT * 1e150, SHORT * 1e300, SHORT.new_full((3,), 1e200)):
        x = torch.zeros_like(u)
        exact = scale * float(u.abs().max()) * float((u / u.abs().max()).norm())
        flat = Scaled(Euclidean(), scale)
        for manifold in (flat, Product({"a": (flat, (len(u),))})):
            found = float(manifold.norm_bound(x, u))
            assert found >= exact * (1 - 1e-11), (manifold, found, exact)


def test_short_vectors_of_float32_keep_their_norms():
    x = torch.eye(10)[:, :1]
    u = 1.05e-22 * torch.eye(10)[:, 1:2]
    assert float(Scaled(Stiefel(), 1e10).norm_bound(x, u)) == pytest.approx(
        1.05e-12, rel=1e-5, abs=0
    )


@pytest.mark.parametrize("scale", [0.0, -2.0, 1e60, 1e-60, math.inf, math.nan])
def test_other_scales_are_refused(scale):
    with pytest.raises(ValueError, match="scale: expected a number from 1e-10 to 1e10"):
        Scaled(Sphere(), scale)

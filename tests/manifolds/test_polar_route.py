"""The polar factor keeps the SVD's digits, and is one beyond the reach of cheaper routes."""

import math

import pytest
import torch

from manifed.manifolds.linalg import polar
from tests.tensors import assert_near, normals


def frames(condition, *lead, seed=1):
    """(matrices of that condition number, their polar factors), each (..., 784, 5)."""
    u = torch.linalg.qr(normals(seed, *lead, 784, 5))[0]
    v = torch.linalg.qr(normals(seed + 2, *lead, 5, 5))[0]
    singular = torch.logspace(0, -math.log10(condition), 5, dtype=torch.float64)
    return (u * singular) @ v.mT, u @ v.mT


@pytest.mark.parametrize("lead", [(), (32,)])
@pytest.mark.parametrize("condition", [1.0, 1.5, 4.0, 1e2, 1e4, 1e6, 1e8, 1e12])
def test_it_is_as_accurate_as_an_svd(condition, lead):
    x, exact = frames(condition, *lead)
    ours = polar(x)
    u, _, vt = torch.linalg.svd(x, full_matrices=False)
    eye = torch.eye(5).double()
    assert (ours.mT @ ours - eye).abs().max() <= 1e-14
    error, reference = (float((p - exact).abs().max()) for p in (ours, u @ vt))
    assert error <= 3 * reference + 1e-15


def test_one_bad_frame_does_not_cost_the_others_their_digits():
    good, exact = frames(1.2, 4)
    bad, nearest = frames(1e10, 1, seed=2)
    found = polar(torch.cat([good, bad]))
    assert_near(found[:4], exact, 1e-14)
    assert_near(found[4:], nearest, 4e-6)


def test_a_stack_of_nothing_has_a_polar_factor():
    assert tuple(polar(torch.zeros(0, 7, 3).double()).shape) == (0, 7, 3)

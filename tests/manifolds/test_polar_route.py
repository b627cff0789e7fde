"""The polar factor keeps the SVD's digits, and is one beyond the reach of cheaper routes."""

import math

import pytest
import torch

from manifed.manifolds.linalg import polar, positive_qr, standard_normal


def frames(condition: float, *lead: int, seed: int = 1):
    """(matrices of that condition number, their polar factors), each (..., 784, 5)."""
    generator = torch.Generator().manual_seed(seed)
    u = positive_qr(standard_normal((*lead, 784, 5), generator))[0]
    v = positive_qr(standard_normal((*lead, 5, 5), generator))[0]
    singular = torch.logspace(0, -math.log10(condition), 5, dtype=torch.float64)
    return (u * singular) @ v.mT, u @ v.mT


def by_svd(x: torch.Tensor) -> torch.Tensor:
    u, _, vt = torch.linalg.svd(x, full_matrices=False)
    return u @ vt


@pytest.mark.parametrize("lead", [(), (32,)], ids=["one", "stack"])
@pytest.mark.parametrize("condition", [1.0, 1.5, 4.0, 1e2, 1e4, 1e6, 1e8, 1e12])
def test_it_is_as_accurate_as_an_svd(condition, lead):
    x, exact = frames(condition, *lead)
    ours = polar(x)
    theirs = by_svd(x)
    eye = torch.eye(5, dtype=torch.float64)
    assert float((ours.mT @ ours - eye).abs().max()) <= 1e-14
    error, reference = (float((p - exact).abs().max()) for p in (ours, theirs))
    assert error <= 3 * reference + 1e-15


def test_one_bad_frame_does_not_cost_the_others_their_digits():
    good, exact = frames(1.2, 4)
    bad, nearest = frames(1e10, 1, seed=2)
    found = polar(torch.cat([good, bad]))
    torch.testing.assert_close(found[:4], exact, rtol=0, atol=1e-14)
    torch.testing.assert_close(found[4:], nearest, rtol=0, atol=4e-6)


def test_a_stack_of_nothing_has_a_polar_factor():
    assert tuple(polar(torch.zeros(0, 7, 3, dtype=torch.float64)).shape) == (0, 7, 3)

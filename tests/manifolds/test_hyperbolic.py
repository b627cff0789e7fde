"""The Lorentz model far from the origin and at it."""

import math

import pytest
import torch

from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.sphere import Sphere
from tests.conformance.manifold_marks import generator, normals

FLOAT = torch.float64


def far_point(radius: float, seed: int) -> torch.Tensor:
    direction = Sphere().random(4, generator=generator(seed))
    return Lorentz().projx(torch.cat((torch.ones(1, dtype=FLOAT), math.sinh(radius) * direction)))


def coords(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The inverse of ``from_coords``."""
    return u[..., 1:] - u[..., :1] / (1 + x[..., :1]) * x[..., 1:]


@pytest.mark.parametrize(("radius", "tolerance"), [(5, 1e-13), (10, 1e-11), (15, 1e-9), (25, 1e-4)])
def test_lorentz_norms_and_transports_far_from_the_origin(radius, tolerance):
    m = Lorentz()
    x = far_point(radius, 23)
    y = far_point(radius, 24)
    c = normals(25, 4)
    u = m.from_coords(x, c / c.norm())
    assert abs(float(m.norm(x, u)) - 1) <= tolerance
    assert abs(float(m.norm(y, m.transp(x, y, u))) - 1) <= 10 * tolerance
    back = coords(x, m.logmap(x, m.expmap(x, u)))
    assert (back - c / c.norm()).abs().max() <= 10 * tolerance
    assert abs(float(m.dist(x, m.expmap(x, u))) - 1) <= 10 * tolerance


def test_lorentz_distance_from_the_origin_is_the_radius():
    m = Lorentz()
    y = far_point(7.0, 28)
    assert abs(float(m.dist(m.origin(5), y)) - 7) <= 1e-14
    assert float(m.dist(y, y)) == 0.0

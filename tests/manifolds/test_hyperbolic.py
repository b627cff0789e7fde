"""The Lorentz model far from the origin and at it."""

import math

import pytest
import torch

from manifed.manifolds import Lorentz, Sphere
from tests.tensors import generator, normals


def far_point(radius, seed):
    direction = Sphere().random(4, generator=generator(seed))
    return Lorentz().projx(torch.cat((torch.ones(1).double(), math.sinh(radius) * direction)))


@pytest.mark.parametrize(("radius", "tolerance"), [(5, 1e-13), (10, 1e-11), (15, 1e-9), (25, 1e-4)])
def test_lorentz_norms_and_transports_far_from_the_origin(radius, tolerance):
    m = Lorentz()
    x = far_point(radius, 23)
    y = far_point(radius, 24)
    c = normals(25, 4)
    u = m.from_coords(x, c / c.norm())
    assert abs(m.norm(x, u) - 1) <= tolerance
    assert abs(m.norm(y, m.transp(x, y, u)) - 1) <= 10 * tolerance
    assert m.norm(x, m.logmap(x, m.expmap(x, u)) - u) <= 10 * tolerance
    assert abs(m.dist(x, m.expmap(x, u)) - 1) <= 10 * tolerance
    assert abs(m.dist(m.origin(5), x) / radius - 1) <= 1e-14
    assert m.dist(x, x) == 0.0

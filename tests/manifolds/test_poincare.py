"""What the Poincaré ball keeps that geoopt's loses: digits near the boundary."""

import math

import pytest
import torch

from manifed.manifolds import PoincareBall, Sphere
from tests.tensors import normals

BALL = PoincareBall()
ORIGIN = torch.zeros(5).double()


def directions(seed, *size):
    return Sphere().projx(normals(seed, *size))


def at_radius(radius, seed):
    """200 points of H^5 at a distance from the origin."""
    return BALL.expmap(ORIGIN, directions(seed, 200, 5) * radius / 2)


@pytest.mark.parametrize("radius", [1, 5, 10, 20, 30])
def test_accuracy_at_distance_r_is_the_rounding_of_the_coordinates(radius):
    """Eps e^r: geoopt's ball ends at 12.2."""
    x = at_radius(radius, 6)
    u = BALL.from_coords(x, directions(7, 200, 5))
    bound = 40 * 2.2e-16 * (1 + math.exp(radius))
    assert (BALL.dist(ORIGIN, x) / radius - 1).abs().max() <= bound
    error = BALL.norm(x, BALL.logmap(x, BALL.expmap(x, u)) - u)
    assert error.max() <= bound


@pytest.mark.parametrize("radius", [1, 12, 25, 34])
def test_transport_is_isometric_and_carries_geodesics_at_every_radius(radius):
    x = at_radius(radius, 8)
    y = at_radius(radius, 9)
    v = BALL.from_coords(x, directions(10, 200, 5))
    assert torch.allclose(BALL.norm(y, BALL.transp(x, y, v)), BALL.norm(x, v), rtol=1e-14)
    gap = BALL.norm(y, BALL.transp(x, y, BALL.logmap(x, y)) + BALL.logmap(y, x))
    assert (gap / BALL.dist(x, y)).max() <= 1e-14


def test_points_reach_1e_15_from_the_boundary_and_noise_of_any_size_leaves_them_inside():
    far = BALL.expmap(ORIGIN, directions(11, 50, 5) * 100)
    radius = torch.linalg.vector_norm(far, dim=-1)
    assert radius.max() < 1
    assert BALL.dist(ORIGIN, far).min() > 34
    x = at_radius(34.0, 13)
    thrown = BALL.expmap(x, BALL.from_coords(x, 1e4 * directions(14, 200, 5)))
    for inside in (far, thrown):
        assert BALL.check_point_on_manifold(inside)
    assert not BALL.check_point_on_manifold(directions(12, 5) * 1.1)

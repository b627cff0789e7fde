"""What the Poincaré ball keeps that geoopt's loses: digits near the boundary."""

import math

import pytest
import torch

from manifed.manifolds.hyperbolic import PoincareBall

BALL = PoincareBall()
ORIGIN = torch.zeros(5, dtype=torch.float64)


def directions(seed: int, *size: int) -> torch.Tensor:
    z = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z / z.norm(dim=-1, keepdim=True)


def at_radius(radius: float, seed: int) -> torch.Tensor:
    """200 points of H^5 at a distance from the origin."""
    return BALL.expmap(ORIGIN, directions(seed, 200, 5) * radius / 2)


@pytest.mark.parametrize("radius", [1, 5, 10, 20, 30])
def test_accuracy_at_distance_r_is_the_rounding_of_the_coordinates(radius: int):
    """Eps e^r: geoopt's ball ends at 12.2."""
    x = at_radius(float(radius), 6)
    u = BALL.from_coords(x, directions(7, 200, 5))
    bound = 40 * 2.2e-16 * (1 + math.exp(radius))
    assert float((BALL.dist(ORIGIN, x) / radius - 1).abs().max()) <= bound
    error = BALL.norm(x, BALL.logmap(x, BALL.expmap(x, u)) - u)
    assert float(error.max()) <= bound


@pytest.mark.parametrize("radius", [1, 12, 25, 34])
def test_transport_is_isometric_and_carries_geodesics_at_every_radius(radius: int):
    x = at_radius(float(radius), 8)
    y = at_radius(float(radius), 9)
    v = BALL.from_coords(x, directions(10, 200, 5))
    assert torch.allclose(BALL.norm(y, BALL.transp(x, y, v)), BALL.norm(x, v), rtol=1e-14)
    gap = BALL.norm(y, BALL.transp(x, y, BALL.logmap(x, y)) + BALL.logmap(y, x))
    assert float((gap / BALL.dist(x, y)).max()) <= 1e-14


def test_points_reach_1e_15_from_the_boundary_and_stay_inside():
    far = BALL.expmap(ORIGIN, directions(11, 50, 5) * 100)
    radius = torch.linalg.vector_norm(far, dim=-1)
    assert float(radius.max()) < 1
    assert float(BALL.dist(ORIGIN, far).min()) > 34
    assert BALL.check_point_on_manifold(far)
    assert not BALL.check_point_on_manifold(directions(12, 5) * 1.1)


def test_noise_of_any_size_keeps_the_exponential_finite_and_inside():
    x = at_radius(34.0, 13)
    y = BALL.expmap(x, BALL.from_coords(x, 1e4 * directions(14, 200, 5)))
    assert bool(y.isfinite().all())
    assert BALL.check_point_on_manifold(y)

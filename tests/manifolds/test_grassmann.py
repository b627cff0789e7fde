"""Grassmann formulas at the ends of the range of angles, and whatever the basis."""

import math

import pytest
import torch

from manifed.manifolds import Grassmann
from tests.tensors import generator, normals

GRASSMANN = Grassmann()


def frame(seed, n=9, k=3):
    return GRASSMANN.random(n, k, generator=generator(seed))


def tangent(x, seed, size):
    u = GRASSMANN.from_coords(x, normals(seed, *x.shape))
    return size * u / u.norm()


def test_changing_the_basis_of_a_subspace_changes_no_distance_and_turns_tangents_along():
    x = frame(6)
    y = frame(7)
    turn = frame(8, 3, 3)
    assert abs(GRASSMANN.dist(x @ turn, y) - GRASSMANN.dist(x, y)) <= 1e-14
    assert torch.allclose(GRASSMANN.logmap(x @ turn, y), GRASSMANN.logmap(x, y) @ turn, atol=1e-13)
    assert torch.allclose(GRASSMANN.logmap(x, y @ turn), GRASSMANN.logmap(x, y), atol=1e-13)
    v = tangent(x, 9, 1.0)
    moved = GRASSMANN.transp(x, y, v)
    assert torch.allclose(GRASSMANN.transp(x, y @ turn, v), moved @ turn, atol=1e-13)


def test_transport_is_the_limit_of_a_pole_ladder():
    """One rung of the pole ladder is exact on symmetric spaces."""
    x = frame(10)
    y = GRASSMANN.expmap(x, tangent(x, 11, 0.6))
    v = tangent(x, 12, 0.1)
    middle = GRASSMANN.expmap(x, 0.5 * GRASSMANN.logmap(x, y))
    mirrored = GRASSMANN.expmap(middle, -GRASSMANN.logmap(middle, GRASSMANN.expmap(x, v)))
    assert torch.allclose(GRASSMANN.transp(x, y, v), -GRASSMANN.logmap(y, mirrored), atol=1e-13)


@pytest.mark.parametrize(
    "angles",
    [(1e-9, 2e-9), (1e-9, 1.0), (math.pi / 2, math.pi / 2 - 1e-9), (0.3, math.pi / 2), (1e-6, 0.0)],
)
def test_the_distance_keeps_its_digits_near_and_far(angles):
    x = torch.eye(9, 2).double()
    y = torch.zeros_like(x)
    for column, angle in enumerate(angles):
        y[column, column], y[4 + column, column] = math.cos(angle), math.sin(angle)
    rotation = frame(3, 9, 9)
    turn = frame(4, 2, 2)
    found = float(GRASSMANN.dist(rotation @ x, rotation @ y @ turn))
    assert found == pytest.approx(math.hypot(*angles), rel=2e-15, abs=3e-15)

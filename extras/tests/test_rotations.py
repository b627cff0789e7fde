"""SO(n) against scipy, near the cut locus, and under reflections."""

import math

import pytest
import torch
from scipy.spatial.transform import Rotation

from manifed_extras.rotations import SpecialOrthogonal
from tests.conformance.manifold_cases import generator, normals

SO = SpecialOrthogonal()


def rotation(seed, n=3):
    return SO.random(n, n, generator=generator(seed))


def test_distance_is_sqrt_two_times_the_angle_of_scipy():
    x = rotation(1)
    y = rotation(2)
    angle = Rotation.from_matrix((x.mT @ y).numpy()).magnitude()
    assert abs(float(SO.dist(x, y)) - math.sqrt(2) * angle) <= 1e-13


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
def test_the_logarithm_is_accurate_close_to_half_a_turn(gap):
    axis = torch.tensor([0.6, 0.0, 0.8]).double()
    turn = torch.linalg.cross(torch.eye(3).double(), axis.expand(3, 3), dim=-1)
    x = rotation(3)
    u = x @ (turn * (math.pi - gap))
    assert float((SO.logmap(x, SO.expmap(x, u)) - u).abs().max()) <= 1e-14 / gap + 1e-13


def test_projection_of_a_reflection_is_the_nearest_rotation():
    z = normals(4, 50, 3, 3)
    x = SO.projx(z)
    assert SO.check_point_on_manifold(x, atol=1e-12)
    for seed in range(20):
        other = rotation(100 + seed)
        assert bool(((z - x).norm(dim=(-2, -1)) <= (z - other).norm(dim=(-2, -1)) + 1e-12).all())


def test_a_reflection_is_refused_by_the_check():
    ok, reason = SO.check_point_on_manifold(torch.diag(torch.tensor([1.0, -1.0])), explain=True)
    assert not ok
    assert "membership_defect" in reason


def test_differentiating_the_logarithm_is_refused():
    x = rotation(5).requires_grad_()
    y = rotation(6)
    with pytest.raises(NotImplementedError, match="differentiate dist"):
        SO.logmap(x, y)

"""The sphere near coincident and antipodal points."""

import math

import pytest
import torch

from manifed.manifolds import Sphere
from tests.tensors import float64, normals


@pytest.mark.parametrize("d", [1e-9, 1e-6, 1e-3, 1.0, math.pi - 1e-3, math.pi - 1e-6])
def test_sphere_angles_are_accurate_at_both_ends(d):
    sphere = Sphere()
    x = float64([1.0, 0, 0])
    y = float64([math.cos(d), math.sin(d), 0])
    assert abs(sphere.dist(x, y) / d - 1) <= 1e-9
    assert abs(sphere.norm(x, sphere.logmap(x, y)) / d - 1) <= 1e-9
    rotation = torch.linalg.qr(normals(30, 3, 3))[0]
    assert abs(sphere.dist(x @ rotation, y @ rotation) / d - 1) <= 1e-6

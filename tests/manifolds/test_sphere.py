"""The sphere near coincident and antipodal points."""

import math

import pytest
import torch

from manifed.manifolds.linalg import positive_qr
from manifed.manifolds.sphere import Sphere
from tests.conformance.manifold_marks import normals

FLOAT = torch.float64


@pytest.mark.parametrize("d", [1e-9, 1e-6, 1e-3, 1.0, math.pi - 1e-3, math.pi - 1e-6])
def test_sphere_angles_are_accurate_at_both_ends(d: float):
    sphere = Sphere()
    x = torch.tensor([1.0, 0, 0], dtype=FLOAT)
    y = torch.tensor([math.cos(d), math.sin(d), 0], dtype=FLOAT)
    assert abs(float(sphere.dist(x, y)) / d - 1) <= 1e-9
    assert abs(float(sphere.norm(x, sphere.logmap(x, y))) / d - 1) <= 1e-9
    rotation = positive_qr(normals(30, 3, 3))[0]
    assert abs(float(sphere.dist(x @ rotation, y @ rotation)) / d - 1) <= 1e-6

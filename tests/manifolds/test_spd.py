"""Affine-invariant SPD matrices: ill conditioning, invariance, repeated eigenvalues."""

import math

import pytest
import torch

from manifed.manifolds.linalg import positive_qr
from manifed.manifolds.spd import SPD
from tests.conformance.manifold_marks import normals

FLOAT = torch.float64


def ill_conditioned(condition: float, seed: int) -> torch.Tensor:
    q = positive_qr(normals(seed, 5, 5))[0]
    w = torch.logspace(0, -math.log10(condition), 5, dtype=FLOAT)
    return (q * w) @ q.mT


@pytest.mark.parametrize(("condition", "tolerance"), [(1e4, 1e-10), (1e8, 1e-7)])
def test_spd_geometry_survives_ill_conditioned_points(condition, tolerance):
    m = SPD()
    x = ill_conditioned(condition, 19)
    u = m.from_coords(x, normals(20, 5, 5))
    u = u / m.norm(x, u)
    y = m.expmap(x, u)
    assert abs(float(m.dist(x, y)) - 1) <= tolerance
    assert float(m.norm(x, m.logmap(x, y) - u)) <= tolerance
    assert abs(float(m.norm(y, m.transp(x, y, u))) - 1) <= tolerance
    assert float(m.norm(y, m.transp(x, y, u) + m.logmap(y, x))) <= tolerance


def test_spd_refuses_an_indefinite_point():
    with pytest.raises(torch.linalg.LinAlgError):
        SPD().norm(-torch.eye(2, dtype=FLOAT), torch.eye(2, dtype=FLOAT))

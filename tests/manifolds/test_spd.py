"""Affine-invariant SPD matrices: ill conditioning, invariance, repeated eigenvalues."""

import pytest
import torch

from manifed.manifolds import SPD
from tests.conformance.manifold_cases import spd_of_condition
from tests.tensors import normals


@pytest.mark.parametrize(("digits", "tolerance"), [(4, 1e-10), (8, 1e-7)])
def test_spd_geometry_survives_ill_conditioned_points(digits, tolerance):
    m = SPD()
    (x,) = spd_of_condition(19, digits)
    u = m.from_coords(x, normals(20, 4, 4))
    u = u / m.norm(x, u)
    y = m.expmap(x, u)
    assert abs(m.dist(x, y) - 1) <= tolerance
    assert m.norm(x, m.logmap(x, y) - u) <= tolerance
    assert abs(m.norm(y, m.transp(x, y, u)) - 1) <= tolerance
    assert m.norm(y, m.transp(x, y, u) + m.logmap(y, x)) <= tolerance


def test_spd_refuses_an_indefinite_point():
    with pytest.raises(torch.linalg.LinAlgError):
        SPD().norm(-torch.eye(2).double(), torch.eye(2).double())

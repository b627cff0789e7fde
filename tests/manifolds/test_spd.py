"""Affine-invariant SPD matrices: ill conditioning, invariance, repeated eigenvalues."""

import math

import pytest
import torch

from manifed.manifolds.linalg import positive_qr, standard_normal
from manifed.manifolds.spd import SPD

FLOAT = torch.float64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normals(seed: int, *size: int) -> torch.Tensor:
    return standard_normal(size, generator(seed))


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


def test_spd_is_invariant_under_congruence():
    m = SPD()
    x, y = m.random(2, 4, 4, generator=generator(21))
    a = normals(22, 4, 4)
    moved = m.dist(a @ x @ a.mT, a @ y @ a.mT)
    assert abs(float(m.dist(x, y) - moved)) <= 1e-12


def test_spd_refuses_an_indefinite_point():
    with pytest.raises(torch.linalg.LinAlgError):
        SPD().norm(-torch.eye(2, dtype=FLOAT), torch.eye(2, dtype=FLOAT))


def test_spd_gradients_are_finite_at_repeated_eigenvalues():
    m = SPD()
    x = torch.eye(3, dtype=FLOAT).requires_grad_()
    total = m.dist(x, 2 * torch.eye(3, dtype=FLOAT)) + m.expmap(x, torch.zeros_like(x)).sum()
    assert bool(torch.autograd.grad(total, x)[0].isfinite().all())

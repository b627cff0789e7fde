"""Log-Euclidean, log-Cholesky and Bures-Wasserstein: charts, means, borders."""

import numpy as np
import pytest
import scipy.linalg
import torch

from manifed.manifolds import SPDLogEuclidean
from manifed_extras.log_cholesky import SPDLogCholesky
from reproduction.bures_wasserstein import SPDBuresWasserstein
from tests.tensors import float64, generator

FLAT = pytest.mark.parametrize("manifold", [SPDLogEuclidean(), SPDLogCholesky()])
BURES = SPDBuresWasserstein()


def points(seed, count, m=4):
    return BURES.random(count, m, m, generator=generator(seed))


def chart(name, x):
    """The isometry to a vector space, by scipy."""
    if name == "SPDLogEuclidean":
        return scipy.linalg.logm(x).real
    factor = scipy.linalg.cholesky(x, lower=True)
    return np.tril(factor, -1) + np.diag(np.log(np.diag(factor)))


@FLAT
def test_the_metric_is_the_pull_back_of_the_chart(manifold):
    x, y = points(1, 2)
    gap = chart(manifold.name, x.numpy()) - chart(manifold.name, y.numpy())
    assert abs(manifold.dist(x, y) - np.linalg.norm(gap)) <= 1e-12
    u = manifold.proju(x, torch.ones(4, 4).double() + torch.eye(4))
    step = 1e-6
    ahead = (x + step * u).numpy()
    behind = (x - step * u).numpy()
    slope = (chart(manifold.name, ahead) - chart(manifold.name, behind)) / (2 * step)
    assert abs(manifold.norm(x, u) / np.linalg.norm(slope) - 1) <= 1e-8


def test_log_euclidean_survives_repeated_and_close_eigenvalues():
    m = SPDLogEuclidean()
    for gap in (0.0, 1e-15, 1e-9, 1e-4):
        x = torch.diag(float64([1.0, 1.0 + gap, 3.0]))
        u = m.from_coords(x, points(5, 1, 3)[0])
        assert u.isfinite().all()
        assert torch.allclose(m.logmap(x, m.expmap(x, u)), u, atol=1e-13)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0])
def test_bures_logarithm_keeps_relative_accuracy_of_small_steps(scale):
    x = points(6, 1)[0]
    u = BURES.from_coords(x, points(7, 1)[0]) * (0.1 * scale)
    y = x + u
    rounding_of_y = 1e-15 / scale
    gap = float((BURES.logmap(x, y) - u).norm() / u.norm())
    assert gap <= 0.2 * scale + rounding_of_y


def test_bures_distance_is_the_wasserstein_distance_of_gaussians():
    x, y = points(8, 2)
    root = scipy.linalg.sqrtm(x.numpy())
    cross = scipy.linalg.sqrtm(root @ y.numpy() @ root).real
    squared = float(x.trace() + y.trace()) - 2 * np.trace(cross)
    assert abs(BURES.dist(x, y) - squared**0.5) <= 1e-10
    assert BURES.dist(x, x) <= 1e-14


def test_bures_transport_is_parallel_when_the_points_commute():
    """diag(a) -> diag(b): the exact transport multiplies entry ij by sqrt((b_i+b_j)/(a_i+a_j))."""
    a = float64([1.0, 2.0])
    b = float64([3.0, 0.5])
    v = float64([[1.0, 2.0], [2.0, -1.0]])
    pairs_a = a[:, None] + a
    pairs_b = b[:, None] + b
    moved = BURES.transp(torch.diag(a), torch.diag(b), v)
    assert torch.allclose(moved, (pairs_b / pairs_a).sqrt() * v, atol=1e-15)


def test_projection_clamps_eigenvalues_and_the_check_refuses_what_has_no_cholesky_factor():
    bad = torch.diag(float64([1.0, -3.0, 0.0]))
    projected = BURES.projx(bad)
    assert torch.allclose(projected, torch.diag(float64([1.0, 0.0, 0.0])), atol=1e-11)
    assert BURES.check_point_on_manifold(projected)
    ok, reason = BURES.check_point_on_manifold(bad, explain=True)
    assert not ok
    assert "membership_defect <= 2e-05, got inf" in reason
    tilted = float64([[1.0, 0.5], [0.0, 1.0]])
    assert not BURES.check_point_on_manifold(tilted)

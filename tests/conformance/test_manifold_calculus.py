"""Gradients and Fréchet means on every manifold of CASES."""

import pytest
import torch

from tests.conformance.manifold_marks import WITH_LOG
from tests.tensors import float64


@WITH_LOG
@pytest.mark.parametrize("seed", [41, 42])
def test_frechet_mean_is_the_zero_of_the_weighted_logarithms(case, seed):
    m = case.manifold
    x = case.points(seed)
    points = m.expmap(x, case.tangents(x, seed + 1, 5, scale=min(0.5, 0.5 * case.radius)))
    weights = float64([1.0, 2.0, 3.0, 1.0, 0.5])
    mean = m.frechet_mean(points, weights)
    residual = (m.expand_scalar(weights) * m.logmap(mean, points)).sum(0)
    case.close(m.norm(mean, residual), 0.0, 1e-10)
    assert m.check_point_on_manifold(mean, atol=1e-11)


@WITH_LOG
@pytest.mark.parametrize("seed", [51, 52])
def test_autograd_of_half_squared_distance_is_minus_the_logarithm(case, seed):
    m = case.manifold
    x = case.points(seed, 2)
    y = m.expmap(x, case.tangents(x, seed + 1, scale=0.4 * case.radius))
    a = x.clone().requires_grad_()
    b = y.clone().requires_grad_()
    ga, gb = torch.autograd.grad((m.dist(a, b) ** 2).sum() / 2, (a, b))
    case.close(m.egrad2rgrad(x, ga), -m.logmap(x, y), 1e-9)
    case.close(m.egrad2rgrad(y, gb), -m.logmap(y, x), 1e-9)


@WITH_LOG
def test_gradients_are_finite_at_zero_vectors(case):
    m = case.manifold
    x = case.points(61)
    u = torch.zeros_like(x).requires_grad_()
    total = m.retr(x, u).sum() + m.norm(x, u).sum() + m.expmap(x, u).sum()
    assert torch.autograd.grad(total, u)[0].isfinite().all()

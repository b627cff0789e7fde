"""The manifolds inside geoopt: tensors, parameters and the Riemannian optimisers."""

import geoopt
import pytest
import torch

from manifed.manifolds import SPD, Euclidean, Lorentz, Sphere, Stiefel
from tests.conformance.manifold_cases import CASES
from tests.conformance.manifold_marks import of

ALL = of([c for c in CASES if isinstance(c.manifold, (Euclidean, Sphere, Stiefel, SPD, Lorentz))])


def start_and_target(case, *lead):
    target = case.points(3, *lead)
    return case.manifold.expmap(target, case.tangents(target, 4, scale=0.5)), target


def half_squared_gap(manifold, x, target):
    """Half the squared distance; on frames the ambient one, which needs no iteration."""
    gap = x - target if isinstance(manifold, Stiefel) else manifold.dist(x, target)
    return gap.square().sum() / 2


@ALL
@pytest.mark.parametrize("optimizer", [geoopt.optim.RiemannianSGD, geoopt.optim.RiemannianAdam])
def test_riemannian_optimisers_find_the_nearest_point(case, optimizer):
    manifold = case.manifold
    start, target = start_and_target(case, 2)
    x = geoopt.ManifoldParameter(start, manifold=manifold)
    is_adam = optimizer is geoopt.optim.RiemannianAdam
    steps = optimizer([x], lr=0.03 if is_adam else 0.5, stabilize=10)
    for _ in range(80 if is_adam else 40):
        steps.zero_grad()
        half_squared_gap(manifold, x, target).backward()
        steps.step()
    assert manifold.check_point_on_manifold(x.detach(), atol=1e-10)
    assert manifold.dist(x.detach(), target).max() <= (0.05 if is_adam else 1e-6)


@ALL
def test_points_live_in_manifold_tensors_and_random_ones_need_a_generator(case):
    manifold, (start, target) = case.manifold, start_and_target(case)
    point = geoopt.ManifoldTensor(start.clone(), manifold=manifold)
    assert torch.equal(point.inner(start, target), manifold.inner(start, start, target))
    assert torch.equal(point.proj_(), manifold.projx(start))
    assert manifold.check_point_on_manifold(manifold.origin(2, *case.shape))
    with pytest.raises(ValueError, match="Generator"):
        manifold.random(*case.shape)

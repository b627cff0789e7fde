"""The manifolds inside geoopt: tensors, parameters and the Riemannian optimisers."""

import copy

import geoopt
import pytest
import torch

from manifed.manifolds import SPD, Euclidean, Lorentz, Manifold, Sphere, Stiefel

CASES = [
    (Euclidean(), (5,)),
    (Euclidean(ndim=2), (3, 2)),
    (Sphere(), (6,)),
    (Stiefel(), (6, 2)),
    (Stiefel("canonical", "cayley"), (6, 2)),
    (Stiefel("euclidean", "qr"), (6, 2)),
    (SPD(), (3, 3)),
    (Lorentz(), (4,)),
]
ALL = pytest.mark.parametrize(("manifold", "shape"), CASES, ids=str)


def start_and_target(manifold: Manifold, shape: tuple[int, ...], lead: tuple[int, ...] = ()):
    generator = torch.Generator().manual_seed(3)
    target = manifold.random(*lead, *shape, generator=generator)
    size = (*lead, *manifold.coords_shape(shape))
    c = torch.randn(size, generator=generator, dtype=torch.float64)
    u = manifold.from_coords(target, c)
    return manifold.expmap(target, 0.5 * u / manifold.norm(target, u, keepdim=True)), target


def half_squared_gap(manifold: Manifold, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Half the squared distance; on frames the ambient one, which needs no iteration."""
    gap = x - target if isinstance(manifold, Stiefel) else manifold.dist(x, target)
    return gap.square().sum() / 2


@ALL
@pytest.mark.parametrize("optimizer", [geoopt.optim.RiemannianSGD, geoopt.optim.RiemannianAdam])
def test_riemannian_optimisers_find_the_nearest_point(manifold, shape, optimizer):
    start, target = start_and_target(manifold, shape, (2,))
    x = geoopt.ManifoldParameter(start, manifold=manifold)
    is_adam = optimizer is geoopt.optim.RiemannianAdam
    steps = optimizer([x], lr=0.03 if is_adam else 0.5, stabilize=10)
    for _ in range(80 if is_adam else 40):
        steps.zero_grad()
        half_squared_gap(manifold, x, target).backward()
        steps.step()
    assert manifold.check_point_on_manifold(x.detach(), atol=1e-10)
    assert float(manifold.dist(x.detach(), target).max()) <= (0.05 if is_adam else 1e-6)


@ALL
def test_points_live_in_manifold_tensors(manifold, shape):
    start, target = start_and_target(manifold, shape)
    point = geoopt.ManifoldTensor(start.clone(), manifold=manifold)
    assert torch.equal(point.inner(start, target), manifold.inner(start, start, target))
    assert torch.equal(point.proj_(), manifold.projx(start))
    twin = copy.deepcopy(geoopt.ManifoldParameter(start, manifold=manifold))
    assert twin.manifold == manifold
    geoopt.ManifoldParameter(point, manifold=copy.deepcopy(manifold))


@ALL
def test_a_module_with_such_parameters_has_a_plain_state(manifold, shape):
    module = torch.nn.Module()
    start, _ = start_and_target(manifold, shape)
    module.register_parameter("x", geoopt.ManifoldParameter(start, manifold=manifold))
    module.manifold = manifold
    assert list(module.state_dict()) == ["x"]


def test_settings_tell_manifolds_apart():
    assert Stiefel() == Stiefel("euclidean", "polar")
    assert Stiefel() != Stiefel("canonical")
    assert Stiefel() != Stiefel(retraction="qr")
    assert Euclidean() != Euclidean(ndim=2)
    assert len({Stiefel(), Stiefel("euclidean"), Sphere(), Sphere()}) == 2
    assert "canonical" in repr(Stiefel("canonical"))


@ALL
def test_checks_explain_what_is_wrong(manifold, shape):
    start, _ = start_and_target(manifold, shape)
    bad = torch.full_like(start, float("nan"))
    ok, reason = manifold.check_point_on_manifold(bad, explain=True)
    assert not ok
    assert reason
    ok, reason = manifold.check_vector_on_tangent(start, bad, explain=True)
    assert not ok
    assert reason


@ALL
def test_random_needs_a_generator_and_origin_is_valid(manifold, shape):
    with pytest.raises(ValueError, match="Generator"):
        manifold.random(*shape)
    assert manifold.check_point_on_manifold(manifold.origin(2, *shape))


def test_where_geoopt_is_right_it_agrees():
    generator = torch.Generator().manual_seed(5)
    spd, frames = SPD(), Stiefel()
    x, y = spd.random(2, 4, 4, generator=generator)
    u = spd.from_coords(x, torch.randn((4, 4), generator=generator, dtype=torch.float64))
    theirs = geoopt.SymmetricPositiveDefinite()
    z = frames.random(6, 3, generator=generator)
    v = frames.from_coords(z, torch.randn((6, 3), generator=generator, dtype=torch.float64))
    pairs = [
        (spd.transp(x, y, u), theirs.transp(x, y, u)),
        (spd.logmap(x, y), theirs.logmap(x, y)),
        (spd.egrad2rgrad(x, u), theirs.egrad2rgrad(x, u)),
        (frames.expmap(z, v), geoopt.EuclideanStiefel().expmap(z, v)),
        (Stiefel("euclidean", "qr").retr(z, v), geoopt.EuclideanStiefel().retr(z, v)),
    ]
    assert all((mine - reference).abs().max() <= 1e-10 for mine, reference in pairs)

"""A product acts factor by factor on one packed vector."""

import pytest
import torch

from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.hyperbolic import PoincareBall
from manifed.manifolds.product import Product
from manifed_extras.fixed_rank import FixedRank
from reproduction.bures_wasserstein import SPDBuresWasserstein

PARTS = {
    "basis": (Grassmann(), (6, 2)),
    "place": (PoincareBall(), (3,)),
    "bias": (Euclidean(), (4,)),
}
M = Product(PARTS)


def draw(seed: int, *lead: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return M.random(*lead, *M.point_shape, generator=generator)


def tangent(x: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (*x.shape[:-1], *M.coords_shape(M.point_shape))
    return 0.3 * M.from_coords(x, torch.randn(size, generator=generator, dtype=torch.float64))


def test_every_operation_is_the_factors_own():
    x = draw(2, 3)
    y = draw(3, 3)
    u = tangent(x, 4)
    before = M.unpack(x)
    after = M.unpack(y)
    step = M.unpack(u)
    exp, log, moved = (M.unpack(t) for t in (M.expmap(x, u), M.logmap(x, y), M.transp(x, y, u)))
    squared_length = torch.zeros(3).double()
    squared_dist = torch.zeros(3).double()
    for name, (factor, _) in PARTS.items():
        assert torch.equal(exp[name], factor.expmap(before[name], step[name]))
        assert torch.equal(log[name], factor.logmap(before[name], after[name]))
        assert torch.equal(moved[name], factor.transp(before[name], after[name], step[name]))
        squared_length += factor.inner(before[name], step[name])
        squared_dist += factor.dist(before[name], after[name]) ** 2
    assert torch.allclose(M.inner(x, u), squared_length)
    assert torch.allclose(M.dist(x, y) ** 2, squared_dist)


def test_capabilities_hold_where_every_factor_has_them():
    assert (M.has_logmap, M.is_transp_isometric, M.is_transp_parallel) == (True, True, True)
    mixed = Product({"a": (Euclidean(), (2,)), "b": (SPDBuresWasserstein(), (2, 2))})
    assert (mixed.has_logmap, mixed.is_transp_isometric) == (True, True)
    assert not mixed.is_transp_parallel
    assert not Product({"a": (FixedRank(4, 3, 1), (8, 1))}).has_logmap


def test_products_are_equal_when_their_factors_are():
    assert Product(PARTS) == M
    assert hash(Product(PARTS)) == hash(M)
    assert Product({"bias": (Euclidean(), (4,))}) != M


def test_errors_name_the_factor_and_the_sizes():
    x = draw(5)
    with pytest.raises(ValueError, match=r"Expected the factors \['basis', 'bias', 'place'\]"):
        M.pack({"basis": x})
    with pytest.raises(ValueError, match=r"Expected size of shape \(..., 19\), got \(20,\)"):
        M.random(20, generator=torch.Generator())
    ok, reason = M.check_point_on_manifold(x + 1, explain=True)
    assert not ok
    assert "membership_defect" in reason
    with pytest.raises(ValueError, match="at least one factor"):
        Product({})


@pytest.mark.parametrize(
    ("factor", "shape", "message"),
    [
        (Grassmann(), (6,), r"'a' of 2 dimensions \(Grassmann\), got shape \(6,\)"),
        (Grassmann(), (5, 6, 2), r"'a' of 2 dimensions \(Grassmann\), got shape \(5, 6, 2\)"),
        (Euclidean(), (3, 2), r"'a' of 1 dimensions \(Euclidean\), got shape \(3, 2\)"),
        (Grassmann(), (2, 6), r"factor 'a': Expected points of shape .*n >= k, got \(2, 6\)"),
    ],
)
def test_a_factor_of_another_shape_than_its_manifolds_is_refused(factor, shape, message):
    with pytest.raises(ValueError, match=message):
        Product({"bias": (Euclidean(), (4,)), "a": (factor, shape)})

"""A product acts factor by factor on one packed vector."""

import pytest
import torch

from manifed.manifolds import Euclidean, Grassmann, PoincareBall, Product
from manifed_extras.fixed_rank import FixedRank
from reproduction.bures_wasserstein import SPDBuresWasserstein
from tests.tensors import generator, normals

PARTS = {
    "basis": (Grassmann(), (6, 2)),
    "place": (PoincareBall(), (3,)),
    "bias": (Euclidean(), (4,)),
}
M = Product(PARTS)


def draw(seed, *lead):
    return M.random(*lead, *M.point_shape, generator=generator(seed))


def test_every_operation_is_the_factors_own():
    x, y = draw(2, 3), draw(3, 3)
    u = 0.3 * M.from_coords(x, normals(4, 3, *M.coords_shape(M.point_shape)))
    squares = []
    for name, (factor, _) in PARTS.items():
        a, b, v = (M.unpack(t)[name] for t in (x, y, u))
        for found, own in (
            (M.expmap(x, u), factor.expmap(a, v)),
            (M.logmap(x, y), factor.logmap(a, b)),
            (M.transp(x, y, u), factor.transp(a, b, v)),
        ):
            assert torch.equal(M.unpack(found)[name], own)
        squares.append(torch.stack([factor.inner(a, v), factor.dist(a, b) ** 2]))
    expected = torch.stack(squares).sum(0)
    assert torch.allclose(torch.stack([M.inner(x, u), M.dist(x, y) ** 2]), expected)


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
    with pytest.raises(ValueError, match="factors: expected a dict of at least one"):
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

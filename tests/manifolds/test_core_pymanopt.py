"""Agreement with pymanopt where it has the operation (its transports are projections)."""

import numpy as np
import pytest
import torch

from manifed.manifolds import SPD, Manifold, Sphere, Stiefel

manifolds = pytest.importorskip("pymanopt.manifolds")


def pairs() -> list[tuple[str, Manifold, object, tuple[int, ...], tuple[str, ...]]]:
    every = ("exp", "log", "dist", "retraction", "inner", "egrad", "norm")
    stiefel = ("exp", "retraction", "inner", "egrad", "norm")
    return [
        ("sphere", Sphere(), manifolds.Sphere(6), (6,), every),
        ("spd", SPD(), manifolds.SymmetricPositiveDefinite(4), (4, 4), every),
        ("polar", Stiefel(), manifolds.Stiefel(7, 3, retraction="polar"), (7, 3), stiefel),
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "shape", "operations"),
    [pair[1:] for pair in pairs()],
    ids=[pair[0] for pair in pairs()],
)
def test_every_shared_operation_agrees(ours, theirs, shape, operations):
    generator = torch.Generator().manual_seed(1)
    x = ours.random(*shape, generator=generator)
    u, v, g = torch.randn((3, *shape), generator=generator, dtype=torch.float64)
    u = 0.3 * ours.proju(x, u)
    v = ours.proju(x, v)
    y = ours.expmap(x, u)
    a, b, p, q, h = (t.numpy() for t in (x, y, u, v, g))
    table = {
        "exp": lambda: (ours.expmap(x, u), theirs.exp(a, p)),
        "log": lambda: (ours.logmap(x, y), theirs.log(a, b)),
        "dist": lambda: (ours.dist(x, y), theirs.dist(a, b)),
        "retraction": lambda: (ours.retr(x, u), theirs.retraction(a, p)),
        "inner": lambda: (ours.inner(x, u, v), theirs.inner_product(a, p, q)),
        "egrad": lambda: (ours.egrad2rgrad(x, g), theirs.euclidean_to_riemannian_gradient(a, h)),
        "norm": lambda: (ours.norm(x, u), theirs.norm(a, p)),
    }
    for operation in operations:
        mine, reference = table[operation]()
        np.testing.assert_allclose(mine.numpy(), reference, atol=1e-10, err_msg=operation)
    assert ours.dim(shape) == theirs.dim

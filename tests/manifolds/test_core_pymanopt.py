"""Agreement with pymanopt where it has the operation (its transports are projections)."""

import numpy as np
import pytest

from manifed.manifolds import SPD, Sphere, Stiefel
from tests.tensors import generator, normals

manifolds = pytest.importorskip("pymanopt.manifolds")


@pytest.mark.parametrize(
    ("ours", "theirs", "shape"),
    [
        (Sphere(), manifolds.Sphere(6), (6,)),
        (SPD(), manifolds.SymmetricPositiveDefinite(4), (4, 4)),
        (Stiefel(), manifolds.Stiefel(7, 3, retraction="polar"), (7, 3)),
    ],
)
def test_every_shared_operation_agrees(ours, theirs, shape):
    x = ours.random(*shape, generator=generator(1))
    u, v, g = normals(2, 3, *shape)
    u = 0.3 * ours.proju(x, u)
    v = ours.proju(x, v)
    y = ours.expmap(x, u)
    a, b, p, q, h = (t.numpy() for t in (x, y, u, v, g))
    pairs = {
        "exp": (y, theirs.exp(a, p)),
        "retraction": (ours.retr(x, u), theirs.retraction(a, p)),
        "inner": (ours.inner(x, u, v), theirs.inner_product(a, p, q)),
        "egrad": (ours.egrad2rgrad(x, g), theirs.euclidean_to_riemannian_gradient(a, h)),
        "norm": (ours.norm(x, u), theirs.norm(a, p)),
    }
    if not isinstance(ours, Stiefel):
        pairs |= {"log": (ours.logmap(x, y), theirs.log(a, b)),
                  "dist": (ours.dist(x, y), theirs.dist(a, b))}  # fmt: skip
    for operation, (mine, reference) in pairs.items():
        np.testing.assert_allclose(mine, reference, atol=1e-10, err_msg=operation)
    assert ours.dim(shape) == theirs.dim

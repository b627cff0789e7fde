"""The oblique manifold is a product of spheres, column by column."""

import torch

from manifed.manifolds.oblique import Oblique
from manifed.manifolds.sphere import Sphere

OBLIQUE, SPHERE = Oblique(), Sphere()


def test_every_operation_is_the_spheres_on_each_column():
    g = torch.Generator().manual_seed(1)
    x, y = (OBLIQUE.random(4, 6, 3, generator=g) for _ in range(2))
    u = OBLIQUE.from_coords(x, torch.randn(4, 6, 3, generator=g, dtype=torch.float64))
    pairs = [
        (OBLIQUE.expmap(x, u), SPHERE.expmap(x.mT, u.mT)),
        (OBLIQUE.logmap(x, y), SPHERE.logmap(x.mT, y.mT)),
        (OBLIQUE.transp(x, y, u), SPHERE.transp(x.mT, y.mT, u.mT)),
        (OBLIQUE.retr(x, u), SPHERE.retr(x.mT, u.mT)),
    ]
    for ours, columns in pairs:
        assert torch.allclose(ours, columns.mT, rtol=0, atol=1e-13)
    squares = SPHERE.dist(x.mT, y.mT).square().sum(-1)
    assert torch.allclose(OBLIQUE.dist(x, y).square(), squares, rtol=1e-13)


def test_a_zero_column_projects_to_a_valid_point():
    x = OBLIQUE.projx(torch.zeros(3, 2, dtype=torch.float64))
    assert OBLIQUE.check_point_on_manifold(x, atol=1e-15)

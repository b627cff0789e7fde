"""What every manifold inherits: the Fréchet mean."""

import subprocess
import sys

import pytest
import torch

from manifed.manifolds import SPD, Lorentz, Sphere
from manifed.manifolds.base import Manifold
from tests.tensors import generator, normals


@pytest.mark.parametrize(
    ("manifold", "shape", "radius"),
    [(SPD(), (4, 4), 6.0), (Lorentz(), (6,), 2.0), (Lorentz(), (6,), 8.0), (Sphere(), (6,), 1.4)],
)
def test_frechet_mean_converges_for_widely_spread_points(manifold, shape, radius):
    x = manifold.random(2, *shape, generator=generator(40))
    u = manifold.from_coords(x, normals(41, 12, 2, *manifold.coords_shape(shape)))
    points = manifold.expmap(x, u * (radius / manifold.norm(x, u, keepdim=True)))
    mean = manifold.frechet_mean(points, max_iterations=60)
    residual = manifold.norm(mean, manifold.logmap(mean, points).mean(0))
    assert residual.max() <= 1e-9


def test_coordinates_are_not_read_by_a_formula_for_others():
    own = {"from_coords": lambda self, x, c: self.proju(x, -c)}
    with pytest.raises(TypeError, match=r"Mirrored\.to_coords: expected one for its own"):
        type("Mirrored", (Sphere,), own)
    m = type("Mirrored", (Sphere,), own | {"to_coords": Manifold.to_coords})()
    x = m.random(6, generator=generator(1), dtype=torch.float64)
    u = m.proju(x, normals(2, 6))
    assert torch.allclose(m.from_coords(x, m.to_coords(x, u)), u)


@pytest.mark.slow
def test_the_manifolds_need_neither_pydantic_nor_flower():
    found = "[m for m in ('pydantic', 'flwr') if m in sys.modules]"
    code = f"import sys, manifed.manifolds; sys.exit(' '.join({found}) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

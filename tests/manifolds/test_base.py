"""What every manifold inherits: the Fréchet mean."""

import subprocess
import sys

import pytest

from manifed.manifolds import SPD, Lorentz, Sphere
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


@pytest.mark.slow
def test_the_manifolds_need_neither_pydantic_nor_flower():
    found = "[m for m in ('pydantic', 'flwr') if m in sys.modules]"
    code = f"import sys, manifed.manifolds; sys.exit(' '.join({found}) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

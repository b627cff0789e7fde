"""Riemannian manifolds as geoopt.Manifold subclasses with exact numerics (floor 1)."""

from manifolds.base import Manifold
from manifolds.euclidean import Euclidean
from manifolds.sphere import Sphere

__all__ = [
    "Euclidean",
    "Manifold",
    "Sphere",
]

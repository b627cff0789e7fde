"""Riemannian manifolds, whose classes are derived from `geoopt.Manifold`."""

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.hyperbolic import Lorentz, PoincareBall
from manifed.manifolds.product import Power, Product, Scaled
from manifed.manifolds.spd import SPD, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel

__all__ = [
    "SPD",
    "Euclidean",
    "Grassmann",
    "Lorentz",
    "Manifold",
    "PoincareBall",
    "Power",
    "Product",
    "SPDLogEuclidean",
    "Scaled",
    "Sphere",
    "Stiefel",
]

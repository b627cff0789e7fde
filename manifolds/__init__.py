"""Riemannian manifolds as geoopt.Manifold subclasses with exact numerics (floor 1)."""

from manifolds.base import Manifold
from manifolds.euclidean import Euclidean
from manifolds.fixed_rank import FixedRank
from manifolds.grassmann import Grassmann
from manifolds.hyperbolic import Lorentz
from manifolds.oblique import Oblique
from manifolds.poincare import PoincareBall
from manifolds.product import Product
from manifolds.rotations import SpecialOrthogonal
from manifolds.spd import SPD
from manifolds.spd_bures import SPDBuresWasserstein
from manifolds.spd_flat import SPDLogCholesky, SPDLogEuclidean
from manifolds.sphere import Sphere
from manifolds.stiefel import Stiefel

__all__ = [
    "SPD",
    "Euclidean",
    "FixedRank",
    "Grassmann",
    "Lorentz",
    "Manifold",
    "Oblique",
    "PoincareBall",
    "Product",
    "SPDBuresWasserstein",
    "SPDLogCholesky",
    "SPDLogEuclidean",
    "SpecialOrthogonal",
    "Sphere",
    "Stiefel",
]

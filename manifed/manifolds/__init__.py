"""Riemannian manifolds as geoopt.Manifold subclasses with exact numerics (floor 1)."""

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.fixed_rank import FixedRank
from manifed.manifolds.grassmann import Grassmann
from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.oblique import Oblique
from manifed.manifolds.poincare import PoincareBall
from manifed.manifolds.power import Power
from manifed.manifolds.product import Product
from manifed.manifolds.rotations import SpecialOrthogonal
from manifed.manifolds.scaled import Scaled
from manifed.manifolds.spd import SPD, SPDBuresWasserstein
from manifed.manifolds.spd_flat import SPDLogCholesky, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel

__all__ = [
    "SPD",
    "Euclidean",
    "FixedRank",
    "Grassmann",
    "Lorentz",
    "Manifold",
    "Oblique",
    "PoincareBall",
    "Power",
    "Product",
    "SPDBuresWasserstein",
    "SPDLogCholesky",
    "SPDLogEuclidean",
    "Scaled",
    "SpecialOrthogonal",
    "Sphere",
    "Stiefel",
]

"""Riemannian manifolds as `geoopt.Manifold`s, each imported when it is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOME = {
    **{name: name.lower() for name in ("Euclidean", "Grassmann", "Sphere", "Stiefel")},
    "Manifold": "base",
    **dict.fromkeys(("Lorentz", "PoincareBall"), "hyperbolic"),
    **dict.fromkeys(("Power", "Product", "Scaled"), "product"),
    **dict.fromkeys(("SPD", "SPDLogEuclidean"), "spd"),
}


def __getattr__(name: str) -> object:
    """Imports a manifold when it is asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

"""Ours for a manifold of geoopt's: the one with the same points and the same metric.

geoopt's have no isotropic noise, no exact maps on all of them and no measure of defects, which is
why they are replaced. A manifold of this library stands for itself.
"""

import geoopt

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.hyperbolic import Lorentz, PoincareBall
from manifed.manifolds.product import Scaled
from manifed.manifolds.spd import SPD, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel


def counterpart(theirs: object, ndim: int = 0) -> Manifold:
    """Returns manifed's manifold for one of geoopt; ``ndim`` is that of a flat space's points.

    Raises:
        TypeError: there is none; naming those that have one.
        ValueError: its scale is far from 1.
    """
    base, scale = theirs, 1.0
    while isinstance(base, geoopt.Scaled) and not [*base.parameters(recurse=False)]:
        base, scale = base.base, scale * float(base.scale)
    found = _unscaled(base, ndim)
    if found is None:
        shown = theirs if isinstance(theirs, geoopt.Manifold) else type(theirs).__name__
        raise TypeError(
            "manifold: expected one of geoopt's Euclidean, Stiefel (both metrics), Sphere, "
            "Lorentz(k=1), PoincareBall(c=1), SymmetricPositiveDefinite (AIM or LEM), "
            f"Scaled of these with a fixed scale, or a manifold of manifed, got {shown}"
        )
    return found if scale == 1.0 else Scaled(found, scale)


def _unscaled(theirs: object, ndim: int) -> Manifold | None:
    """Ours for geoopt's without a scale; None: there is none."""
    match theirs:
        case Manifold():
            return theirs
        case geoopt.Euclidean():
            return Euclidean(max(ndim, theirs.ndim, 1))
        case geoopt.Lorentz(k=curvature) | geoopt.PoincareBall(c=curvature):
            found = Lorentz() if isinstance(theirs, geoopt.Lorentz) else PoincareBall()
            return found if float(curvature) == 1.0 else None
        case geoopt.SymmetricPositiveDefinite():
            known = {"AIM": SPD(), "LEM": SPDLogEuclidean()}
            return known.get(str(theirs.default_metric.value))
        case geoopt.Manifold() if [*theirs.buffers()]:  # a sphere in a subspace
            return None
        case _:
            return _SAME.get(type(theirs))


_SAME: dict[type, Manifold] = {
    geoopt.EuclideanStiefel: Stiefel("euclidean"),
    geoopt.EuclideanStiefelExact: Stiefel("euclidean"),
    # named to be replaced; nothing is computed with it
    geoopt.CanonicalStiefel: Stiefel("canonical"),  # noqa: TID251
    geoopt.Sphere: Sphere(),
    geoopt.SphereExact: Sphere(),
}

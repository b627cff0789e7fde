"""The parameters of a torch module as one point of a product of manifolds.

A `geoopt.ManifoldParameter` lives on its own manifold, any other parameter in Euclidean space of
its shape. Frozen parameters (``requires_grad = False``) and buffers are constants; a tied parameter
is one factor, under its first name. Leading dimensions of a manifold parameter are so many points.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import geoopt
import torch
from torch import Tensor, nn

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.hyperbolic import Lorentz, PoincareBall
from manifed.manifolds.product import Power, Product, Scaled
from manifed.manifolds.spd import SPD, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel

_KNOWN = (
    "Euclidean, Stiefel (canonical or Euclidean metric), Sphere, Lorentz(k=1), PoincareBall(c=1), "
    "SymmetricPositiveDefinite (AIM or LEM), Scaled of these with a fixed scale, and every "
    "manifold of manifed"
)


class UnknownManifold(ValueError):
    """A parameter on a manifold without a counterpart here."""


def manifold_of(parameter: Tensor, name: str) -> Manifold:
    """The manifold of this library that a parameter lives on, of as many dimensions as it has.

    Raises:
        UnknownManifold: naming the parameter, its manifold and those that are known, or its scale.
    """
    if not isinstance(parameter, geoopt.ManifoldParameter):
        return Euclidean(max(parameter.dim(), 1))
    try:
        base = _with_scale(parameter.manifold, parameter.dim())
    except ValueError as error:
        raise UnknownManifold(f"model: parameter {name!r}: {error}") from None
    if base is None:
        raise UnknownManifold(
            f"model: parameter {name!r} lives on {parameter.manifold}, expected one of {_KNOWN}"
        )
    while base.ndim < parameter.dim():
        base = Power(base)
    return base


def _counterpart(theirs: geoopt.Manifold, ndim: int) -> Manifold | None:
    """Ours for geoopt's; None: there is none."""
    if isinstance(theirs, Manifold):
        return theirs
    if isinstance(theirs, geoopt.Lorentz):
        return Lorentz() if float(theirs.k) == 1.0 else None
    if isinstance(theirs, geoopt.PoincareBall):
        return PoincareBall() if float(theirs.c) == 1.0 else None
    if isinstance(theirs, geoopt.SymmetricPositiveDefinite):
        return _SPD.get(str(theirs.default_metric.value))
    if any(True for _ in theirs.buffers()):  # a sphere in a subspace
        return None
    flat = Euclidean(max(ndim, 1))
    return flat if type(theirs) is geoopt.Euclidean else _SAME.get(type(theirs))


def _with_scale(theirs: geoopt.Manifold, ndim: int) -> Manifold | None:
    """Our manifold for a geoopt one with its scale; None where the scale is learned."""
    scale, base = 1.0, theirs
    while isinstance(base, geoopt.Scaled):
        if any(True for _ in base.parameters(recurse=False)):
            return None
        scale, base = scale * float(base.scale), base.base
    found = _counterpart(base, ndim)
    return found if found is None or scale == 1.0 else Scaled(found, scale)


_SPD = {"AIM": SPD(), "LEM": SPDLogEuclidean()}
_SAME: Mapping[type, Manifold] = {
    geoopt.EuclideanStiefel: Stiefel("euclidean"),
    geoopt.EuclideanStiefelExact: Stiefel("euclidean"),
    geoopt.CanonicalStiefel: Stiefel("canonical"),  # noqa: TID251
    geoopt.Sphere: Sphere(),
    geoopt.SphereExact: Sphere(),
}


@dataclass(frozen=True)
class Layout:
    """Which part of a point is which parameter."""

    manifold: Product
    shapes: Mapping[str, torch.Size]
    """The shape of each trained parameter, by its first name."""

    @staticmethod
    def of(model: nn.Module) -> "Layout":
        """Lays out the parameters that are trained.

        Raises:
            UnknownManifold: as `manifold_of`.
            ValueError: nothing is trained, or a parameter is off its manifold.
        """
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError(
                "model: expected a parameter with requires_grad, got none; unfreeze what is trained"
            )
        factors = dict[str, tuple[Manifold, tuple[int, ...]]]()
        for name, parameter in trained.items():
            manifold, point = manifold_of(parameter, name), _point(parameter)
            if not manifold.check_point_on_manifold(point.to(torch.float64), atol=1e-4, rtol=1e-4):
                raise ValueError(
                    f"model: parameter {name!r} is no point of {manifold.name}; project it in the "
                    "constructor (ManifoldParameter.proj_())"
                )
            factors[name] = (manifold, tuple(point.shape))
        return Layout(Product(factors), {name: p.shape for name, p in trained.items()})

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One vector (P,) in float64 from tensors by the parameters' names; others are ignored."""
        parts = {name: _point(tensors[name]).to(torch.float64) for name in self.shapes}
        return self.manifold.pack(parts)

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters, by name, of one point (P,)."""
        parts = self.manifold.unpack(x)
        return {name: parts[name].reshape(shape) for name, shape in self.shapes.items()}


def _point(parameter: Tensor) -> Tensor:
    """The numbers of a parameter; a single number is a vector of one entry."""
    plain = parameter.detach().as_subclass(Tensor)
    return plain.reshape(1) if plain.dim() == 0 else plain

"""Manifolds made of others: products of named factors, powers, and changes of scale.

All three hand every movement on to what they are made of (`_Composed`); what differs is how points
are stored and what becomes of the metric.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, linalg

from manifed.errors import check_kind, short
from manifed.manifolds.base import Manifold
from manifed.manifolds.linalg import Shape, Tensors

_Part = Callable[..., Tensor]
"""A manifold's operation on the parts of points and vectors that lie on it: (manifold, *parts)."""


def _part_by_part(name: str) -> Callable[..., Tensor]:
    """The method ``name`` of every part, on what tensors (..., *point) hold of that part."""

    def method(self: "_Composed", *tensors: Tensor) -> Tensor:
        return self.joined(lambda manifold, *parts: getattr(manifold, name)(*parts), *tensors)

    return method


class _Composed(Manifold):
    """A manifold whose points are points of others, moved there one by one."""

    def __init__(self, parts: list[Manifold]) -> None:
        super().__init__()
        for part in parts:
            check_kind("manifold", part, Manifold, "a manifold of manifed")
        for name in ("has_logmap", "is_transp_isometric", "is_transp_parallel"):
            setattr(self, name, all(getattr(part, name) for part in parts))
        self.looks_at_all_pairs = any(m.looks_at_all_pairs for m in parts)

    @abstractmethod
    def joined(self, operation: _Part, *tensors: Tensor) -> Tensor:
        """``operation`` on every part, in the shape of a point."""

    @abstractmethod
    def measured(self, operation: _Part, *tensors: Tensor) -> Tensor:
        """``operation``, of one number a part, on every part: shape (..., parts)."""

    projx = _part_by_part("projx")
    proju = _part_by_part("proju")
    egrad2rgrad = _part_by_part("egrad2rgrad")
    retr = _part_by_part("retr")
    invretr = _part_by_part("invretr")
    expmap = _part_by_part("expmap")
    logmap = _part_by_part("logmap")
    transp = _part_by_part("transp")
    projected = _part_by_part("projected")
    tangent_part = _part_by_part("tangent_part")

    # -- the sum of the metrics ---------------------------------------------------------------
    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """The sum of the parts' inner products, shape ``(...)``."""
        tensors = (x, u) if v is None else (x, u, v)
        total = self.measured(lambda m, *a: m.inner(*a), *tensors).sum(-1)
        return self.expand_scalar(total) if keepdim else total

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """The root of the sum of the parts' squared distances."""
        distances = self.measured(lambda m, a, b: m.dist(a, b), x, y)
        return self.expand_scalar(linalg.vector_norm(distances, dim=-1))

    def norm_slack(self, x: Tensor) -> Tensor:
        """The largest of the parts', shape ``(...)``."""
        return self.measured(lambda m, a: m.norm_slack(a), x).amax(-1)

    # -- checks ------------------------------------------------------------------------------
    def membership_defect(self, x: Tensor) -> Tensor:
        """The parts' largest, shape (...,)."""
        return self.measured(lambda m, a: m.membership_defect(a), x).amax(-1)

    def tangency_defect(self, x: Tensor, u: Tensor) -> Tensor:
        """The parts' largest, shape (...,)."""
        return self.measured(lambda m, a, b: m.tangency_defect(a, b), x, u).amax(-1)


# -- a product ---------------------------------------------------------------------------------
class Factor(NamedTuple):
    """A factor of a product: its name, its manifold and the shape of one of its points."""

    name: str
    manifold: Manifold
    shape: Shape


class Product(_Composed):
    """The product M_1 x ... x M_k with the sum of the metrics; points (..., total size).

    A point of ``Product({"basis": (Grassmann(), (20, 3)), "mean": (Euclidean(), (5,))})`` is a
    vector of length 65: the factors' points, flattened and joined in order, so a product travels,
    averages and clips as one tensor.
    """

    name = "Product"

    def __init__(self, factors: Mapping[str, tuple[Manifold, Shape]]) -> None:
        is_named = isinstance(factors, Mapping) and len(factors)
        if not is_named or not all(isinstance(f, tuple) and len(f) == 2 for f in factors.values()):
            raise ValueError(
                "factors: expected a dict of at least one name to (manifold, shape of one point), "
                f"got {short(factors)}"
            )
        super().__init__([manifold for manifold, _ in factors.values()])
        self.factors = tuple(Factor(key, m, tuple(shape)) for key, (m, shape) in factors.items())
        for f in self.factors:
            if len(f.shape) != f.manifold.ndim:
                raise ValueError(
                    f"Expected factor {f.name!r} of {f.manifold.ndim} dimensions "
                    f"({f.manifold.name}), got shape {f.shape}; give the shape of one point, "
                    "without leading dimensions"
                )
            if not f.manifold.fits(f.shape):
                raise ValueError(
                    f"factor {f.name!r}: Expected points of shape {f.manifold.form}, got {f.shape}"
                )
        self.is_whole_space = all(f.manifold.is_whole_space for f in self.factors)
        self.form = f"(..., {self.point_shape[0]})"

    def settings(self) -> tuple[object, ...]:
        """The factors."""
        return self.factors

    # -- packing -----------------------------------------------------------------------------
    @property
    def point_shape(self) -> tuple[int]:
        """The shape of one packed point."""
        return (sum(prod(f.shape) for f in self.factors),)

    def fits(self, shape: Shape) -> bool:
        """Whether a shape has the total size of all factors."""
        return tuple(shape) == self.point_shape

    def pack(self, parts: Tensors) -> Tensor:
        """One vector ``(..., total size)`` from named points (or tangents) of the factors."""
        names = {f.name for f in self.factors}
        if set(parts) != names:
            raise ValueError(f"Expected the factors {sorted(names)}, got {sorted(parts)}")
        return self._join([parts[f.name] for f in self.factors])

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """The named points (or tangents) of the factors, shapes ``(..., *factor shape)``."""
        return {f.name: part for f, part in zip(self.factors, self._points(x), strict=True)}

    def _points(self, x: Tensor) -> list[Tensor]:
        return _split(x, [f.shape for f in self.factors])

    def _normals(self, c: Tensor) -> list[Tensor]:
        return _split(c, self._coords_shapes())

    def _join(self, parts: list[Tensor]) -> Tensor:
        zipped = zip(self.factors, parts, strict=True)
        flat = [part.flatten(-f.manifold.ndim) for f, part in zipped]
        lead = np.broadcast_shapes(*[part.shape[:-1] for part in flat])
        return torch.cat([part.expand(*lead, -1) for part in flat], dim=-1)

    def _each(self, operation: _Part, *parts: list[Tensor]) -> list[Tensor]:
        """``operation`` on every factor, with its own of each of the ``parts``."""
        return [operation(f.manifold, *own) for f, *own in zip(self.factors, *parts, strict=True)]

    def joined(self, operation: _Part, *tensors: Tensor) -> Tensor:
        """``operation`` on every factor, packed."""
        return self._join(self._each(operation, *map(self._points, tensors)))

    def measured(self, operation: _Part, *tensors: Tensor) -> Tensor:
        """``operation`` on every factor, shape (..., factors)."""
        return torch.stack(self._each(operation, *map(self._points, tensors))).movedim(0, -1)

    # -- sizes -------------------------------------------------------------------------------
    def dim(self, shape: Shape) -> int:
        """The sum of the factors' dimensions."""
        return sum(f.manifold.dim(f.shape) for f in self.factors)

    def coords_shape(self, shape: Shape) -> Shape:
        """One vector: the factors' coordinates, joined."""
        return (sum(map(prod, self._coords_shapes())),)

    def _coords_shapes(self) -> list[Shape]:
        return [f.manifold.coords_shape(f.shape) for f in self.factors]

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """``from_coords`` on every factor, with independent coordinates."""
        parts = self._points(x), self._normals(c)
        return self._join(self._each(lambda m, *a: m.from_coords(*a), *parts))

    to_coords = _part_by_part("to_coords")

    def of_normals(self, z: Tensor) -> Tensor:
        """Independent random points of the factors."""
        return self._join(self._each(lambda m, a: m.of_normals(a), self._normals(z)))

    def frechet_mean(self, points: Tensor, weights: Tensor | None = None, **how: Any) -> Tensor:
        """The factors' Fréchet means: the sum of squared distances splits."""
        return self.joined(lambda m, a: m.frechet_mean(a, weights, **how), points)


def _split(flat: Tensor, shapes: list[Shape]) -> list[Tensor]:
    """Tensors (..., *shape) out of one vector (..., total size)."""
    parts = flat.split([prod(shape) for shape in shapes], dim=-1)
    return [part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True)]


# -- one manifold, many times or in another scale ------------------------------------------------
class _OverBase(_Composed):
    """Another manifold's points and geodesics; sizes and metric are those of a subclass."""

    def __init__(self, base: Manifold) -> None:
        super().__init__([base])
        self.base = base
        self.form = base.form

    def joined(self, operation: _Part, *tensors: Tensor) -> Tensor:
        """The base's."""
        return operation(self.base, *tensors)

    def fits(self, shape: Shape) -> bool:
        """Whether the base's points have that shape."""
        return self.base.fits(shape[-self.base.ndim :])

    def dim(self, shape: Shape) -> int:
        """The base's."""
        return self.base.dim(shape)

    def coords_shape(self, shape: Shape) -> Shape:
        """The base's."""
        return self.base.coords_shape(shape)

    from_coords = _part_by_part("from_coords")
    to_coords = _part_by_part("to_coords")
    of_normals = _part_by_part("of_normals")
    of_zeros = _part_by_part("of_zeros")


class Power(_OverBase):
    """The power M^k for any k with the sum of the metrics; points (..., k, *point of M).

    Unlike `Product` it needs no shapes to be built.
    """

    name = "Power"

    def __init__(self, base: Manifold) -> None:
        super().__init__(base)
        self.ndim = base.ndim + 1

    def settings(self) -> tuple[object, ...]:
        """The base manifold."""
        return (self.base,)

    def dim(self, shape: Shape) -> int:
        """K times the base's dimension."""
        return shape[0] * self.base.dim(shape[1:])

    def coords_shape(self, shape: Shape) -> Shape:
        """K of the base's coordinates."""
        return (shape[0], *self.base.coords_shape(shape[1:]))

    def measured(self, operation: _Part, *tensors: Tensor) -> Tensor:
        """Computes ``operation`` of the base, shape (..., k)."""
        return operation(self.base, *tensors)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """The root of the sum of the base's squared norms, shape ``(...)``."""
        total = linalg.vector_norm(self.base.norm(x, u), dim=-1)
        return self.expand_scalar(total) if keepdim else total


def _times_scale(name: str, power: int) -> Callable[..., Tensor]:
    """c^power times what the base's method ``name`` returns."""

    def method(self: "Scaled", *tensors: Tensor | None, **options: bool) -> Tensor:
        return getattr(self.base, name)(*tensors, **options) * self.scale**power

    return method


class Scaled(_OverBase):
    """The manifold M with distances ``scale`` times as long; points and vectors as in M.

    With g' = c^2 g the Christoffel symbols are those of g, so geodesics, logarithms and transports
    stay as they are. What changes follows from <u, v>' = c^2 <u, v>:

        |u|' = c |u|,    dist' = c dist,    grad' f = grad f / c^2,    |grad' f|' = |grad f| / c,

    and an orthonormal basis is 1/c times one of g, so N'_x(0, 1) = N_x(0, 1) / c. A clip to C keeps
    gradients of |grad f| <= c C, and a step of the same size moves 1 / c^2 as far. geoopt's
    `Scaled` stores the vectors c u in the place of u, and leaves gradients as they are: its steps
    are c times these.
    """

    name = "Scaled"

    def __init__(self, base: Manifold, scale: float) -> None:
        """``scale`` > 0.

        Raises:
            ValueError: another scale, or one far from 1: squares of short vectors vanish before
                they are scaled.
        """
        super().__init__(base)
        if not isinstance(scale, int | float) or not 1e-10 <= scale <= 1e10:
            raise ValueError(f"scale: expected a number from 1e-10 to 1e10, got {short(scale)}")
        self.scale = float(scale)
        self.ndim = base.ndim
        self.is_whole_space = base.is_whole_space

    def settings(self) -> tuple[object, ...]:
        """The base manifold and the scale."""
        return (self.base, self.scale)

    def measured(self, operation: _Part, *tensors: Tensor) -> Tensor:
        """Computes ``operation`` of the base, shape (..., 1)."""
        return operation(self.base, *tensors).unsqueeze(-1)

    inner = _times_scale("inner", 2)
    norm = _times_scale("norm", 1)
    norm_bound = _times_scale("norm_bound", 1)  # the base knows where its own squares vanish
    dist = _times_scale("dist", 1)
    from_coords = _times_scale("from_coords", -1)
    to_coords = _times_scale("to_coords", 1)
    egrad2rgrad = _times_scale("egrad2rgrad", -2)

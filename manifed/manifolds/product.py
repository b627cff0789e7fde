"""Riemannian products of named factors, packed into one trailing dimension.

A point of ``Product({"basis": (Grassmann(), (20, 3)), "mean": (Euclidean(), (5,))})`` is a
vector of length 65: the factors' points, flattened and joined in order, so a product travels,
averages and clips as one tensor. The metric is the sum of the factors' metrics; every other
operation is the factors' own, block by block. The capability flags hold where they hold for
every factor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.base import Manifold, verdict


@dataclass(frozen=True)
class Factor:
    """One factor: its name, its manifold and the shape of one of its points."""

    name: str
    manifold: Manifold
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries of a point."""
        return prod(self.shape)

    @property
    def num_coords(self) -> int:
        """Number of normals that one draw of noise consumes."""
        return prod(self.manifold.coords_shape(self.shape))

    def check(self) -> None:
        """Refuse a shape that no single point of the manifold has.

        Raises:
            ValueError: naming the factor, the dimensions and the shape.
        """
        manifold = self.manifold
        if len(self.shape) != manifold.ndim:
            raise ValueError(
                f"Expected factor {self.name!r} of {manifold.ndim} dimensions ({manifold.name}), "
                f"got shape {self.shape}; give the shape of one point, without leading dimensions"
            )
        shape: Any = self.shape  # geoopt declares a tuple of one number
        checked: Any = manifold._check_shape(shape, "shape")
        if not checked[0]:
            raise ValueError(f"factor {self.name!r}: {checked[1]}")


class Product(Manifold):
    """M_1 x ... x M_k with the sum of the metrics; points have shape ``(..., total size)``."""

    name = "Product"
    ndim = 1
    reversible = False

    def __init__(self, factors: Mapping[str, tuple[Manifold, tuple[int, ...]]]) -> None:
        super().__init__()
        if not factors:
            raise ValueError("Expected at least one factor, got none")
        self.factors = tuple(Factor(key, m, tuple(shape)) for key, (m, shape) in factors.items())
        for f in self.factors:
            f.check()
        self.has_logmap = all(f.manifold.has_logmap for f in self.factors)
        self.is_transp_isometric = all(f.manifold.is_transp_isometric for f in self.factors)
        self.is_transp_parallel = all(f.manifold.is_transp_parallel for f in self.factors)
        self.looks_at_all_pairs = any(f.manifold.looks_at_all_pairs for f in self.factors)
        self.is_whole_space = all(f.manifold.is_whole_space for f in self.factors)

    def settings(self) -> tuple[object, ...]:
        """The factors."""
        return self.factors

    # -- packing -----------------------------------------------------------------------------
    @property
    def point_shape(self) -> tuple[int]:
        """The shape of one packed point."""
        return (sum(f.size for f in self.factors),)

    def pack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """One vector ``(..., total size)`` from named points (or tangents) of the factors."""
        names = {f.name for f in self.factors}
        if set(parts) != names:
            raise ValueError(f"Expected the factors {sorted(names)}, got {sorted(parts)}")
        return _join([parts[f.name] for f in self.factors], [f.manifold.ndim for f in self.factors])

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """The named points (or tangents) of the factors, shapes ``(..., *factor shape)``."""
        return {f.name: part for f, part in zip(self.factors, self._split(x), strict=True)}

    def _split(self, x: Tensor) -> list[Tensor]:
        parts = x.split([f.size for f in self.factors], dim=-1)
        zipped = zip(self.factors, parts, strict=True)
        return [part.reshape(*part.shape[:-1], *f.shape) for f, part in zipped]

    def _each(self, method: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
        """``method(manifold, *parts)`` on every factor."""
        parts = zip(*[self._split(tensor) for tensor in tensors], strict=True)
        zipped = zip(self.factors, parts, strict=True)
        return [method(f.manifold, *part) for f, part in zipped]

    def _packed(self, method: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        return _join(self._each(method, *tensors), [f.manifold.ndim for f in self.factors])

    # -- sizes -------------------------------------------------------------------------------
    def dim(self, shape: tuple[int, ...]) -> int:
        """The sum of the factors' dimensions."""
        return sum(f.manifold.dim(f.shape) for f in self.factors)

    def coords_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One vector: the factors' coordinates, joined."""
        return (sum(f.num_coords for f in self.factors),)

    # -- the factors' operations -------------------------------------------------------------
    def projx(self, x: Tensor) -> Tensor:
        """``projx`` on every factor."""
        return self._packed(lambda m, a: m.projx(a), x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """``proju`` on every factor."""
        return self._packed(lambda m, a, b: m.proju(a, b), x, u)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """``egrad2rgrad`` on every factor."""
        return self._packed(lambda m, a, b: m.egrad2rgrad(a, b), x, u)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """``retr`` on every factor."""
        return self._packed(lambda m, a, b: m.retr(a, b), x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """``invretr`` on every factor."""
        return self._packed(lambda m, a, b: m.invretr(a, b), x, y)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """``expmap`` on every factor."""
        return self._packed(lambda m, a, b: m.expmap(a, b), x, u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """``logmap`` on every factor."""
        return self._packed(lambda m, a, b: m.logmap(a, b), x, y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """``transp`` on every factor."""
        return self._packed(lambda m, a, b, c: m.transp(a, b, c), x, y, v)

    def projected(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """``projected`` on every factor."""
        return self._packed(lambda m, a, b, c: m.projected(a, b, c), x, y, v)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """``from_coords`` on every factor, with independent coordinates."""
        parts = c.split([f.num_coords for f in self.factors], dim=-1)
        tangents = [
            f.manifold.from_coords(
                point, part.reshape(*part.shape[:-1], *f.manifold.coords_shape(f.shape))
            )
            for f, point, part in zip(self.factors, self._split(x), parts, strict=True)
        ]
        return _join(tangents, [f.manifold.ndim for f in self.factors])

    # -- metric ------------------------------------------------------------------------------
    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """The sum of the factors' inner products, shape ``(...)``."""
        tensors = (x, u) if v is None else (x, u, v)
        values = self._each(lambda m, *a: m.inner(*a), *tensors)
        total = torch.stack(values).sum(0)
        return total.unsqueeze(-1) if keepdim else total

    def norm_slack(self, x: Tensor) -> Tensor:
        """The largest of the factors', shape ``(...)``."""
        slacks = [
            torch.as_tensor(f.manifold.norm_slack(part), dtype=x.dtype, device=x.device)
            for f, part in zip(self.factors, self._split(x), strict=True)
        ]
        return torch.stack(torch.broadcast_tensors(*slacks)).amax(0)

    def tangent_part(self, x: Tensor, u: Tensor) -> Tensor:
        """``tangent_part`` on every factor."""
        return self._packed(lambda m, a, b: m.tangent_part(a, b), x, u)

    def coordinate_squares(self, x: Tensor, u: Tensor) -> Tensor:
        """``coordinate_squares`` on every factor."""
        return self._packed(lambda m, a, b: m.coordinate_squares(a, b), x, u)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """The root of the sum of the factors' squared distances, shape ``(...)``."""
        values = torch.stack(self._each(lambda m, a, b: m.dist(a, b), x, y))
        total = torch.linalg.vector_norm(values, dim=0)
        return total.unsqueeze(-1) if keepdim else total

    def frechet_mean(
        self,
        points: Tensor,
        weights: Tensor | None = None,
        *,
        max_iterations: int = 100,
        tolerance: float = 1e-12,
    ) -> Tensor:
        """The factors' Fréchet means: the sum of squared distances splits."""
        options: dict[str, Any] = {"max_iterations": max_iterations, "tolerance": tolerance}
        return self._packed(lambda m, a: m.frechet_mean(a, weights, **options), points)

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Independent random points of the factors, shape ``(..., total size)``."""
        *lead, total = size2shape(*size)
        if total != self.point_shape[0]:
            raise ValueError(f"Expected points of size {self.point_shape[0]}, got {total}")
        draws = [
            f.manifold.random(*lead, *f.shape, dtype=dtype, device=device, generator=generator)
            for f in self.factors
        ]
        return _join(draws, [f.manifold.ndim for f in self.factors])

    # -- checks ------------------------------------------------------------------------------
    def membership_defect(self, x: Tensor) -> Tensor:
        """The factors' largest, shape (...,)."""
        return torch.stack(self._each(lambda m, a: m.membership_defect(a), x)).amax(0)

    def tangency_defect(self, x: Tensor, u: Tensor) -> Tensor:
        """The factors' largest, shape (...,)."""
        return torch.stack(self._each(lambda m, a, b: m.tangency_defect(a, b), x, u)).amax(0)

    def _off_manifold(self, x: Tensor) -> Tensor:
        return self.membership_defect(x)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        raise NotImplementedError("Expected the factors' own normal parts: call tangency_defect")

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        expected = self.point_shape[0]
        is_ok = len(shape) >= 1 and shape[-1] == expected
        return verdict(is_ok, f"Expected {name} of shape (..., {expected}), got {tuple(shape)}")

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        for f, part in zip(self.factors, self._split(x), strict=True):
            checked: Any = f.manifold._check_point_on_manifold(part, atol=atol, rtol=rtol)
            if not checked[0]:
                return False, f"{f.name}: {checked[1]}"
        return True, None

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        for f, part, vector in zip(self.factors, self._split(x), self._split(u), strict=True):
            checked: Any = f.manifold._check_vector_on_tangent(part, vector, atol=atol, rtol=rtol)
            if not checked[0]:
                return False, f"{f.name}: {checked[1]}"
        return True, None


def _join(parts: list[Tensor], ndims: list[int]) -> Tensor:
    """The parts, each flattened over its own trailing dimensions, joined along the last."""
    flat = [part.flatten(-ndim) for part, ndim in zip(parts, ndims, strict=True)]
    lead = np.broadcast_shapes(*[part.shape[:-1] for part in flat])
    return torch.cat([part.expand(*lead, -1) for part in flat], dim=-1)

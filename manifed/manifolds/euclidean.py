"""Flat space: vectors, matrices or tensors of any order with the Frobenius metric."""

import math
from typing import Any

import numpy as np
import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.base import Manifold, verdict
from manifed.manifolds.defects import largest_entry
from manifed.manifolds.linalg import standard_normal


class Euclidean(Manifold):
    """Flat space; every map is the linear one.

    Args:
        ndim: trailing dimensions of one point: 1 for vectors, 2 for matrices, and so on.
    """

    name = "Euclidean"
    looks_at_all_pairs = False
    carries_rows_apart = True
    reversible = True
    reach = math.inf
    is_whole_space = True

    def __init__(self, ndim: int = 1) -> None:
        super().__init__()
        if ndim < 1:
            raise ValueError(f"Expected ndim >= 1, got {ndim}; a number is a vector of one entry")
        self.ndim = ndim

    def settings(self) -> tuple[object, ...]:
        """What distinguishes two manifolds of this class: ``ndim``."""
        return (self.ndim,)

    def dim(self, shape: tuple[int, ...]) -> int:
        """The number of entries."""
        return torch.Size(shape).numel()

    def coordinate_squares(self, x: Tensor, u: Tensor) -> Tensor:
        """The squares of the entries."""
        del x
        return u.square()

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The coordinates themselves."""
        # numpy's: torch.broadcast_shapes imports sympy, which takes as long as torch itself.
        return c if x.shape == c.shape else c.expand(np.broadcast_shapes(x.shape, c.shape))

    def projx(self, x: Tensor) -> Tensor:
        """The point itself."""
        return x

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector itself."""
        return u if x.shape == u.shape else u.expand(np.broadcast_shapes(x.shape, u.shape))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The gradient itself."""
        return self.proju(x, u)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """Frobenius product, shape (...,)."""
        return (u * (u if v is None else v)).sum(self.point_dims(), keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Frobenius norm, shape (...,)."""
        return torch.linalg.vector_norm(u, dim=self.point_dims(), keepdim=keepdim)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The point x + u."""
        return x + u

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector y - x."""
        return y - x

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The point x + u."""
        return x + u

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector y - x."""
        return y - x

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Frobenius norm of the difference, shape (...,)."""
        return torch.linalg.vector_norm(x - y, dim=self.point_dims(), keepdim=keepdim)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The vector itself (parallel)."""
        return v.expand(np.broadcast_shapes(x.shape, y.shape, v.shape))

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Standard normal entries."""
        return standard_normal(size2shape(*size), generator, dtype, device)

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = None,
    ) -> Tensor:
        """Zero."""
        return torch.zeros(size2shape(*size), dtype=dtype, device=device)

    def _off_manifold(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x[(..., *[0] * self.ndim)])

    def membership_defect(self, x: Tensor) -> Tensor:
        """Zero, or infinite where x is not finite, shape (...,)."""
        return self._zero_if_finite(x)

    def tangency_defect(self, x: Tensor, u: Tensor) -> Tensor:
        """Zero, or infinite where x or u is not finite, shape (...,)."""
        return self._zero_if_finite(x) + self._zero_if_finite(u)

    def _zero_if_finite(self, x: Tensor) -> Tensor:
        """0 where all of a point's entries are finite, else infinity, shape (...,)."""
        products = (0.0 * x).sum(self.point_dims())  # 0 times infinity is NaN
        return products.abs().nan_to_num_(nan=torch.inf)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.zeros_like(largest_entry(x + u, self.ndim))

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        return verdict(bool(x.isfinite().all()), "x has entries that are not finite")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        return verdict(bool(u.isfinite().all()), "u has entries that are not finite")

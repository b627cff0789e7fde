"""k points of one manifold as one point: M^k with the sum of the metrics.

Shape ``(..., k, *point of M)``: every operation is the base's over one more leading dimension, and
the metric sums over it. Unlike `Product` it needs no shapes to be built.
"""

from typing import Any

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.over_base import OverBase


class Power(OverBase):
    """M^k for any k; points ``(..., k, *point)``."""

    name = "Power"

    def __init__(self, base: Manifold) -> None:
        super().__init__(base)
        self.ndim = base.ndim + 1

    def settings(self) -> tuple[object, ...]:
        """The base."""
        return (self.base,)

    # -- sizes -------------------------------------------------------------------------------
    def dim(self, shape: tuple[int, ...]) -> int:
        """K times the base's dimension."""
        return shape[0] * self.base.dim(shape[1:])

    def coords_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """K of the base's coordinates."""
        return (shape[0], *self.base.coords_shape(shape[1:]))

    # -- the base's operations ---------------------------------------------------------------
    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's."""
        return self.base.egrad2rgrad(x, u)

    def coordinate_squares(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's: each point by itself."""
        return self.base.coordinate_squares(x, u)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The base's, with independent coordinates."""
        return self.base.from_coords(x, c)

    # -- metric ------------------------------------------------------------------------------
    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """The sum of the base's inner products, shape ``(...)``."""
        total = (self.base.inner(x, u) if v is None else self.base.inner(x, u, v)).sum(-1)
        return self.expand_scalar(total) if keepdim else total

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """The root of the sum of the base's squared norms, shape ``(...)``."""
        total = torch.linalg.vector_norm(self.base.norm(x, u), dim=-1)
        return self.expand_scalar(total) if keepdim else total

    def norm_slack(self, x: Tensor) -> Tensor | float:
        """The largest of the base's, shape ``(...)`` or a number."""
        slack = self.base.norm_slack(x)
        return slack.amax(-1) if isinstance(slack, Tensor) else slack

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """The root of the sum of the base's squared distances, shape ``(...)``."""
        total = torch.linalg.vector_norm(self.base.dist(x, y), dim=-1)
        return self.expand_scalar(total) if keepdim else total

    # -- checks ------------------------------------------------------------------------------
    def membership_defect(self, x: Tensor) -> Tensor:
        """The base's largest, shape (...,)."""
        return self.base.membership_defect(x).amax(-1)

    def tangency_defect(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's largest, shape (...,)."""
        return self.base.tangency_defect(x, u).amax(-1)

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        if len(shape) < self.ndim:
            return False, f"Expected {name} of shape (..., k, *point), got {tuple(shape)}"
        sizes: Any = shape  # geoopt declares a tuple of one number
        checked: Any = self.base._check_shape(sizes, name)
        return checked[0], checked[1]

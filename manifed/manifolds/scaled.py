"""The same points with the metric of another manifold times a square: all distances times c.

With g' = c^2 g the Christoffel symbols are those of g, so geodesics, logarithms and transports stay
as they are. What changes follows from <u, v>' = c^2 <u, v>:

    |u|' = c |u|,    dist' = c dist,    grad' f = grad f / c^2,    |grad' f|' = |grad f| / c,

and an orthonormal basis is 1/c times one of g, so N'_x(0, 1) = N_x(0, 1) / c. A clip to C keeps
gradients of |grad f| <= c C, and a step of the same size moves 1 / c^2 as far. geoopt's `Scaled`
stores the vectors c u in the place of u, and leaves gradients as they are: its steps are c times
these.
"""

from typing import Any

from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.over_base import OverBase


class Scaled(OverBase):
    """M with distances ``scale`` times as long; points and tangent vectors as in M."""

    name = "Scaled"

    def __init__(self, base: Manifold, scale: float) -> None:
        """``scale`` > 0.

        Raises:
            ValueError: another scale, or one far from 1: squares of short vectors vanish before
                they are scaled.
        """
        super().__init__(base)
        if not 1e-10 <= scale <= 1e10:
            raise ValueError(f"scale: expected a number from 1e-10 to 1e10, got {scale}")
        self.scale = float(scale)
        self.ndim = base.ndim
        self.is_whole_space = base.is_whole_space

    def settings(self) -> tuple[object, ...]:
        """Base and scale."""
        return (self.base, self.scale)

    # -- sizes -------------------------------------------------------------------------------
    def dim(self, shape: tuple[int, ...]) -> int:
        """The base's."""
        return self.base.dim(shape)

    def coords_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The base's."""
        return self.base.coords_shape(shape)

    # -- what the scale changes ----------------------------------------------------------------
    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's over c^2."""
        return self.base.egrad2rgrad(x, u) / self.scale**2

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The base's over c."""
        return self.base.from_coords(x, c) / self.scale

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """c^2 times the base's, shape ``(...)``."""
        return self.scale**2 * self.base.inner(x, u, u if v is None else v, keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """C times the base's, shape ``(...)``."""
        return self.scale * self.base.norm(x, u, keepdim=keepdim)

    def norm_bound(self, x: Tensor, u: Tensor) -> Tensor:
        """C times the base's, which knows where its own squares vanish."""
        return self.scale * self.base.norm_bound(x, u)

    def norm_slack(self, x: Tensor) -> Tensor | float:
        """The base's: it is relative."""
        return self.base.norm_slack(x)

    def coordinate_squares(self, x: Tensor, u: Tensor) -> Tensor:
        """c^2 times the base's."""
        return self.scale**2 * self.base.coordinate_squares(x, u)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """C times the base's, shape ``(...)``."""
        return self.scale * self.base.dist(x, y, keepdim=keepdim)

    # -- defects are relative, and of vectors in the ambient space -------------------------------
    def membership_defect(self, x: Tensor) -> Tensor:
        """The base's, shape (...,)."""
        return self.base.membership_defect(x)

    def tangency_defect(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's, shape (...,)."""
        return self.base.tangency_defect(x, u)

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        sizes: Any = shape  # geoopt declares a tuple of one number
        checked: Any = self.base._check_shape(sizes, name)
        return checked[0], checked[1]

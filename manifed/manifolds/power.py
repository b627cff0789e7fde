"""k points of one manifold as one point: M^k with the sum of the metrics.

Shape ``(..., k, *point of M)``: every operation is the base's over one more leading dimension, and
the metric sums over it. Unlike `Product` it needs no shapes to be built.
"""

from typing import Any

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold


class Power(Manifold):
    """M^k for any k; points ``(..., k, *point)``."""

    name = "Power"
    reversible = False

    def __init__(self, base: Manifold) -> None:
        super().__init__()
        self.base = base
        self.ndim = base.ndim + 1
        self.has_logmap = base.has_logmap
        self.is_transp_isometric = base.is_transp_isometric
        self.is_transp_parallel = base.is_transp_parallel

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
    def projx(self, x: Tensor) -> Tensor:
        """The base's."""
        return self.base.projx(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's."""
        return self.base.proju(x, u)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's."""
        return self.base.egrad2rgrad(x, u)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's."""
        return self.base.retr(x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The base's."""
        return self.base.invretr(x, y)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's."""
        return self.base.expmap(x, u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The base's."""
        return self.base.logmap(x, y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The base's."""
        return self.base.transp(x, y, v)

    def projected(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The base's."""
        return self.base.projected(x, y, v)

    def coordinate_squares(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's: each point by itself."""
        return self.base.coordinate_squares(x, u)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The base's, with independent coordinates."""
        return self.base.from_coords(x, c)

    def tangent_part(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's."""
        return self.base.tangent_part(x, u)

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

    # -- points ------------------------------------------------------------------------------
    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Independent random points of the base."""
        return self.base.random(*size, dtype=dtype, device=device, generator=generator)

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = 42,
    ) -> Tensor:
        """K times the base's origin."""
        return self.base.origin(*size, dtype=dtype, device=device, seed=seed)

    # -- checks ------------------------------------------------------------------------------
    def membership_defect(self, x: Tensor) -> Tensor:
        """The base's largest, shape (...,)."""
        return self.base.membership_defect(x).amax(-1)

    def tangency_defect(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's largest, shape (...,)."""
        return self.base.tangency_defect(x, u).amax(-1)

    def _off_manifold(self, x: Tensor) -> Tensor:
        return self.membership_defect(x)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        raise NotImplementedError("Expected the base's own normal part: call tangency_defect")

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        if len(shape) < self.ndim:
            return False, f"Expected {name} of shape (..., k, *point), got {tuple(shape)}"
        sizes: Any = shape  # geoopt declares a tuple of one number
        checked: Any = self.base._check_shape(sizes, name)
        return checked[0], checked[1]

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        checked: Any = self.base._check_point_on_manifold(x, atol=atol, rtol=rtol)
        return checked[0], checked[1]

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        checked: Any = self.base._check_vector_on_tangent(x, u, atol=atol, rtol=rtol)
        return checked[0], checked[1]

"""Manifolds whose points and movements are another's: what they hand on to it."""

from typing import Any

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold


class OverBase(Manifold):
    """Another manifold's points and geodesics; sizes and metric are those of a subclass."""

    reversible = False

    def __init__(self, base: Manifold) -> None:
        super().__init__()
        self.base = base
        self.has_logmap = base.has_logmap
        self.looks_at_all_pairs = base.looks_at_all_pairs
        self.is_transp_isometric = base.is_transp_isometric
        self.is_transp_parallel = base.is_transp_parallel

    # -- the base's operations ---------------------------------------------------------------
    def projx(self, x: Tensor) -> Tensor:
        """The base's."""
        return self.base.projx(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's."""
        return self.base.proju(x, u)

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

    def tangent_part(self, x: Tensor, u: Tensor) -> Tensor:
        """The base's."""
        return self.base.tangent_part(x, u)

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
        """The base's."""
        return self.base.origin(*size, dtype=dtype, device=device, seed=seed)

    # -- checks ------------------------------------------------------------------------------
    def _off_manifold(self, x: Tensor) -> Tensor:
        return self.membership_defect(x)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        raise NotImplementedError("Expected the base's own normal part: call tangency_defect")

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

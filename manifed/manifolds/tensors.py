"""Points and tangent vectors that know where they lie, as geoopt tensors; storage is shared.

`geoopt.ManifoldTensor(x, manifold=...)` looks at the whole of x. These do not: they are for values
whose place has been checked already. Arithmetic on them gives plain tensors.
"""

from functools import cached_property
from typing import Any

import geoopt
from geoopt import ManifoldTensor
from torch import Tensor

from manifed.manifolds.base import Manifold


class TangentSpace(geoopt.Manifold):
    """T_xM with the metric at x: a flat manifold, whose points are the tangent vectors at x."""

    name = "TangentSpace"
    reversible = True

    def __init__(self, base: ManifoldTensor) -> None:
        """``base`` is x, shape (..., *point), with its manifold."""
        super().__init__()
        self.base = base
        self.ndim = base.manifold.ndim

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """The metric at the base; x does not matter."""
        del x
        return self.base.manifold.inner(self.base, u, u if v is None else v, keepdim=keepdim)

    def projx(self, x: Tensor) -> Tensor:
        """The tangent part at the base."""
        return self.base.manifold.proju(self.base, x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The tangent part at the base; x does not matter."""
        return self.projx(u)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The gradient in the metric at the base."""
        return self.base.manifold.egrad2rgrad(self.base, u)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """A straight line."""
        return x + u

    retr = expmap

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """A straight line."""
        return y - x

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Nothing turns."""
        return v

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Norm of the difference in the metric at the base."""
        return self.inner(x, y - x, keepdim=keepdim).clamp_min(0.0).sqrt()

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        manifold: Any = self.base.manifold
        return manifold._check_vector_on_tangent(self.base, x, atol=atol, rtol=rtol)

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        return self._check_point_on_manifold(u, atol=atol, rtol=rtol)


class TangentTensor(ManifoldTensor):
    """A tangent vector; its `TangentSpace` is made when it is asked for, because most never are."""

    at: ManifoldTensor
    """The point."""

    @cached_property
    def manifold(self) -> TangentSpace:  # pyright: ignore[reportIncompatibleVariableOverride]  lazy
        """Where it lies."""
        return TangentSpace(self.at)


def as_point(x: Tensor, manifold: Manifold) -> ManifoldTensor:
    """The tensor x (..., *point), known to lie on ``manifold``, with that manifold."""
    placed: Any = Tensor._make_subclass(ManifoldTensor, x)  # detached; what geoopt itself calls
    placed.manifold = manifold
    return placed


def as_tangent(u: Tensor, base: ManifoldTensor) -> ManifoldTensor:
    """The tensor u (..., *point), known to be tangent at ``base``: a point of `TangentSpace`."""
    placed: Any = Tensor._make_subclass(TangentTensor, u)
    placed.at = base
    return placed


def as_plain(x: Tensor) -> Tensor:
    """The tensor without its manifold and without a gradient."""
    return x if type(x) is Tensor and not x.requires_grad else x.detach()

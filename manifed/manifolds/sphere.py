"""The unit sphere S^{n-1} in R^n with the metric of R^n.

Every angle is an atan2 of two norms, so distances and logarithms keep full relative accuracy
from 1e-9 to pi - 1e-6 (an arccos of an inner product loses half of the digits at both ends).
Antipodal points have no unique geodesic: there ``logmap`` is 0 and ``transp`` is not finite.
"""

from typing import Any

import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.arrays import length, measured, of
from manifed.manifolds.base import Manifold, verdict
from manifed.manifolds.linalg import TINY, standard_normal


def _length(u: Tensor) -> Tensor:
    return torch.linalg.vector_norm(u, dim=-1, keepdim=True)


def _angle(x: Any, y: Any) -> Any:
    """2 atan2(|x - y|, |x + y|), in the shape of `length`."""
    chord, other = length(x - y), length(x + y)
    return 2 * of(chord).atan2(chord, other)


def _dot(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(-1, keepdim=True)


class Sphere(Manifold):
    """Unit vectors of R^n; dimension n - 1, injectivity radius pi."""

    name = "Sphere"
    looks_at_all_pairs = False
    carries_rows_apart = True
    ndim = 1
    reversible = False
    reach = 1.0

    def dim(self, shape: tuple[int, ...]) -> int:
        """The number of entries less one."""
        return shape[-1] - 1

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The orthogonal projection of n ambient coordinates."""
        return c - _dot(x, c) * x

    def projx(self, x: Tensor) -> Tensor:
        """The point x / |x|, the nearest one; NaN for x = 0, where it is not unique."""
        return x / _length(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The orthogonal projection u - <x, u> x."""
        return torch.addcmul(u, _dot(x, u), x, value=-1.0)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The projection of the Euclidean gradient."""
        return torch.addcmul(u, _dot(x, u), x, value=-1.0)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """Euclidean product, shape (...,)."""
        return (u * (u if v is None else v)).sum(-1, keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Euclidean norm, shape (...,)."""
        return torch.linalg.vector_norm(u, dim=-1, keepdim=keepdim)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The point (x + u) / |x + u|, of second order."""
        return self.projx(x + u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector y / <x, y> - x, for <x, y> > 0."""
        return y / _dot(x, y) - x

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The point cos|u| x + sin|u| u / |u|, renormalised."""
        t = _length(u).clamp_min(TINY[u.dtype])
        return self.projx(t.cos() * x + (t.sin() / t) * u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The shortest tangent vector u with expmap(x, u) = y, |u| <= pi."""
        w = y - x
        v = w - _dot(x, w) * x
        s = _length(v).clamp_min(TINY[v.dtype])
        return v * (torch.atan2(s, _dot(x, y)) / s)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """The angle 2 atan2(|x - y|, |x + y|), shape (...,)."""
        return measured(_angle, x, y, keepdim=keepdim)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport v - <y, v> / (1 + <x, y>) (x + y)."""
        return v - (_dot(y, v) / (1 + _dot(x, y))) * (x + y)

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Uniform points."""
        return self.projx(standard_normal(size2shape(*size), generator, dtype, device))

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = None,
    ) -> Tensor:
        """The first unit vector."""
        point = torch.zeros(size2shape(*size), dtype=dtype, device=device)
        point[..., 0] = 1
        return point

    def _off_manifold(self, x: Tensor) -> Tensor:
        return (torch.linalg.vector_norm(x, dim=-1) - 1).abs()

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return (_dot(x, u) / _length(x)).abs().squeeze(-1)

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        gap = float((torch.linalg.vector_norm(x, dim=-1) - 1).abs().max())
        return verdict(gap <= atol + rtol, f"| |x| - 1 | = {gap:.3g} > {atol + rtol:.3g}")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        gap, bound = _dot(x, u).abs(), atol + rtol * _length(u)
        worst = float(gap.max())
        return verdict(bool((gap <= bound).all()), f"|<x, u>| = {worst:.3g}, expected 0")

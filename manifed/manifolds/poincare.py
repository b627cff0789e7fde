r"""The Poincaré ball of curvature -1, stable up to the last representable distances.

Nickel and Kiela: Poincaré Embeddings for Learning Hierarchical Representations (2017);
Ungar: A Gyrovector Space Approach to Hyperbolic Geometry (2008).
Set ``{x in R^d : |x| < 1}``, metric <u, v>_x = 4 u·v / (1 - |x|^2)^2 (the square is missing in
Utpala et al. 2023, section 4.1). Every formula is written with the two quantities that keep
their digits near the boundary, om(x) = (1 - |x|)(1 + |x|) and n = |y - x|:

    D(x, y) = n^2 + om(x) om(y)                        = 1 - 2 x·y + |x|^2 |y|^2
    dist    = 2 asinh( n / sqrt(om(x) om(y)) )
    (-x) + y = ( om(x) (y - x) - n^2 x ) / D           (Möbius addition)
    PT x->y = om(y)/om(x) H_w H_p                      (two Householder reflections,
              w = (y - x)/n,  p = direction of (-x) + y at x)

Points are kept at |x| <= 1 - 1e-15 (distance 35.2 from the origin; in float32 1 - 1e-6); the error
of a point at distance r from the origin is eps e^r, as it is for the stored coordinates themselves.
"""

import math
from typing import Any

import numpy as np
import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.base import Manifold, verdict
from manifed.manifolds.linalg import TINY, above_zero, is_plain, standard_normal

BOUNDARY = 1e-15
"""Smallest 1 - |x| of a stored point in float64."""
BOUNDARY_OF_SHORTER = 1e-6
"""The same in float32, at distance 14.5 from the origin."""


class PoincareBall(Manifold):
    """Hyperbolic space H^d as the open unit ball of R^d; points have shape ``(..., d)``."""

    name = "PoincareBall"
    ndim = 1
    reversible = False

    def dim(self, shape: tuple[int, ...]) -> int:
        """``d`` for points of shape ``(d,)``."""
        return shape[-1]

    # -- sets and projections ----------------------------------------------------------------
    def projx(self, x: Tensor) -> Tensor:
        """x, or the point of radius 1 - 1e-15 (1 - 1e-6 in float32) on its ray, if x is beyond."""
        largest = 1 - _boundary(x)
        return x * (largest / _at_least(_length(x), largest))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """u: every vector of R^d is tangent."""
        return u.expand(np.broadcast_shapes(x.shape, u.shape))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The Riemannian gradient (om(x)/2)^2 u."""
        return u * (conformal_gap(x) / 2).square()

    def _off_manifold(self, x: Tensor) -> Tensor:
        """Zero inside, infinite on the boundary and beyond: an open set has no tolerance."""
        return torch.where(torch.linalg.vector_norm(x, dim=-1) < 1, 0.0, torch.inf).to(x)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return u.new_zeros(np.broadcast_shapes(x.shape, u.shape)[:-1])

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        largest = float(torch.linalg.vector_norm(x, dim=-1).max())
        return verdict(largest < 1, f"Expected |x| < 1, got {largest}; call projx")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        return True, None

    # -- metric ------------------------------------------------------------------------------
    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """4 u·v / om(x)^2, shape ``(...)`` (or ``(..., 1)`` with ``keepdim``)."""
        half = conformal_gap(x) / 2
        value = (u / half * ((u if v is None else v) / half)).sum(-1, keepdim=True)
        return value if keepdim else value.squeeze(-1)

    def norm_slack(self, x: Tensor) -> Tensor:
        """The ratio om / (om - 8 eps), less 1: rounding of |x|, infinite on the boundary."""
        radius = torch.linalg.vector_norm(x, dim=-1)
        least = ((1 - radius) * (1 + radius) - 8 * torch.finfo(x.dtype).eps).clamp_min(0.0)
        return conformal_gap(x).squeeze(-1) / least - 1.0

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """2 asinh(|y - x| / sqrt(om(x) om(y))), shape ``(...)``."""
        plain = is_plain(x, y, 1)
        om_x, om_y, n = _gap(x, plain=plain), _gap(y, plain=plain), _length(y - x, plain=plain)
        ratio = n / _of(n).sqrt(om_x * om_y)
        value = 2 * _of(n).asinh(ratio)
        if isinstance(value, float):
            return x.new_full((1,) if keepdim else (), value)
        return value if keepdim else value.squeeze(-1)

    # -- geodesics ---------------------------------------------------------------------------
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The point x + tanh(t) u/|u| with t = |u|/om(x) (Möbius addition), shape ``(..., d)``."""
        plain = is_plain(x, u, 1)
        om_x, length = _gap(x, plain=plain), _at_least(_length(u, plain=plain), TINY[u.dtype])
        t = length / om_x
        total = _plus(x, _of(t).tanh(t) / length, u)
        size, cosh = _length(total, plain=plain), _cosh(t)
        square = size * size
        divisor = square + om_x / (cosh * cosh)
        y = _plus((square / divisor) * x, om_x / divisor, total)
        if plain and float(torch.linalg.vector_norm(y)) <= 1 - _boundary(y):
            return y
        return self.projx(y)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector at x of the geodesic to y, shape ``(..., d)``."""
        plain, w = is_plain(x, y, 1), y - x
        om_x, om_y = _gap(x, plain=plain), _gap(y, plain=plain)
        n = _at_least(_length(w, plain=plain), TINY[w.dtype])
        product, square = om_x * om_y, n * n
        half_dist = _of(n).asinh(n / _of(n).sqrt(product))
        scale = om_x * half_dist / (n * _of(n).sqrt(square + product))
        return _plus((scale * om_x) * w, -scale * square, x)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of v from x to y along their geodesic (isometric)."""
        om_x, w = conformal_gap(x), y - x
        w = w / above_zero(_length(w))
        p = om_x * w - (y - x).square().sum(-1, keepdim=True).sqrt() * x
        p = p / above_zero(_length(p))
        return conformal_gap(y) / om_x * _reflect(w, _reflect(p, v))

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The exponential map (a straight step can leave the ball)."""
        return self.expmap(x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm."""
        return self.logmap(x, y)

    # -- privacy -----------------------------------------------------------------------------
    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The vector c om(x)/2, shape ``(..., d)``.

        Utpala et al. 2023, Algorithm 6 with a/2: the printed a/4 halves the noise.
        """
        return c * (conformal_gap(x) / 2)

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """exp_0 of a Gaussian tangent vector of root mean square length 1, shape ``size``."""
        z = standard_normal(size2shape(*size), generator, dtype, device)
        return self.expmap(torch.zeros_like(z), z / (2 * z.shape[-1] ** 0.5))

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = 42,
    ) -> Tensor:
        """The centre of the ball, shape ``size``."""
        return torch.zeros(size2shape(*size), dtype=dtype, device=device)


def conformal_gap(x: Tensor) -> Tensor:
    """om(x) = 1 - |x|^2 = 2/lambda(x), never below the boundary's, shape ``(..., 1)``."""
    return _gap(x, plain=False)


def _gap(x: Tensor, *, plain: bool) -> Any:
    """`conformal_gap`; a number where x is `is_plain`."""
    radius = _length(x, plain=plain)
    return _at_least((1 - radius) * (1 + radius), _boundary(x))


def _at_least(value: Any, bound: float) -> Any:
    return max(value, bound) if isinstance(value, float) else value.clamp_min(bound)


def _of(value: Any) -> Any:
    """Where the functions of a number, or of a tensor, are."""
    return math if isinstance(value, float) else torch


def _cosh(t: Any) -> Any:
    """Of t >= 0; Python's refuses more than 710, where its square has long overflowed."""
    return _of(t).cosh(min(t, 350.0) if isinstance(t, float) else t)


def _plus(x: Tensor, scale: Any, u: Tensor) -> Tensor:
    """The sum x + scale u."""
    if isinstance(scale, float):
        return torch.add(x, u, alpha=scale)
    return torch.addcmul(x, scale, u)


def _boundary(x: Tensor) -> float:
    return BOUNDARY if x.dtype == torch.float64 else BOUNDARY_OF_SHORTER


def _length(u: Tensor, *, plain: bool = False) -> Any:
    """|u|, shape ``(..., 1)``; a number where u is `is_plain`."""
    if plain:
        return float(torch.linalg.vector_norm(u))
    return torch.linalg.vector_norm(u, dim=-1, keepdim=True)


def _reflect(unit: Tensor, v: Tensor) -> Tensor:
    """V mirrored in the hyperplane orthogonal to ``unit``; v itself where unit is zero."""
    return v - 2 * (unit * v).sum(-1, keepdim=True) * unit

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

from manifed.manifolds.arrays import at_least, dot, length, measured, of, on_arrays, plus, tiny
from manifed.manifolds.base import Manifold, verdict
from manifed.manifolds.linalg import standard_normal

BOUNDARY = 1e-15
"""Smallest 1 - |x| of a stored point in float64."""
BOUNDARY_OF_SHORTER = 1e-6
"""The same in float32, at distance 14.5 from the origin."""


class PoincareBall(Manifold):
    """Hyperbolic space H^d as the open unit ball of R^d; points have shape ``(..., d)``."""

    name = "PoincareBall"
    looks_at_all_pairs = False
    ndim = 1
    reversible = False

    def dim(self, shape: tuple[int, ...]) -> int:
        """``d`` for points of shape ``(d,)``."""
        return shape[-1]

    # -- sets and projections ----------------------------------------------------------------
    def projx(self, x: Tensor) -> Tensor:
        """x, or the point of radius 1 - 1e-15 (1 - 1e-6 in float32) on its ray, if x is beyond."""
        return on_arrays(_pulled_in, x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """u: every vector of R^d is tangent."""
        return u.expand(np.broadcast_shapes(x.shape, u.shape))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The Riemannian gradient (om(x)/2)^2 u."""
        return on_arrays(_scaled, x, u)

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
        return measured(_product, x, u, u if v is None else v, keepdim=keepdim)

    def norm_slack(self, x: Tensor) -> Tensor:
        """The ratio om / (om - 8 eps), less 1: rounding of |x|, infinite on the boundary."""
        radius = torch.linalg.vector_norm(x, dim=-1)
        least = ((1 - radius) * (1 + radius) - 8 * torch.finfo(x.dtype).eps).clamp_min(0.0)
        return conformal_gap(x).squeeze(-1) / least - 1.0

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """2 asinh(|y - x| / sqrt(om(x) om(y))), shape ``(...)``."""
        return measured(_distance, x, y, keepdim=keepdim)

    # -- geodesics ---------------------------------------------------------------------------
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The point x + tanh(t) u/|u| with t = |u|/om(x) (Möbius addition), shape ``(..., d)``."""
        return on_arrays(_shot, x, u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector at x of the geodesic to y, shape ``(..., d)``."""
        return on_arrays(_logarithm, x, y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of v from x to y along their geodesic (isometric)."""
        return on_arrays(_carried, x, y, v)

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
        return on_arrays(_of_coords, x, c)

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


def conformal_gap(x: Any) -> Any:
    """om(x) = 1 - |x|^2 = 2/lambda(x), never below the boundary's, in the shape of `dot`."""
    radius = length(x)
    return at_least((1 - radius) * (1 + radius), _boundary(x))


def _boundary(x: Any) -> float:
    return BOUNDARY if x.itemsize == 8 else BOUNDARY_OF_SHORTER


def _pulled_in(x: Any) -> Any:
    """x, or where it is beyond the largest radius the point of that radius."""
    largest = 1 - _boundary(x)
    return x * (largest / at_least(length(x), largest))


def _scaled(x: Any, u: Any) -> Any:
    half = conformal_gap(x) / 2
    return u * (half * half)


def _of_coords(x: Any, c: Any) -> Any:
    return c * (conformal_gap(x) / 2)


def _product(x: Any, u: Any, v: Any) -> Any:
    half = conformal_gap(x) / 2
    return dot(u / half, v / half)


def _distance(x: Any, y: Any) -> Any:
    product = conformal_gap(x) * conformal_gap(y)
    take = of(product)
    return 2 * take.asinh(length(y - x) / take.sqrt(product))


def _shot(x: Any, u: Any) -> Any:
    """The Möbius sum of x and tanh(t) u / |u|, kept inside."""
    om_x, size = conformal_gap(x), at_least(length(u), tiny(x))
    take, t = of(size), size / om_x
    total = plus(x, take.tanh(t) / size, u)
    # beyond, Python refuses a cosh whose square has long overflowed
    reach, cosh = length(total), take.cosh(min(t, 350.0) if take is math else t)
    square = reach * reach
    divisor = square + om_x / (cosh * cosh)
    return _pulled_in(plus((square / divisor) * x, om_x / divisor, total))


def _logarithm(x: Any, y: Any) -> Any:
    w, om_x = y - x, conformal_gap(x)
    n, product = at_least(length(w), tiny(x)), om_x * conformal_gap(y)
    take, square = of(n), n * n
    half_dist = take.asinh(n / take.sqrt(product))
    scale = om_x * half_dist / (n * take.sqrt(square + product))
    return plus((scale * om_x) * w, scale * square, x, minus=True)


def _carried(x: Any, y: Any, v: Any) -> Any:
    """V turned by two reflections, scaled by the conformal factors."""
    om_x, apart = conformal_gap(x), y - x
    n = length(apart)
    w = apart / at_least(n, tiny(x))
    p = om_x * w - n * x
    p = p / at_least(length(p), tiny(x))
    return conformal_gap(y) / om_x * _reflect(w, _reflect(p, v))


def _reflect(unit: Any, v: Any) -> Any:
    """V mirrored in the hyperplane orthogonal to ``unit``; v itself where unit is zero."""
    return plus(v, 2 * dot(unit, v), unit, minus=True)

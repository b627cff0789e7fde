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

from typing import Any

import numpy as np
import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.base import Manifold, verdict
from manifed.manifolds.linalg import above_zero, standard_normal

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
        return x * (largest / _length(x).clamp_min(largest)).clamp_max(1.0)

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
        gap = (conformal_gap(x) * conformal_gap(y)).sqrt()
        value = 2 * torch.asinh(_length(y - x) / gap)
        return value if keepdim else value.squeeze(-1)

    # -- geodesics ---------------------------------------------------------------------------
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The point x + tanh(t) u/|u| with t = |u|/om(x) (Möbius addition), shape ``(..., d)``."""
        om_x = conformal_gap(x)
        length = above_zero(_length(u))
        t = length / om_x
        total = x + torch.tanh(t) / length * u
        square = total.square().sum(-1, keepdim=True)
        return self.projx((square * x + om_x * total) / (square + om_x / torch.cosh(t).square()))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector at x of the geodesic to y, shape ``(..., d)``."""
        om_x, om_y, w = conformal_gap(x), conformal_gap(y), y - x
        n = above_zero(_length(w))
        half_dist = torch.asinh(n / (om_x * om_y).sqrt())
        direction = (om_x * w - n.square() * x) / (n.square() + om_x * om_y).sqrt()
        return om_x * half_dist / n * direction

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
    radius = _length(x)
    return ((1 - radius) * (1 + radius)).clamp_min(_boundary(x))


def _boundary(x: Tensor) -> float:
    return BOUNDARY if x.dtype == torch.float64 else BOUNDARY_OF_SHORTER


def _length(u: Tensor) -> Tensor:
    return torch.linalg.vector_norm(u, dim=-1, keepdim=True)


def _reflect(unit: Tensor, v: Tensor) -> Tensor:
    """V mirrored in the hyperplane orthogonal to ``unit``; v itself where unit is zero."""
    return v - 2 * (unit * v).sum(-1, keepdim=True) * unit

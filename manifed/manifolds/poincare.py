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

Points are kept at |x| <= 1 - 1e-15 (distance 35.2 from the origin; in float32 1 - 1e-6, distance
14.5); the error of a point at distance r from the origin is eps e^r, as it is for the stored
coordinates themselves.
"""

import numpy as np
import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.linalg import above_zero, dot, length


class PoincareBall(Manifold):
    """Hyperbolic space H^d as the open unit ball of R^d; points have shape ``(..., d)``."""

    name = "PoincareBall"
    looks_at_all_pairs = False

    def dim(self, shape: tuple[int, ...]) -> int:
        """``d`` for points of shape ``(d,)``."""
        return shape[-1]

    def projx(self, x: Tensor) -> Tensor:
        """x, or the point of radius 1 - 1e-15 (1 - 1e-6 in float32) on its ray, if x is beyond."""
        largest = 1 - _boundary(x)
        return x * (largest / length(x).clamp_min(largest))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """u: every vector of R^d is tangent."""
        return u.expand(np.broadcast_shapes(x.shape, u.shape))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The Riemannian gradient (om(x)/2)^2 u."""
        half = conformal_gap(x) / 2
        return u * (half * half)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The vector c om(x)/2, shape ``(..., d)``.

        Utpala et al. 2023, Algorithm 6 with a/2: the printed a/4 halves the noise.
        """
        return c * (conformal_gap(x) / 2)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """4 u·v / om(x)^2, shape ``(...)`` (or ``(..., 1)`` with ``keepdim``)."""
        half = conformal_gap(x) / 2
        product = dot(u / half, (u if v is None else v) / half)
        return product if keepdim else product.squeeze(-1)

    def norm_slack(self, x: Tensor) -> Tensor:
        """The ratio om / (om - 8 eps), less 1: rounding of |x|, infinite on the boundary."""
        radius = torch.linalg.vector_norm(x, dim=-1)
        least = ((1 - radius) * (1 + radius) - 8 * torch.finfo(x.dtype).eps).clamp_min(0.0)
        return conformal_gap(x).squeeze(-1) / least - 1.0

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """2 asinh(|y - x| / sqrt(om(x) om(y))), shape ``(...)``."""
        product = conformal_gap(x) * conformal_gap(y)
        found = 2 * (length(y - x) / product.sqrt()).asinh()
        return found if keepdim else found.squeeze(-1)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The Möbius sum of x and tanh(t) u/|u| with t = |u|/om(x), kept inside."""
        om_x, size = conformal_gap(x), above_zero(length(u))
        t = size / om_x
        total = torch.addcmul(x, t.tanh() / size, u)
        reach, cosh = length(total), t.cosh()
        square = reach * reach
        divisor = square + om_x / (cosh * cosh)
        return self.projx(torch.addcmul((square / divisor) * x, om_x / divisor, total))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector at x of the geodesic to y, shape ``(..., d)``."""
        w, om_x = y - x, conformal_gap(x)
        n, product = above_zero(length(w)), om_x * conformal_gap(y)
        square = n * n
        half_dist = (n / product.sqrt()).asinh()
        scale = om_x * half_dist / (n * (square + product).sqrt())
        return torch.addcmul((scale * om_x) * w, scale * square, x, value=-1.0)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of v: two reflections, and the ratio of the conformal factors."""
        om_x, apart = conformal_gap(x), y - x
        n = length(apart)
        w = apart / above_zero(n)
        p = om_x * w - n * x
        p = p / above_zero(length(p))
        for unit in (p, w):  # a mirror; nothing happens where unit is zero
            v = torch.addcmul(v, 2 * dot(unit, v), unit, value=-1.0)
        return conformal_gap(y) / om_x * v

    def of_normals(self, z: Tensor) -> Tensor:
        """exp_0 of a Gaussian tangent vector of root mean square length 1."""
        return self.expmap(torch.zeros_like(z), z / (2 * z.shape[-1] ** 0.5))

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """The centre of the ball."""
        return zeros

    def _off_manifold(self, x: Tensor) -> Tensor:
        """Zero inside, infinite on the boundary and beyond: an open set has no tolerance."""
        return torch.where(torch.linalg.vector_norm(x, dim=-1) < 1, 0.0, torch.inf).to(x)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return u.new_zeros(np.broadcast_shapes(x.shape, u.shape)[:-1])


def conformal_gap(x: Tensor) -> Tensor:
    """om(x) = 1 - |x|^2 = 2/lambda(x), never below the boundary's, shape ``(..., 1)``."""
    radius = length(x)
    return ((1 - radius) * (1 + radius)).clamp_min(_boundary(x))


def _boundary(x: Tensor) -> float:
    """The smallest 1 - |x| of a stored point."""
    return 1e-15 if x.dtype == torch.float64 else 1e-6

r"""Hyperbolic space of curvature -1: the upper sheet of the hyperboloid, and the Poincaré ball.

The hyperboloid (Lorentz model). Points (x_0, x_s) with x_0 = sqrt(1 + |x_s|^2), time first;
<u, v>_L = u_s . v_s - u_0 v_0.
The naive formulas lose eps e^{2r} of relative accuracy at radius r (distance to the origin); these
lose eps e^r, the rounding of the stored coordinates: inner products split a vector along and
across x_s, points and tangents have their time component recomputed from the space part.

Symbols: r = |x_s|, a = |x_s|, b = |y_s| (radii in R^d), d distance.

The ball, stable up to the last representable distances. Nickel and Kiela: Poincaré Embeddings
for Learning Hierarchical Representations (2017); Ungar: A Gyrovector Space Approach to Hyperbolic
Geometry (2008).
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

from manifed.manifolds.base import Manifold, safe_sqrt
from manifed.manifolds.linalg import Shape, above_zero, dot, length


def _time(x: Tensor) -> Tensor:
    """The coordinate that the metric counts as negative, (..., 1)."""
    return x[..., :1]


def _space(x: Tensor) -> Tensor:
    """The other coordinates, (..., d)."""
    return x[..., 1:]


def _with_time(space: Tensor) -> Tensor:
    """The point of the hyperboloid with that space part."""
    return torch.cat(((1 + dot(space, space)).sqrt(), space), -1)


def _tangent(x: Tensor, space: Tensor) -> Tensor:
    """The tangent vector at ``x`` with that space part: u_0 = x_s . u_s / x_0."""
    return torch.cat((dot(_space(x), space) / _time(x), space), -1)


def _parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(radius of y - radius of x, a b (1 - cos angle) / 2, a), each (..., 1).

    sinh^2(d / 2) is sinh^2(first / 2) + second.
    """
    space = _space(x)
    target = _space(y)
    time = _time(x)
    other = _time(y)
    a = length(space)
    b = length(target)
    rise = (b - a) + (other - time)
    radial = (rise.abs() / torch.minimum(a + time, b + other)).log1p()
    chord = length(b * space - a * target)
    angular = chord * chord / above_zero(4 * a * b, power=2)
    return torch.copysign(radial, rise), angular, a


class Lorentz(Manifold):
    """Hyperbolic space H^d in R^{d+1}; usable up to radius 25 in float64, 9 in float32."""

    name = "Lorentz"
    form = "(..., d + 1)"
    looks_at_all_pairs = False

    def dim(self, shape: Shape) -> int:
        """The number of entries less one."""
        return shape[-1] - 1

    def fits(self, shape: Shape) -> bool:
        """Whether there is a space part."""
        return shape[-1] >= 2

    def coords_shape(self, shape: Shape) -> Shape:
        """(d,) for points of d + 1 entries."""
        return (shape[-1] - 1,)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """Parallel transport of (0, c) from the origin: (x_s.c, c + x_s.c / (1 + x_0) x_s)."""
        space = _space(x)
        along = dot(space, c)
        return torch.cat((along, c + along / (1 + _time(x)) * space), -1)

    def to_coords(self, x: Tensor, u: Tensor) -> Tensor:
        """The space part of u, transported to the origin: along x_s it is divided by x_0."""
        space = _space(x)
        along = dot(space, _space(u)) / above_zero(dot(space, space), power=2) * space
        return (_space(u) - along) + along / _time(x)

    def projx(self, x: Tensor) -> Tensor:
        """The point with the same space part."""
        return _with_time(_space(x))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The Lorentz-orthogonal projection u + <x, u>_L x, its time recomputed."""
        space = _space(x)
        moved = _space(u)
        product = torch.addcmul(dot(space, moved), _time(x), _time(u), value=-1.0)
        return _tangent(x, torch.addcmul(moved, product, space))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The projection of (-g_0, g_s)."""
        return self.proju(x, torch.cat((-_time(u), _space(u)), -1))

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """<u, v>_L of tangent vectors from their space parts alone, shape (...,).

        (u_s)_across . (v_s)_across + (x_s.u_s)(x_s.v_s) / (r^2 x_0^2), across x_s.
        """
        space = _space(x)
        right = _space(u)
        square = above_zero(dot(space, space), power=2)
        along_u = along_v = dot(space, right)
        across_u = across_v = right - along_u / square * space
        if v is not None and v is not u:
            along_v = dot(space, _space(v))
            across_v = _space(v) - along_v / square * space
        product = dot(across_u, across_v) + along_u / square * along_v / (1 + square)
        return product if keepdim else product.squeeze(-1)

    def norm_slack(self, x: Tensor) -> Tensor:
        """16 eps x_0: a rounding of u_s along x_s counts x_0 times across it."""
        largest = _space(x).abs().amax(-1).clamp_min(1.0)
        return 16 * torch.finfo(x.dtype).eps * largest * x.shape[-1] ** 0.5

    def tangent_part(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector of the same space part (``proju`` subtracts terms of size cosh^2 r)."""
        return _tangent(x, _space(u))

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """cosh|u| x + sinh|u| u / |u|, its time recomputed."""
        t = above_zero(safe_sqrt(self.inner(x, u, keepdim=True)))
        return _with_time(t.cosh() * _space(x) + (t.sinh() / t) * _space(u))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector d / sinh d ((y - x) - 2 sinh^2(d / 2) x), its time recomputed."""
        d = above_zero(self._distance(x, y))
        space = _space(x)
        rise = (d / 2).sinh()
        apart = (_space(y) - space) - (2 * rise * rise) * space
        return _tangent(x, (d / d.sinh()) * apart)

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """2 asinh sinh(d / 2); differentiable away from x = y.

        The gradient is that of cosh d = -<x, y>_L, which is smooth at the origin, too.
        """
        radial, angular, _ = _parts(x.detach(), y.detach())
        rise = (radial / 2).sinh()
        d = 2 * (rise * rise + angular).sqrt().asinh()
        if not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
            return d
        slope = torch.where(d > 0, 1 / above_zero(d.sinh()), 0.0)
        cosh = _time(x) * _time(y) - dot(_space(x), _space(y))
        return d + slope * (cosh - cosh.detach())

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport v + <y, v>_L / (1 - <x, y>_L) (x + y), its time recomputed.

        1 - <x, y>_L = 2 cosh^2(d / 2). With n = x_s / a, v = v_n n + v' and y = y_n n + y' the
        product is v' . y' + (v_n / x_0) (sinh(radius of y - radius of x) - x_0 (b - y_n)).
        """
        space = _space(x)
        target = _space(y)
        moved = _space(v)
        time = _time(x)
        radial, angular, a = _parts(x, y)
        a = above_zero(a)
        unit = space / a
        half = (radial / 2).sinh()
        along = dot(unit, moved)
        shortfall = 2 * angular * (time / a)
        across = target - dot(unit, target) * unit
        across_v = moved - along * unit
        pairing = dot(across, across_v) + along / time * (radial.sinh() - shortfall)
        half_divisor = 1 + half * half + angular
        return _tangent(y, moved + pairing / (2 * half_divisor) * (space + target))

    def of_normals(self, z: Tensor) -> Tensor:
        """The exponential at the origin of a Gaussian vector of mean square length 1."""
        u = z / z.shape[-1] ** 0.5
        t = above_zero(length(u))
        return _with_time((t.sinh() / t) * u)

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """(1, 0, ..., 0)."""
        zeros[..., 0] = 1
        return zeros

    def _off_manifold(self, x: Tensor) -> Tensor:
        """|x_0 / sqrt(1 + |x_s|^2) - 1|."""
        time = torch.hypot(length(_space(x)), x.new_ones(()))
        return ((_time(x) - time) / time).abs().squeeze(-1)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        """|<x, u>_L| / |x|: (-x_0, x_s) is normal to the hyperboloid.

        It is the error of the time component; a multiple of x itself is, but for that error, a
        tangent vector of the same space part, and that is how every method here reads it.
        """
        unit = x / length(x)
        return (dot(_space(unit), _space(u)) - _time(unit) * _time(u)).abs().squeeze(-1)


# -- the Poincaré ball ------------------------------------------------------------------------
class PoincareBall(Manifold):
    """Hyperbolic space H^d as the open unit ball of R^d; points have shape ``(..., d)``."""

    name = "PoincareBall"
    looks_at_all_pairs = False

    def dim(self, shape: Shape) -> int:
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

    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """2 u / om(x)."""
        return u / (conformal_gap(x) / 2)

    to_coords = flattened

    def norm_slack(self, x: Tensor) -> Tensor:
        """The ratio om / (om - 8 eps), less 1: rounding of |x|, infinite on the boundary."""
        radius = length(x)
        least = ((1 - radius) * (1 + radius) - 8 * torch.finfo(x.dtype).eps).clamp_min(0.0)
        return (conformal_gap(x) / least - 1.0).squeeze(-1)

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """2 asinh(|y - x| / sqrt(om(x) om(y)))."""
        product = conformal_gap(x) * conformal_gap(y)
        return 2 * (length(y - x) / product.sqrt()).asinh()

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """The Möbius sum of x and tanh(t) u/|u| with t = |u|/om(x), kept inside."""
        om_x = conformal_gap(x)
        size = above_zero(length(u))
        t = size / om_x
        total = torch.addcmul(x, t.tanh() / size, u)
        reach = length(total)
        cosh = t.cosh()
        square = reach * reach
        divisor = square + om_x / (cosh * cosh)
        return self.projx(torch.addcmul((square / divisor) * x, om_x / divisor, total))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector at x of the geodesic to y, shape ``(..., d)``."""
        w = y - x
        om_x = conformal_gap(x)
        n = above_zero(length(w))
        product = om_x * conformal_gap(y)
        square = n * n
        half_dist = (n / product.sqrt()).asinh()
        scale = om_x * half_dist / (n * (square + product).sqrt())
        return torch.addcmul((scale * om_x) * w, scale * square, x, value=-1.0)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of v: two reflections, and the ratio of the conformal factors."""
        om_x = conformal_gap(x)
        apart = y - x
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
        return torch.where(length(x) < 1, 0.0, torch.inf).to(x).squeeze(-1)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        return u.new_zeros(np.broadcast_shapes(x.shape, u.shape)[:-1])


def conformal_gap(x: Tensor) -> Tensor:
    """om(x) = 1 - |x|^2 = 2/lambda(x), never below the boundary's, shape ``(..., 1)``."""
    radius = length(x)
    return ((1 - radius) * (1 + radius)).clamp_min(_boundary(x))


def _boundary(x: Tensor) -> float:
    """The smallest 1 - |x| of a stored point."""
    return 1e-15 if x.dtype == torch.float64 else 1e-6

r"""Hyperbolic space of curvature -1 as the upper sheet of the hyperboloid (Lorentz model).

Points (x_0, x_s) with x_0 = sqrt(1 + |x_s|^2), time first; <u, v>_L = u_s . v_s - u_0 v_0.
The naive formulas lose eps e^{2r} of relative accuracy at radius r (distance to the origin); these
lose eps e^r, the rounding of the stored coordinates: inner products split a vector along and
across x_s, points and tangents have their time component recomputed from the space part.

Symbols: r = |x_s|, a = |x_s|, b = |y_s| (radii in R^d), d distance.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.arrays import at_least, dot, length, measured, of, on_arrays, plus, tiny
from manifed.manifolds.base import Manifold, safe_sqrt, verdict
from manifed.manifolds.linalg import above_zero, standard_normal

FEW_STEPS = 256
"""Entries up to which numpy is faster where two steps of a formula are one call of torch."""


def _with_time(space: Any) -> Any:
    """The point of the hyperboloid with that space part."""
    square = 1 + dot(space, space)
    return _joined(of(square).sqrt(square), space)


def _first(x: Any) -> Any:
    """The time part of x, in the shape of `dot`."""
    return x.item(0) if isinstance(x, np.ndarray) and x.ndim == 1 else x[..., :1]


def _split(x: Any) -> tuple[Any, ...]:
    """Time and space parts, the former in the shape of `dot`."""
    if isinstance(x, Tensor):  # Tensor.split is Python and takes twice as long
        return x.split_with_sizes((1, x.shape[-1] - 1), -1)
    return _first(x), x[..., 1:]


def _tangent(x: Any, space: Any) -> Any:
    """The tangent vector at ``x`` with that space part: u_0 = x_s . u_s / x_0."""
    return _joined(dot(x[..., 1:], space) / _first(x), space)


def _joined(time: Any, space: Any) -> Any:
    """The vector of these parts."""
    if isinstance(space, Tensor):
        return torch.cat((time, space), -1)
    whole = np.empty((*space.shape[:-1], space.shape[-1] + 1), space.dtype)
    whole[..., :1], whole[..., 1:] = time, space
    return whole


def _parts(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """(radius of y - radius of x, a b (1 - cos angle) / 2, a), in the shape of `dot`.

    sinh^2(d / 2) is sinh^2(first / 2) + second.
    """
    space, target = x[..., 1:], y[..., 1:]
    a, b, time, other = length(space), length(target), _first(x), _first(y)
    rise, take = (b - a) + (other - time), of(a)
    radial = take.log1p(abs(rise) / _smaller(a + time, b + other))
    chord = length(b * space - a * target)
    angular = chord * chord / at_least(4 * a * b, tiny(x) ** 2)
    return take.copysign(radial, rise), angular, a


def _smaller(first: Any, second: Any) -> Any:
    return min(first, second) if type(first) is float else of(first).minimum(first, second)


def _half_sinh(x: Any, y: Any) -> Any:
    """sinh(d / 2), in the shape of `dot`."""
    radial, angular, _ = _parts(x, y)
    rise = of(radial).sinh(radial / 2)
    return of(radial).sqrt(rise * rise + angular)


def _distance(x: Any, y: Any) -> Any:
    """2 asinh sinh(d / 2); of tensors that are tracked with the gradient of their cosh d."""
    if not isinstance(x, Tensor):
        half = _half_sinh(x, y)
        return 2 * of(half).asinh(half)
    d = 2 * _half_sinh(x.detach(), y.detach()).asinh()
    if not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
        return d
    slope = torch.where(d > 0, 1 / above_zero(d.sinh()), 0.0)
    cosh = x[..., :1] * y[..., :1] - dot(x[..., 1:], y[..., 1:])
    return d + slope * (cosh - cosh.detach())


def _logarithm(x: Any, y: Any) -> Any:
    """D / sinh d ((y - x) - 2 sinh^2(d / 2) x), its time recomputed."""
    d = at_least(_distance(x, y), tiny(x))
    space, rise = x[..., 1:], of(d).sinh(d / 2)
    apart = (y[..., 1:] - space) - (2 * rise * rise) * space
    return _tangent(x, (d / of(d).sinh(d)) * apart)


def _product(x: Any, u: Any, v: Any = None) -> Any:
    """<u, v>_L of tangent vectors at x from their space parts; <u, u>_L without v."""
    space, right = x[..., 1:], u[..., 1:]
    square = at_least(dot(space, space), tiny(x) ** 2)
    along_u = along_v = dot(space, right)
    across_u = across_v = right - along_u / square * space
    if v is not None:
        left = v[..., 1:]
        along_v = dot(space, left)
        across_v = left - along_v / square * space
    return dot(across_u, across_v) + along_u / square * along_v / (1 + square)


def _projected(x: Any, u: Any, *, mirror: bool = False) -> Any:
    """The vector u + <x, u>_L x, its time recomputed; ``mirror``: of (-u_0, u_s)."""
    time, space, u_0, moved = *_split(x), *_split(u)
    moved = plus(moved, plus(dot(space, moved), time, u_0, minus=not mirror), space)
    return _joined(dot(space, moved) / time, moved)


def _shot(x: Any, u: Any) -> Any:
    """cosh|u| x + sinh|u| u / |u|, its time recomputed."""
    square = _product(x, u)
    root = safe_sqrt(square) if isinstance(square, Tensor) else of(square).sqrt(square)
    t = at_least(root, tiny(x))
    return _with_time(of(t).cosh(t) * x[..., 1:] + (of(t).sinh(t) / t) * u[..., 1:])


def _carried(x: Any, y: Any, v: Any) -> Any:
    """The parallel transport of v from x to y."""
    space, target, moved = x[..., 1:], y[..., 1:], v[..., 1:]
    radial, angular, a = _parts(x, y)
    a, time, sinh = at_least(a, tiny(x)), _first(x), of(radial).sinh
    unit, half = space / a, sinh(radial / 2)
    along = dot(unit, moved)
    shortfall = 2 * angular * (time / a)
    across, across_v = target - dot(unit, target) * unit, moved - along * unit
    pairing = dot(across, across_v) + along / time * (sinh(radial) - shortfall)
    half_divisor = 1 + half * half + angular
    return _tangent(y, moved + pairing / (2 * half_divisor) * (space + target))


class Lorentz(Manifold):
    """Hyperbolic space H^d in R^{d+1}; usable up to radius 25 in float64, 9 in float32."""

    name = "Lorentz"
    looks_at_all_pairs = False
    ndim = 1
    reversible = False

    def dim(self, shape: tuple[int, ...]) -> int:
        """The number of entries less one."""
        return shape[-1] - 1

    def coords_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """(d,) for points of d + 1 entries."""
        return (shape[-1] - 1,)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """Parallel transport of (0, c) from the origin: (x_s.c, c + x_s.c / (1 + x_0) x_s)."""
        space = x[..., 1:]
        along = dot(space, c)
        return torch.cat((along, c + along / (1 + x[..., :1]) * space), -1)

    def coords(self, x: Tensor, u: Tensor) -> Tensor:
        """The inverse of ``from_coords``: u_s - u_0 / (1 + x_0) x_s, shape (..., d)."""
        return u[..., 1:] - u[..., :1] / (1 + x[..., :1]) * x[..., 1:]

    def projx(self, x: Tensor) -> Tensor:
        """The point with the same space part."""
        return _with_time(x[..., 1:])

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The Lorentz-orthogonal projection u + <x, u>_L x."""
        return on_arrays(_projected, x, u, most=FEW_STEPS)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The projection of (-g_0, g_s)."""
        return on_arrays(partial(_projected, mirror=True), x, u, most=FEW_STEPS)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """<u, v>_L of tangent vectors from their space parts alone, shape (...,).

        (u_s)_across . (v_s)_across + (x_s.u_s)(x_s.v_s) / (r^2 x_0^2), across x_s.
        """
        others = () if v is None or v is u else (v,)
        return measured(_product, x, u, *others, keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """The norm of a tangent vector, shape (...,)."""
        return safe_sqrt(self.inner(x, u, keepdim=keepdim))

    def norm_slack(self, x: Tensor) -> Tensor:
        """16 eps x_0: a rounding of u_s along x_s counts x_0 times across it."""
        return (
            16
            * torch.finfo(x.dtype).eps
            * x[..., 1:].abs().amax(-1).clamp_min(1.0)
            * x.shape[-1] ** 0.5
        )

    def tangent_part(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector of the same space part (``proju`` subtracts terms of size cosh^2 r)."""
        return _tangent(x, u[..., 1:])

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The exponential map."""
        return self.expmap(x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm."""
        return self.logmap(x, y)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """cosh|u| x + sinh|u| u / |u|, its time recomputed."""
        return on_arrays(_shot, x, u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector d / sinh d ((y - x) - 2 sinh^2(d / 2) x), its time recomputed."""
        return on_arrays(_logarithm, x, y)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """2 asinh sinh(d / 2), shape (...,); differentiable away from x = y.

        The gradient is that of cosh d = -<x, y>_L, which is smooth at the origin, too.
        """
        return measured(_distance, x, y, keepdim=keepdim)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport v + <y, v>_L / (1 - <x, y>_L) (x + y), its time recomputed.

        1 - <x, y>_L = 2 cosh^2(d / 2). With n = x_s / a, v = v_n n + v' and y = y_n n + y' the
        product is v' . y' + (v_n / x_0) (sinh(radius of y - radius of x) - x_0 (b - y_n)).
        """
        return on_arrays(_carried, x, y, v)

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The exponential of an isotropic Gaussian at the origin, of mean square length 1."""
        shape = size2shape(*size)
        u = standard_normal((*shape[:-1], shape[-1] - 1), generator, dtype, device)
        u = u / u.shape[-1] ** 0.5
        t = above_zero(length(u))
        return _with_time((t.sinh() / t) * u)

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = None,
    ) -> Tensor:
        """(1, 0, ..., 0)."""
        point = torch.zeros(size2shape(*size), dtype=dtype, device=device)
        point[..., 0] = 1
        return point

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        is_ok = len(shape) >= 1 and shape[-1] >= 2
        return verdict(is_ok, f"Expected {name} of shape (..., d + 1), got {tuple(shape)}")

    def _off_manifold(self, x: Tensor) -> Tensor:
        """|x_0 / sqrt(1 + |x_s|^2) - 1|."""
        time = torch.hypot(torch.ones_like(x[..., 0]), torch.linalg.vector_norm(x[..., 1:], dim=-1))
        return ((x[..., 0] - time) / time).abs()

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        """|<x, u>_L| / |x|: (-x_0, x_s) is normal to the hyperboloid.

        It is the error of the time component; a multiple of x itself is, but for that error, a
        tangent vector of the same space part, and that is how every method here reads it.
        """
        unit = x / length(x)
        return (dot(unit[..., 1:], u[..., 1:]) - unit[..., :1] * u[..., :1]).abs().squeeze(-1)

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        time = torch.sqrt(1 + dot(x[..., 1:], x[..., 1:]))
        gap = float(((x[..., :1] - time).abs() / time).max())
        return verdict(gap <= atol + rtol, f"|x_0 / sqrt(1 + |x_s|^2) - 1| = {gap:.3g}, expected 0")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        gap = (u[..., :1] - dot(x[..., 1:], u[..., 1:]) / x[..., :1]).abs()
        bound = atol + rtol * length(u)
        worst = float(gap.max())
        return verdict(bool((gap <= bound).all()), f"|u_0 - x_s.u_s / x_0| = {worst:.3g}, not 0")

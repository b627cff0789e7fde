r"""Hyperbolic space of curvature -1 as the upper sheet of the hyperboloid (Lorentz model).

Points (x_0, x_s) with x_0 = sqrt(1 + |x_s|^2), time first; <u, v>_L = u_s . v_s - u_0 v_0.
The naive formulas lose eps e^{2r} of relative accuracy at radius r (distance to the origin); these
lose eps e^r, the rounding of the stored coordinates: inner products split a vector along and
across x_s, points and tangents have their time component recomputed from the space part.

Symbols: r = |x_s|, a = |x_s|, b = |y_s| (radii in R^d), d distance.
"""

from typing import Any

import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.base import Manifold, safe_sqrt, verdict
from manifed.manifolds.linalg import above_zero, standard_normal


def _dot(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(-1, keepdim=True)


def _length(u: Tensor) -> Tensor:
    return torch.linalg.vector_norm(u, dim=-1, keepdim=True)


def _split(x: Tensor) -> tuple[Tensor, ...]:
    """Time and space parts, shapes (..., 1) and (..., d)."""
    # Tensor.split is Python and takes twice as long
    return x.split_with_sizes((1, x.shape[-1] - 1), -1)


def _with_time(space: Tensor) -> Tensor:
    """The point of the hyperboloid with that space part."""
    time = torch.sqrt(1 + _dot(space, space))
    return torch.cat((time, space), -1)


def _tangent(x: Tensor, space: Tensor) -> Tensor:
    """The tangent vector at ``x`` with that space part: u_0 = x_s . u_s / x_0."""
    return torch.cat((_dot(x[..., 1:], space) / x[..., :1], space), -1)


def _parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(radius of y - radius of x, a b (1 - cos angle) / 2), shapes (..., 1).

    sinh^2(d / 2) is sinh^2(first / 2) + second.
    """
    a, b = _length(x[..., 1:]), _length(y[..., 1:])
    rise = (b - a) + (y[..., :1] - x[..., :1])
    radial = torch.log1p(rise.abs() / torch.minimum(a + x[..., :1], b + y[..., :1]))
    chord = _length(b * x[..., 1:] - a * y[..., 1:])
    angular = chord.square() / above_zero(4 * a * b, power=2)
    return radial.copysign(rise), angular


class Lorentz(Manifold):
    """Hyperbolic space H^d in R^{d+1}; usable up to radius 25 in float64, 9 in float32."""

    name = "Lorentz"
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
        along = _dot(space, c)
        return torch.cat((along, c + along / (1 + x[..., :1]) * space), -1)

    def coords(self, x: Tensor, u: Tensor) -> Tensor:
        """The inverse of ``from_coords``: u_s - u_0 / (1 + x_0) x_s, shape (..., d)."""
        return u[..., 1:] - u[..., :1] / (1 + x[..., :1]) * x[..., 1:]

    def projx(self, x: Tensor) -> Tensor:
        """The point with the same space part."""
        return _with_time(x[..., 1:])

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The Lorentz-orthogonal projection u + <x, u>_L x."""
        time, space, u_0, u_s = *_split(x), *_split(u)
        moved = torch.addcmul(u_s, torch.addcmul(_dot(space, u_s), time, u_0, value=-1.0), space)
        return torch.cat((_dot(space, moved) / time, moved), -1)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The projection of (-g_0, g_s)."""
        time, space, g_0, g_s = *_split(x), *_split(u)
        moved = torch.addcmul(g_s, torch.addcmul(_dot(space, g_s), time, g_0), space)
        return torch.cat((_dot(space, moved) / time, moved), -1)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """<u, v>_L of tangent vectors from their space parts alone, shape (...,).

        (u_s)_across . (v_s)_across + (x_s.u_s)(x_s.v_s) / (r^2 x_0^2), across x_s.
        """
        space = x[..., 1:]
        square = above_zero(_dot(space, space), power=2)
        along_u = _dot(space, u[..., 1:])
        across_u = u[..., 1:] - along_u / square * space
        if v is None or v is u:
            along_v, across_v = along_u, across_u
        else:
            along_v = _dot(space, v[..., 1:])
            across_v = v[..., 1:] - along_v / square * space
        product = _dot(across_u, across_v) + along_u / square * along_v / (1 + square)
        return product if keepdim else product.squeeze(-1)

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
        t = above_zero(self.norm(x, u, keepdim=True))
        return _with_time(t.cosh() * x[..., 1:] + (t.sinh() / t) * u[..., 1:])

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector d / sinh d ((y - x) - 2 sinh^2(d / 2) x), its time recomputed."""
        d = above_zero(self.dist(x, y, keepdim=True))
        space, excess = x[..., 1:], 2 * torch.sinh(d / 2).square()
        return _tangent(x, (d / d.sinh()) * ((y[..., 1:] - space) - excess * space))

    def _half_sinh(self, x: Tensor, y: Tensor) -> Tensor:
        """sinh(d / 2), shape (..., 1)."""
        radial, angular = _parts(x, y)
        return (torch.sinh(radial / 2).square() + angular).sqrt()

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """2 asinh sinh(d / 2), shape (...,); differentiable away from x = y.

        The gradient is that of cosh d = -<x, y>_L, which is smooth at the origin, too.
        """
        is_tracked = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
        d = 2 * self._half_sinh(x.detach(), y.detach()).asinh()
        if is_tracked:
            slope = torch.where(d > 0, 1 / above_zero(d.sinh()), 0.0)
            cosh = x[..., :1] * y[..., :1] - _dot(x[..., 1:], y[..., 1:])
            d = d + slope * (cosh - cosh.detach())
        return d if keepdim else d.squeeze(-1)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport v + <y, v>_L / (1 - <x, y>_L) (x + y), its time recomputed.

        1 - <x, y>_L = 2 cosh^2(d / 2). With n = x_s / a, v = v_n n + v' and y = y_n n + y' the
        product is v' . y' + (v_n / x_0) (sinh(radius of y - radius of x) - x_0 (b - y_n)).
        """
        space, target = x[..., 1:], y[..., 1:]
        radial, angular = _parts(x, y)
        a = above_zero(_length(space))
        unit = space / a
        along = _dot(unit, v[..., 1:])
        shortfall = 2 * angular * (x[..., :1] / a)
        across, across_v = target - _dot(unit, target) * unit, v[..., 1:] - along * unit
        pairing = _dot(across, across_v) + along / x[..., :1] * (radial.sinh() - shortfall)
        half_divisor = 1 + torch.sinh(radial / 2).square() + angular
        return _tangent(y, v[..., 1:] + pairing / (2 * half_divisor) * (space + target))

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
        t = above_zero(_length(u))
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
        unit = x / _length(x)
        return (_dot(unit[..., 1:], u[..., 1:]) - unit[..., :1] * u[..., :1]).abs().squeeze(-1)

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        time = torch.sqrt(1 + _dot(x[..., 1:], x[..., 1:]))
        gap = float(((x[..., :1] - time).abs() / time).max())
        return verdict(gap <= atol + rtol, f"|x_0 / sqrt(1 + |x_s|^2) - 1| = {gap:.3g}, expected 0")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        gap = (u[..., :1] - _dot(x[..., 1:], u[..., 1:]) / x[..., :1]).abs()
        bound = atol + rtol * _length(u)
        worst = float(gap.max())
        return verdict(bool((gap <= bound).all()), f"|u_0 - x_s.u_s / x_0| = {worst:.3g}, not 0")

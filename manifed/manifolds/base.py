"""The base class of every manifold: a geoopt.Manifold with what algorithms need beside.

geoopt gives the names (projx, proju, inner, retr, expmap, logmap, transp, dist); added here are
what differential privacy and federated averaging need on top:

* ``dim(shape)``: the dimension of the manifold whose points have that shape;
* ``coords_shape(shape)`` and ``from_coords(x, c)``: a linear map R^m -> T_xM whose matrix J in a
  metric-orthonormal basis satisfies J J^T = I, so i.i.d. standard normals become the isotropic
  tangent Gaussian of the metric (Utpala et al. 2023, Claim 2), ``tangent_gaussian``; its adjoint
  ``to_coords(x, u)``;
* ``invretr``: the inverse of ``retr``; ``maps``, exact or by retractions;
* the ambient space of a submanifold: ``reach``, ``nearest``, ``ambient``;
* ``as_point``, which places a tensor as geoopt does, sharing its storage;
* ``frechet_mean``; capabilities as data (``has_logmap``, ``is_transp_isometric``).

Conventions: float64, or float32 to its rounding; every method broadcasts over leading dimensions
(shape ``(..., *point)``); nothing mutates its arguments; points `x, y`, tangents `u, v`.

Where a stored tensor may lie: what is measured, and the three bounds that are used everywhere.

A defect is relative and dimensionless; honest rounding gives about 1e-15 whatever the radius or the
conditioning, and a tensor that is not finite gives infinity, never NaN:

* ``manifold.membership_defect(x)``: how far x is from being a stored point;
* ``manifold.tangency_defect(x, u)``: the part of u that is normal at x, in the ambient Euclidean
  norm, over |x| + |u|. The summand |x| is what rounding knows of a vector that is a difference of
  points or a sum that cancelled; without it every converged run would fail.

What the bounds leave open: a normal part of at most ``TOLERANCE`` (|x| + |u|), and a point at
``TOLERANCE`` from the manifold, where lengths of vectors are wrong by that fraction.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import geoopt
import numpy as np
import torch
from geoopt import ManifoldTensor
from geoopt.utils import size2shape
from torch import Tensor, linalg

from manifed.manifolds.linalg import Shape, above_zero, identity_like, polar, standard_normal

_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

TOLERANCE = {t: max(1e-6, 1e3 * torch.finfo(t).eps) for t in _TYPES}
"""The largest defect of a point or a vector that is taken for rounding: 1e-6 in float64, where
rounding stays below 1e-9, or 1000 units of a shorter type."""

DRIFT = {t: max(1e-10, 100 * torch.finfo(t).eps) for t in _TYPES}
"""How far a model may be off its manifold after a server update, well inside `TOLERANCE`.

1e-10 in float64, where 2000 exponential maps without a projection leave less than 1e-13; 100 units
of a shorter type.
"""

LARGEST = {t: min(1e100, torch.finfo(t).max ** (1 / 3)) for t in _TYPES}
"""The largest Euclidean norm of a point or a vector that is taken: 1e100 in float64, so that
products of three are finite, or the cube root of a shorter range."""


def largest_entry(a: Tensor, ndim: int) -> Tensor:
    """Returns the largest |a_ij| over the last ``ndim`` dimensions, shape (...,); NaN if any is."""
    return a.flatten(-ndim).abs().amax(-1)


def frobenius(a: Tensor, ndim: int) -> Tensor:
    """The Euclidean norm over the last ``ndim`` dimensions, shape (...,), without overflow."""
    largest = largest_entry(a, ndim)
    unit = torch.where(largest > 0, largest, 1.0)
    return unit * linalg.vector_norm(a.flatten(-ndim) / unit.unsqueeze(-1), dim=-1)


def gram_defect(x: Tensor) -> Tensor:
    """Returns |x^T x - I| / (2 sqrt k) of n x k matrices, shape (...,).

    It is nearly their relative distance from orthonormal ones.
    """
    return linalg.matrix_norm(x.mT @ x - identity_like(x)) / (2 * x.shape[-1] ** 0.5)


MapChoice = Literal["exact", "retraction"]
"""Exact maps, or their approximations of first order as the rivals of Zhang, Hu, So, Johansson
(2024, section 5) ran them: one choice for a whole algorithm."""


class _Maps(NamedTuple):
    """The three maps by which an algorithm moves: exponential, logarithm and transport."""

    forward: Callable[[Tensor, Tensor], Tensor]
    """(x, u) -> y."""
    inverse: Callable[[Tensor, Tensor], Tensor]
    """(x, y) -> u with forward(x, u) = y."""
    transport: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(x, y, v tangent at x) -> tangent at y."""


class Manifold(geoopt.Manifold):
    """A Riemannian manifold with a metric; points have ``ndim`` trailing dimensions.

    A subclass gives ``dim``, ``from_coords``, ``inner`` (or ``flattened``), ``projx``, ``proju``,
    ``egrad2rgrad``, ``expmap``, ``logmap``, ``transp``, ``dist``, and the two measures behind the
    defects.
    """

    name: str = "manifold"
    ndim: int = 1
    form: str = "(..., *point)"
    """The shape of a point, in words; ``fits`` is the rule."""
    has_logmap: bool = True
    """Whether ``expmap``, ``logmap`` and ``dist`` exist (fixed-rank matrices: no)."""
    is_transp_isometric: bool = True
    """Whether ``transp(x, y, ·)`` is a linear isometry T_xM -> T_yM."""
    is_transp_parallel: bool = True
    """Whether it is parallel transport along the minimising geodesic."""
    looks_at_all_pairs: bool = True
    """Whether ``logmap``, ``dist`` or a norm of a stack may treat one pair as another asks for: by
    an iteration until all have converged, or a test of all."""
    carries_rows_apart: bool = False
    """Whether ``transp`` and ``norm_bound`` of many vectors at one point give each of them the same
    bits whatever the others are: by sums over its own entries, and no product of matrices."""
    is_whole_space: bool = False
    """Whether every finite array is a point, and every other one a tangent vector there."""
    reach: float | None = None
    """P_M is single valued at distances below it: the constant of proximal smoothness, Zhang, Hu,
    So, Johansson (2024), Definition 2.2. None: no submanifold with the metric of its ambient space.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        """Refuses a class whose ``to_coords`` is a formula for another class's ``from_coords``.

        Raises:
            TypeError: a class that gives ``from_coords`` inherits such a formula.
        """
        super().__init_subclass__(**named)
        order = cls.__mro__
        ours, theirs = (
            next(place for place, c in enumerate(order) if name in vars(c))
            for name in ("from_coords", "to_coords")
        )
        if ours < theirs and order[theirs] is not Manifold:
            raise TypeError(
                f"{cls.__name__}.to_coords: expected one for its own from_coords, got that of "
                f"{order[theirs].__name__}; define both, or set to_coords = Manifold.to_coords"
            )

    # -- what privacy and averaging add ------------------------------------------------------
    @abstractmethod
    def dim(self, shape: Shape) -> int:
        """Dimension of the manifold whose points have shape ``shape`` (no leading dimensions)."""

    def coords_shape(self, shape: Shape) -> Shape:
        """Shape of the i.i.d. normals that ``from_coords`` consumes for one point."""
        return shape

    def coords_of(self, x: Tensor) -> Shape:
        """Returns `coords_shape` for the points x (..., *point)."""
        return self.coords_shape(tuple(x.shape[x.dim() - self.ndim :]))

    @abstractmethod
    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The tangent vector at ``x`` of coordinates ``c``, shape ``(..., *point)``; linear in c.

        Guarantees: in any metric-orthonormal basis of T_xM its matrix J has J J^T = I, so for
        c ~ N(0, I) the result is N_x(0, 1) and ``stddev * from_coords(x, c)`` is N_x(0, stddev^2).
        """

    def to_coords(self, x: Tensor, u: Tensor) -> Tensor:
        """The coordinates J^T u of the tangent vector u, shape (..., *coords); linear in u.

        Guarantees: <from_coords(x, c), u>_x = <c, to_coords(x, u)> for every c. So the Euclidean
        norm of the coordinates is the metric norm of u, and ``from_coords`` gives u back. Here by
        differentiation; a subclass may have a formula.
        """
        lead = np.broadcast_shapes(x.shape, u.shape)[: -self.ndim]
        c = u.new_zeros(*lead, *self.coords_of(x)).requires_grad_()
        with torch.enable_grad():
            product = self.inner(x, self.from_coords(x, c), u).sum()
        return torch.autograd.grad(product, c)[0]

    def tangent_gaussian(self, x: Tensor, stddev: float, generator: torch.Generator) -> Tensor:
        """One draw of N_x(0, stddev^2) per point of x (..., *point), the same shape and dtype.

        In every orthonormal coordinate of the metric at x the standard deviation is ``stddev``. The
        normals are drawn in float64, whatever the dtype of x.

        Raises:
            ValueError: without a generator (no global randomness).
        """
        size = (*x.shape[: x.dim() - self.ndim], *self.coords_of(x))
        return stddev * self.from_coords(x, standard_normal(size, generator).to(x))

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Moves from x along u by a retraction; a subclass may have one cheaper than ``expmap``."""
        return self.expmap(x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector u at x with ``retr(x, u) = y``, shape ``(..., *point)``."""
        return self.logmap(x, y)

    # -- how an algorithm moves ----------------------------------------------------------------
    def maps(self, choice: MapChoice) -> _Maps:
        """Returns ``expmap``, ``logmap``, ``transp``; or ``retr``, ``invretr`` and projection.

        The transport of "exact" is parallel only where ``is_transp_parallel``.
        """
        if choice == "exact":
            return _Maps(self.expmap, self.logmap, self.transp)
        return _Maps(self.retr, self.invretr, self.projected)

    def projected(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Projects v, tangent at x, on T_yM."""
        return self.proju(y, v)

    # -- the flat space around a submanifold ---------------------------------------------------
    def nearest(self, y: Tensor) -> Tensor:
        """P_M(y), the point of the manifold nearest to an ambient y."""
        return self.projx(y)

    def ambient(self, x: Tensor) -> Tensor:
        """The point as an element of the ambient space."""
        return x

    def from_ambient(self, y: Tensor) -> Tensor:
        """The point of the manifold that the ambient y, which lies on it, is."""
        return y

    def ambient_vector(self, x: Tensor, u: Tensor) -> Tensor:
        """The tangent vector u at x as an element of the ambient space."""
        return u

    def frechet_mean(
        self,
        points: Tensor,
        weights: Tensor | None = None,
        *,
        max_iterations: int = 100,
        tolerance: float = 1e-12,
    ) -> Tensor:
        """Weighted Fréchet mean of ``points`` (n, ..., *point), by Karcher flow from the first.

        x <- expmap(x, step * sum_i w_i logmap(x, p_i)), from step 1 on with Barzilai–Borwein
        steps (Iannazzo and Porcelli 2018), which neither crawl nor oscillate when the points are
        spread over several units of distance. Stops where rounding stops it, too.

        Args:
            points: the points, along the first dimension.
            weights: their weights (n,), normalised here; equal where absent.
            max_iterations: iterations at most.
            tolerance: norm of the weighted mean of logarithms at which to stop; at least eight
                units of rounding.
        """
        tolerance = max(tolerance, 8 * torch.finfo(points.dtype).eps)
        if weights is None:
            weights = points.new_full((len(points),), 1.0 / len(points))
        share = (weights / weights.sum()).reshape(-1, *[1] * (points.dim() - 1))
        x = points[0]
        step = points.new_ones(())
        last = math.inf
        previous: tuple[Tensor, Tensor] | None = None
        for _ in range(max_iterations):
            u = (share * self.logmap(x[None], points)).sum(0)
            size = float(self.norm(x, u).max())
            if size <= tolerance or last <= size <= 1e3 * tolerance:
                break
            if previous is not None:
                step = self._next_step(step, *previous, x, u)
            previous = (x, u)
            last = size
            x = self.projx(self.expmap(x, step * u))
        return x

    def _next_step(self, step: Tensor, x: Tensor, u: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The step after ``step * u`` at x led to the direction v at y: step |u|^2 / <u, u - v>."""
        carried = self.transp(x, y, u)
        square = self.inner(y, carried, carried, keepdim=True)
        change = square - self.inner(y, carried, v, keepdim=True)
        return (step * square / above_zero(change.clamp_min(square / 4), power=2)).clamp(0.02, 10.0)

    # -- where tensors lie -------------------------------------------------------------------
    def membership_defect(self, x: Tensor) -> Tensor:
        """Returns the relative distance of x to a stored point, (...,); infinite if not finite."""
        defect = self._off_manifold(torch.nan_to_num(x, posinf=0.0, neginf=0.0))
        is_finite = torch.isfinite(x).flatten(-self.ndim).all(-1) & torch.isfinite(defect)
        return torch.where(is_finite, defect, torch.inf)

    def tangency_defect(self, x: Tensor, u: Tensor) -> Tensor:
        """The part of u normal at x over |x| + |u|, ambient norms, shape (...,); see `defects`.

        Infinite where u or x is not finite; for entries of any size, without overflow.
        """
        largest = largest_entry(u, self.ndim)
        is_finite = torch.isfinite(largest)
        scale = torch.where(is_finite, largest.clamp_min(1.0), 1.0)
        u = torch.where(self.expand_scalar(is_finite), u, torch.nan) / self.expand_scalar(scale)
        length = linalg.vector_norm(u, dim=self.point_dims())
        normal = self._normal_part(x, u)
        size = frobenius(x, self.ndim)
        defect = torch.where(normal == 0, normal, normal / (size / scale + length))
        is_finite = torch.isfinite(length) & torch.isfinite(size) & torch.isfinite(defect)
        return torch.where(is_finite, defect, torch.inf)

    def _off_manifold(self, x: Tensor) -> Tensor:
        """`membership_defect` of finite x; may overflow to anything that is not finite."""
        raise NotImplementedError(f"{self.name} does not say how far a point is off it")

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        """Ambient norm of the part of u normal at x, shape (...,), for |entries| of u <= 1e100."""
        raise NotImplementedError(f"{self.name} does not say what is normal to it")

    # -- shared by all -----------------------------------------------------------------------
    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """Returns numbers whose summed products are the metric at x, where a subclass has them."""
        raise NotImplementedError(f"{self.name} defines neither inner nor flattened")

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """<u, v>_x, of u with itself where there is no v; shape ``(...)``."""
        left = self.flattened(x, u)
        right = left if v is None or v is u else self.flattened(x, v)
        return (left * right).sum(self.point_dims(), keepdim=keepdim)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """The length of the shortest geodesic from x to y, shape ``(...)``."""
        found = self._distance(x, y)
        return found if keepdim else found.flatten(-self.ndim).squeeze(-1)

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """What `dist` returns with ``keepdim``."""
        raise NotImplementedError(f"{self.name} has no dist")

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Metric norm of u at x; never NaN, and its gradient at u = 0 is 0."""
        return safe_sqrt(self.inner(x, u, u, keepdim=keepdim))

    def norm_bound(self, x: Tensor, u: Tensor) -> Tensor:
        """Returns an upper bound of the metric norm of u at x, by which a clip divides, (...,).

        Guarantees: never below the exact norm of the stored numbers by more than 1e-11 of it, from
        1e-300 to 1e300 (where squares overflow or vanish u is scaled first), and above it by
        ``norm_slack`` at most; NaN or infinite where u is not finite.
        """
        norms = self.norm(x, u)
        high = 1e140 if norms.dtype == torch.float64 else 1e15  # squares stay in range below it
        least, most = norms.detach().aminmax() if norms.numel() else (1.0, 1.0)
        if not 1 / high < float(least) <= float(most) < high:
            is_safe = (norms > 1 / high) & (norms < high)
            scale = u.abs().amax(self.point_dims(), keepdim=True)
            scale = torch.where(scale > 0, scale, 1.0)
            scaled = self.norm(x, u / scale) * scale.squeeze(self.point_dims())
            norms = torch.where(is_safe, norms, scaled)
        return norms * (1.0 + self.norm_slack(x))

    def norm_slack(self, x: Tensor) -> Tensor:
        """Relative rounding error of a norm at x beyond dim * eps, shape ``(...,)``.

        The metric at x may stretch the rounding of stored entries: by x_0 on the hyperboloid, by
        1 / (1 - |x|^2) on the ball, by the condition number of a matrix.
        """
        return x.new_zeros(x.shape[: x.dim() - self.ndim])

    def tangent_part(self, x: Tensor, u: Tensor) -> Tensor:
        """The tangent vector nearest to u, which is tangent up to rounding; linear, never longer.

        Tangent noise covers nothing that is normal to the manifold, so what is released is made
        tangent after it is summed.
        """
        return self.proju(x, u)

    def settings(self) -> tuple[object, ...]:
        """The settings that distinguish two manifolds of one class."""
        return ()

    def __eq__(self, other: object) -> bool:
        """Whether class and settings are equal; manifolds have no state."""
        return (
            isinstance(other, Manifold)
            and type(self) is type(other)
            and self.settings() == other.settings()
        )

    def __hash__(self) -> int:
        """Hashes class and settings, consistent with equality."""
        return hash((type(self), self.settings()))

    def extra_repr(self) -> str:
        """The settings, for ``repr``."""
        return ", ".join(str(setting) for setting in self.settings())

    def point_dims(self) -> Shape:
        """The trailing dimensions that make one point, as negative indices."""
        return tuple(range(-self.ndim, 0))

    def expand_scalar(self, scalar: Tensor) -> Tensor:
        """Append ``ndim`` singleton dimensions, so that (...,) scalars multiply (..., *point)."""
        return scalar.reshape(*scalar.shape, *[1] * self.ndim)

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """A random point; a ``torch.Generator`` must be handed in (no global randomness)."""
        shape = size2shape(*size)
        self._assert_check_shape(shape, "size")
        drawn = (*shape[: -self.ndim], *self.coords_shape(shape[-self.ndim :]))
        return self.of_normals(standard_normal(drawn, generator, dtype, device))

    def of_normals(self, z: Tensor) -> Tensor:
        """The random point that standard normals z (..., *coords) stand for; uniform if any is."""
        return self.projx(z)

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = None,
    ) -> Tensor:
        """The manifold's own point (zero, the identity, the first unit vectors), of shape size."""
        return self.of_zeros(torch.zeros(size2shape(*size), dtype=dtype, device=device))

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """The `origin`, of the shape of ``zeros`` and on its memory."""
        raise NotImplementedError(f"{self.name} has no origin")

    # -- geoopt's own checks, from the two defects ---------------------------------------------
    def fits(self, shape: Shape) -> bool:
        """Whether the last ``ndim`` sizes are those of a point; see ``form``."""
        return True

    def _check_shape(self, shape: Shape, name: str) -> tuple[bool, str | None]:
        is_ok = len(shape) >= self.ndim and self.fits(shape[-self.ndim :])
        return is_ok, f"Expected {name} of shape {self.form}, got {tuple(shape)}"

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        return _verdict("membership_defect", self.membership_defect(x), atol + rtol)

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        return _verdict("tangency_defect", self.tangency_defect(x, u), atol + rtol)


class Submanifold(Manifold):
    """A set in a space of vectors or matrices with the metric tr(u^T v) of that space."""

    reach: float | None = 1.0

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The orthogonal projection of the Euclidean gradient u."""
        return self.proju(x, u)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The orthogonal projection of ambient normals c, of the shape of a point."""
        return self.proju(x, c)

    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector itself."""
        return u


class Frames(Submanifold):
    """Base of manifolds whose points are orthonormal n x k matrices."""

    ndim = 2
    form = "(..., n, k), n >= k"

    def fits(self, shape: Shape) -> bool:
        """Whether matrices are tall or square."""
        return shape[-2] >= shape[-1]

    def projx(self, x: Tensor) -> Tensor:
        """The polar factor, the nearest orthonormal matrix."""
        return polar(x)

    def _off_manifold(self, x: Tensor) -> Tensor:
        return gram_defect(x)


def as_point(x: Tensor, manifold: Manifold) -> ManifoldTensor:
    """Returns x (..., *point), known to lie on ``manifold``, as a tensor of that manifold."""
    placed: Any = Tensor._make_subclass(ManifoldTensor, x)  # detached; what geoopt itself calls
    placed.manifold = manifold
    return placed


def clip_factors(norms: Tensor, l2_norm_clip: float | Tensor) -> Tensor:
    """Returns min(1, l2_norm_clip / norm) for every norm, shape and dtype of ``norms``.

    Abadi et al. (2016) scale a gradient so; on a manifold the norm is the metric's at the point
    (Han et al. 2024), as `Manifold.norm_bound` or a problem has measured it.

    Guarantees, for norms (or upper bounds of norms) of vectors v >= 0: 1, or a rounding less, where
    norm <= l2_norm_clip (exactly 1 at norm 0); exactly 0 where the norm is NaN or infinite, where
    the factor would be below 1e-308, and everywhere for a bound below 1e-140; factor * |v| <=
    l2_norm_clip up to three roundings of float64. In a narrower type the factor is shrunk by 16 of
    its own roundings, so that the product, rounded in that type, is at most l2_norm_clip.
    The caller must drop what has factor 0 (`clipped` does): 0 * NaN is NaN.

    Raises:
        ValueError: unless l2_norm_clip > 0 (infinity clips nothing, NaN is refused).
    """
    if not bool(torch.as_tensor(l2_norm_clip > 0).all()):
        raise ValueError(f"Expected l2_norm_clip > 0, got {l2_norm_clip}")
    if norms.dtype != torch.float64:
        # A norm within 16 roundings below the bound counts as above it; none may underflow.
        info = torch.finfo(norms.dtype)
        wide = norms.to(torch.float64)
        factors = clip_factors(wide * (1 + 16 * info.eps), l2_norm_clip)
        smallest = info.tiny / info.eps
        is_kept = (factors >= smallest) & ((factors == 1.0) | (factors * wide >= smallest))
        return torch.where(is_kept, factors, 0.0).to(norms.dtype)
    factors = (norms.reciprocal() * l2_norm_clip).clamp_max_(1.0)
    # False for NaN; products below these round as denormals, which have no relative accuracy
    is_kept = (factors >= 1e-308) & (l2_norm_clip >= 1e-140)
    return torch.where(is_kept, factors, 0.0)


def clipped(vectors: Tensor, norms: Tensor, l2_norm_clip: float | Tensor) -> Tensor:
    """Scales the vectors, shape ``(..., *point)``, to norm at most l2_norm_clip.

    ``norms`` has shape ``(...)``: upper bounds of the vectors' norms in the metric that is clipped
    in. A vector whose norm is NaN or infinite becomes exactly zero, whatever it contains.
    """
    factors = clip_factors(norms.to(vectors.dtype), l2_norm_clip)
    factors = factors.reshape(*factors.shape, *[1] * (vectors.dim() - factors.dim()))
    return torch.where(factors > 0, factors * vectors, 0.0)


def safe_sqrt(squared: Tensor) -> Tensor:
    """Returns the square root of max(squared, 0), whose gradient at 0 is 0 and not infinite."""
    if not squared.requires_grad:
        return squared.clamp_min(0.0).sqrt()
    is_positive = squared > 0
    root = torch.where(is_positive, squared, 1.0).sqrt()
    return torch.where(is_positive, root, 0.0)


def _verdict(name: str, defect: Tensor, bound: float) -> tuple[bool, str | None]:
    worst = float(defect.max()) if defect.numel() else 0.0
    return worst <= bound, f"Expected {name} <= {bound:.3g}, got {worst:.3g}"

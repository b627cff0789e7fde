r"""Symmetric positive definite matrices: the set, and its two curved metrics.

Points are full symmetric m x m matrices, tangent vectors are symmetric m x m matrices,
dim = m(m+1)/2. A metric is a subclass of `SPDSet`; none inherits another's geometry. The two flat
metrics are in `spd_flat`.

Affine-invariant (Pennec, Fillard and Ayache: A Riemannian framework for tensor computing, IJCV
2006): everything goes through the Cholesky factor x = L L^T and the whitened matrices
S_u = L^{-1} u L^{-T}: one symmetric eigenproblem a map, no inverse and no square root of x.

Bures-Wasserstein, the optimal transport of centred Gaussians (Malagò, Montrucchio, Pistone:
Wasserstein Riemannian Geometry of Gaussian Densities, 2018; Bhatia, Jain, Lim: On the
Bures-Wasserstein Distance between Positive Definite Matrices, 2019): <u, v>_x = tr(S_x[u] v)/2
where S = S_x[u] solves x S + S x = u, so that <u, v>_I = tr(u v)/4 (Utpala et al. 2023 print it
without the 1/2). It is the quotient of |.|_F on factors by x = L L^T, which gives the tangent
Gaussian without an eigendecomposition.

Symbols: L factor, S_u, S_y whitened u and y, E square root of S_y.
"""

from typing import Any

import numpy as np
import torch
from geoopt.utils import size2shape
from torch import Tensor

from manifed.manifolds.base import Manifold, verdict
from manifed.manifolds.defects import largest_entry
from manifed.manifolds.linalg import (
    DEGREE_18_RADIUS,
    EXP,
    LOG,
    SQRT,
    congruence,
    expm,
    identity_like,
    plus_gram,
    polar,
    standard_normal,
    sym,
    sym_function,
    whiten,
)

SMALLEST_EIGENVALUE = 1e-12
"""Of a matrix that `projx` returns; in float32 eight units of rounding."""
SHORT_STEP = 2 * DEGREE_18_RADIUS
"""1-norm of S_u up to which exp(S_u / 2) is one polynomial, without squaring."""
MANY_ENTRIES = 2500
"""Entries of a stack from which matrix products beat an eigendecomposition."""


class SPDSet(Manifold):
    """Symmetric positive definite matrices without a metric; points ``(..., m, m)``."""

    ndim = 2
    reversible = False

    def dim(self, shape: tuple[int, ...]) -> int:
        """m(m+1)/2 for points of shape ``(m, m)``."""
        return shape[-1] * (shape[-1] + 1) // 2

    def projx(self, x: Tensor) -> Tensor:
        """The nearest symmetric matrix with eigenvalues >= 1e-12 (clamped, not mirrored)."""
        smallest = max(SMALLEST_EIGENVALUE, 8 * torch.finfo(x.dtype).eps)
        w, v = torch.linalg.eigh(sym(x))
        return sym((v * w.clamp_min(smallest).unsqueeze(-2)) @ v.mT)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The symmetric part of u."""
        return sym(u).expand(np.broadcast_shapes(x.shape, u.shape))

    def norm_slack(self, x: Tensor) -> Tensor:
        """4 m eps tr(x) tr(x^-1), at least the condition number of x times 4 m eps."""
        factor, inverse = factor_norms(x)
        return 4 * x.shape[-1] * torch.finfo(x.dtype).eps * (factor * inverse).square()

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        if len(shape) < 2 or shape[-1] != shape[-2]:
            return False, f"Expected {name} of shape (..., m, m), got {tuple(shape)}"
        return True, None

    def _off_manifold(self, x: Tensor) -> Tensor:
        """The relative asymmetry; infinite where there is no Cholesky factor."""
        largest = largest_entry(x, 2)
        unit = x / self.expand_scalar(torch.where(largest > 0, largest, 1.0))
        asymmetry = torch.linalg.vector_norm(unit - unit.mT, dim=(-2, -1)) / 2
        is_definite = torch.linalg.cholesky_ex(unit).info == 0
        return torch.where(
            is_definite, asymmetry / torch.linalg.vector_norm(unit, dim=(-2, -1)), torch.inf
        )

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        """The skew part."""
        normal = torch.linalg.vector_norm(u - u.mT, dim=(-2, -1)) / 2
        return normal.expand(np.broadcast_shapes(x.shape, u.shape)[:-2])

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        asymmetry = float((x - x.mT).abs().max())
        if asymmetry > atol + rtol * float(x.abs().max()):
            return False, f"Expected |x - x^T| <= {atol}, got {asymmetry}; call projx"
        is_definite = not bool(torch.linalg.cholesky_ex(x).info.any())
        return verdict(is_definite, "Expected a positive definite x, its Cholesky factor fails")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        asymmetry = float((u - u.mT).abs().max())
        bound = atol + rtol * float(u.abs().max())
        return verdict(asymmetry <= bound, f"Expected |u - u^T| <= {bound}, got {asymmetry}")

    def random(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The exponential of half the symmetric part of standard normals, shape ``(..., m, m)``."""
        z = standard_normal(size2shape(*size), generator, dtype, device)
        root = expm(sym(z) / 4)
        return root @ root.mT

    def origin(
        self,
        *size: Any,
        dtype: torch.dtype = torch.float64,
        device: Any = None,
        seed: int | None = 42,
    ) -> Tensor:
        """The identity matrix, repeated to shape ``size``."""
        point = torch.zeros(size2shape(*size), dtype=dtype, device=device)
        return point + identity_like(point)


def factor_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """|L|_F and |L^-1|_F of x = L L^T, shape ``(...)`` each."""
    factor = torch.linalg.cholesky(x)
    inverse = torch.linalg.solve_triangular(factor, identity_like(x).expand_as(factor), upper=False)
    norm = torch.linalg.matrix_norm
    return norm(factor), norm(inverse)


class SPD(SPDSet):
    """Affine-invariant metric <u, v>_x = tr(x^{-1} u x^{-1} v); curvature in [-1/2, 0].

    Complete and without cut locus: every map is defined everywhere. All methods raise
    ``torch.linalg.LinAlgError`` where x is not positive definite.
    """

    name = "SPD"
    looks_at_all_pairs = False
    reversible = False

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """L sym(c) L^T of m x m coordinates."""
        factor = torch.linalg.cholesky(x)
        return sym(factor @ c @ factor.mT)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The symmetric part of u."""
        return sym(u) if x.shape == u.shape else super().proju(x, u)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The gradient x sym(g) x = sym(x g x)."""
        return sym(x @ u @ x)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """tr(S_u S_v), shape (...,)."""
        factor = torch.linalg.cholesky(x)
        whitened = whiten(factor, u)
        other = whitened if v is None or v is u else whiten(factor, v)
        return (whitened * other).sum((-2, -1), keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """The Frobenius norm of S_u, shape (...,)."""
        whitened = whiten(torch.linalg.cholesky(x), u)
        return torch.linalg.vector_norm(whitened, dim=(-2, -1), keepdim=keepdim)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The point x + u + u x^{-1} u / 2 = L (I + S + S^2 / 2) L^T, of second order, definite."""
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(x), u, upper=False)
        return plus_gram(x + u, half, 0.5)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """L ((2 S_y - I)^{1/2} - I) L^T, for eigenvalues of S_y of at least 1/2."""
        factor = torch.linalg.cholesky(x)
        return congruence(factor, 2 * whiten(factor, y) - identity_like(x), SQRT) - x

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """L exp(S_u) L^T.

        A short step of a large stack goes through exp(S_u / 2), a polynomial in matrix products;
        every other by an eigendecomposition, which keeps small eigenvalues of any ratio.
        """
        factor = torch.linalg.cholesky(x)
        whitened = whiten(factor, u)
        if whitened.requires_grad or not _is_short_and_many(whitened):
            return congruence(factor, whitened, EXP)
        half = factor @ expm(whitened * 0.5)
        return sym(half @ half.mT)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """L log(S_y) L^T."""
        factor = torch.linalg.cholesky(x)
        return congruence(factor, whiten(factor, y), LOG)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """|log eigenvalues of S_y|, shape (...,)."""
        ratios = torch.linalg.eigvalsh(whiten(torch.linalg.cholesky(x), y))
        length = torch.linalg.vector_norm(ratios.log(), dim=-1)
        return self.expand_scalar(length) if keepdim else length

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport L E S_v E L^T; stays whitened, so conditioning enters once."""
        factor = torch.linalg.cholesky(x)
        root = factor @ sym_function(whiten(factor, y), SQRT)
        return sym(root @ whiten(factor, v) @ root.mT)


def _is_short_and_many(whitened: Tensor) -> bool:
    """Whether the polynomial is accurate (the host reads the largest norm) and pays."""
    if whitened.numel() < MANY_ENTRIES:
        return False
    return float(whitened.abs().sum(-1).max()) <= SHORT_STEP


class SPDBuresWasserstein(SPDSet):
    """SPD matrices with <u, v>_x = tr(S_x[u] v)/2; points ``(..., m, m)``.

    ``transp`` matches the coordinates of ``x`` and ``y`` relative to the identity: a linear
    isometry, the identity at y = x, but not parallel transport (which has no closed form).

    The metric is not complete: ``expmap(x, u)`` is a geodesic only while ``geodesic_margin(x, u)``,
    the smallest eigenvalue of I + S_x[u], is positive. Noise of a privacy mechanism can leave that
    region: clip, or use the affine-invariant or log-Cholesky metric, which have no border.
    """

    name = "SPDBuresWasserstein"
    is_transp_parallel = False

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """tr(S_x[u] v)/2, shape ``(...)`` (or ``(..., 1, 1)`` with ``keepdim``)."""
        w, basis = torch.linalg.eigh(x)
        left = basis.mT @ u @ basis
        right = left if v is None else basis.mT @ v @ basis
        return (left * right / (2 * _pair_sums(w))).sum((-2, -1), keepdim=keepdim)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """4 sym(sym(u) x)."""
        half = sym(u) @ x
        return 2 * (half + half.mT)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """|Lx - Ly O|_F with O the polar factor of Ly^T Lx, shape ``(...)``."""
        factor_x, factor_y = torch.linalg.cholesky(x), torch.linalg.cholesky(y)
        gap = factor_x - factor_y @ polar(factor_y.mT @ factor_x)
        return torch.linalg.vector_norm(gap, dim=(-2, -1), keepdim=keepdim)

    # -- geodesics ---------------------------------------------------------------------------
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """(I + S) x (I + S), S = S_x[u]; a geodesic while I + S is positive definite."""
        map_ = identity_like(x) + _lyapunov(x, u)
        return sym(map_ @ x @ map_)

    def geodesic_margin(self, x: Tensor, u: Tensor) -> Tensor:
        """The smallest eigenvalue of I + S_x[u], shape ``(...)``; positive inside the domain."""
        return 1 + torch.linalg.eigvalsh(_lyapunov(x, u))[..., 0]

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """(T - I) x + x (T - I), T the optimal transport map, without cancellation at y = x.

        With x = L L^T and Q^2 = L^T y L, D = Q - L^T L solves Q D + D L^T L = L^T (y - x) L and
        T - I = L^-T D L^-1.
        """
        factor = torch.linalg.cholesky(x)
        left, q, _ = torch.linalg.svd(factor.mT @ torch.linalg.cholesky(y))
        p, right = torch.linalg.eigh(factor.mT @ factor)
        gap = left.mT @ (factor.mT @ (y - x) @ factor) @ right
        difference = left @ (gap / (q.unsqueeze(-1) + p.unsqueeze(-2))) @ right.mT
        half = factor @ torch.linalg.solve_triangular(
            factor, sym(difference), upper=False, left=False
        )
        return half + half.mT

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The vector rescaled in the eigenbasis of x to I, and from there to y (isometric)."""
        w_x, basis_x = torch.linalg.eigh(x)
        w_y, basis_y = torch.linalg.eigh(y)
        turn = basis_y.mT @ basis_x
        flat = turn @ (basis_x.mT @ v @ basis_x / _pair_sums(w_x).sqrt()) @ turn.mT
        return sym(basis_y @ (flat * _pair_sums(w_y).sqrt()) @ basis_y.mT)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The exponential map."""
        return self.expmap(x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm."""
        return self.logmap(x, y)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The vector c L^T + L c^T from m x m normals c: the differential of L -> L L^T."""
        half = c @ torch.linalg.cholesky(x).mT
        return half + half.mT


def _pair_sums(w: Tensor) -> Tensor:
    """w_i + w_j, shape ``(..., m, m)``."""
    return w.unsqueeze(-1) + w.unsqueeze(-2)


def _lyapunov(x: Tensor, u: Tensor) -> Tensor:
    """The symmetric S with x S + S x = u."""
    w, basis = torch.linalg.eigh(x)
    return basis @ ((basis.mT @ u @ basis) / _pair_sums(w)) @ basis.mT

r"""Symmetric positive definite matrices: the set, two curved metrics and two flat ones.

Points are full symmetric m x m matrices, tangent vectors are symmetric m x m matrices,
dim = m(m+1)/2. A metric is a subclass of `SPDSet`; none inherits another's geometry.

Affine-invariant (Pennec, Fillard and Ayache: A Riemannian framework for tensor computing, IJCV
2006): everything goes through the Cholesky factor x = L L^T and the whitened matrices
S_u = L^{-1} u L^{-T}: one symmetric eigenproblem a map, no inverse and no square root of x.

Bures-Wasserstein, the optimal transport of centred Gaussians (Malagò, Montrucchio, Pistone:
Wasserstein Riemannian Geometry of Gaussian Densities, 2018; Bhatia, Jain, Lim: On the
Bures-Wasserstein Distance between Positive Definite Matrices, 2019): <u, v>_x = tr(S_x[u] v)/2
where S = S_x[u] solves x S + S x = u, so that <u, v>_I = tr(u v)/4 (Utpala et al. 2023 print it
without the 1/2). It is the quotient of |.|_F on factors by x = L L^T, which gives the tangent
Gaussian without an eigendecomposition.

The two flat metrics, log-Euclidean and log-Cholesky (Arsigny, Fillard, Pennec, Ayache: Geometric
Means in a Novel Vector Space Structure on SPD Matrices, 2007; Lin: Riemannian Geometry of SPD
Matrices via Cholesky Decomposition, 2019), are isometric to a vector space by a chart phi (matrix
logarithm; Cholesky factor with the logarithm of its diagonal), so geodesics are straight
lines in the chart, parallel transport is path independent and the Fréchet mean is phi^-1(mean phi),
in closed form. Log-Euclidean: x = V w V^T, d_ij = divided differences of log,
dphi_x(u) = V (d o V^T u V) V^T. Log-Cholesky: x = L L^T, W = L half(L^-1 u L^-T) is the velocity of
L, where half keeps the strictly lower part and half of the diagonal.

Symbols: L factor, S_u, S_y whitened u and y, E square root of S_y.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifed.manifolds.base import Manifold, largest_entry
from manifed.manifolds.linalg import (
    EXP,
    LOG,
    SQRT,
    congruence,
    divided_differences,
    expm,
    identity_like,
    polar,
    sym,
    sym_function,
    whiten,
)

_SMALLEST_EIGENVALUE = 1e-12
"""The least eigenvalue of a matrix that `projx` returns; in float32 eight units of rounding."""


class SPDSet(Manifold):
    """Symmetric positive definite matrices without a metric; points ``(..., m, m)``."""

    ndim = 2
    form = "(..., m, m)"

    def dim(self, shape: tuple[int, ...]) -> int:
        """m(m+1)/2 for points of shape ``(m, m)``."""
        return shape[-1] * (shape[-1] + 1) // 2

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether matrices are square."""
        return shape[-1] == shape[-2]

    def projx(self, x: Tensor) -> Tensor:
        """The nearest symmetric matrix with eigenvalues >= 1e-12 (clamped, not mirrored)."""
        smallest = max(_SMALLEST_EIGENVALUE, 8 * torch.finfo(x.dtype).eps)
        w, v = torch.linalg.eigh(sym(x))
        return sym((v * w.clamp_min(smallest).unsqueeze(-2)) @ v.mT)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The symmetric part of u."""
        made = sym(u)
        return made if x.shape == u.shape else made.expand(np.broadcast_shapes(x.shape, u.shape))

    def norm_slack(self, x: Tensor) -> Tensor:
        """4 m eps tr(x) tr(x^-1), at least the condition number of x times 4 m eps."""
        factor, inverse = _factor_norms(x)
        return 4 * x.shape[-1] * torch.finfo(x.dtype).eps * (factor * inverse).square()

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

    def of_normals(self, z: Tensor) -> Tensor:
        """The exponential of half the symmetric part of z, shape ``(..., m, m)``."""
        root = expm(sym(z) / 4)
        return root @ root.mT

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """The identity matrix."""
        return zeros + identity_like(zeros)


def _factor_norms(x: Tensor) -> tuple[Tensor, Tensor]:
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

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """L sym(c) L^T of m x m coordinates."""
        factor = torch.linalg.cholesky(x)
        return sym(factor @ c @ factor.mT)

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
        return x + u + half.mT @ half / 2

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """L ((2 S_y - I)^{1/2} - I) L^T, for eigenvalues of S_y of at least 1/2."""
        factor = torch.linalg.cholesky(x)
        return congruence(factor, 2 * whiten(factor, y) - identity_like(x), SQRT) - x

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """L exp(S_u) L^T."""
        factor = torch.linalg.cholesky(x)
        return congruence(factor, whiten(factor, u), EXP)

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


class SPDBuresWasserstein(SPDSet):
    """SPD matrices with <u, v>_x = tr(S_x[u] v)/2; points ``(..., m, m)``.

    ``transp`` matches the coordinates of ``x`` and ``y`` relative to the identity: a linear
    isometry, the identity at y = x, but not parallel transport (which has no closed form).

    The metric is not complete: ``expmap(x, u)`` is a geodesic only while the smallest eigenvalue of
    I + S_x[u] is positive. Noise of a privacy mechanism can leave that region: clip, or use the
    affine-invariant or log-Cholesky metric, which have no border.
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


# -- flat metrics ------------------------------------------------------------------------------
class _FlatSPD(SPDSet):
    """SPD matrices with the metric that a chart to a vector space makes flat."""

    looks_at_all_pairs = False

    @abstractmethod
    def chart(self, x: Tensor) -> Tensor:
        """phi(x), of the shape of x."""

    @abstractmethod
    def unchart(self, flat: Tensor) -> Tensor:
        """The matrix whose chart is ``flat``."""

    @abstractmethod
    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """dphi_x[u], the velocity of the chart, of the shape of x."""

    @abstractmethod
    def curved(self, x: Tensor, flat: Tensor) -> Tensor:
        """The tangent vector at x whose chart moves at ``flat``."""

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """tr(dphi_x[u]^T dphi_x[v]), shape ``(...)`` (or ``(..., 1, 1)`` with ``keepdim``)."""
        left = self.flattened(x, u)
        right = left if v is None else self.flattened(x, v)
        return (left * right).sum((-2, -1), keepdim=keepdim)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """|phi(x) - phi(y)|_F, shape ``(...)``."""
        gap = self.chart(x) - self.chart(y)
        return torch.linalg.vector_norm(gap, dim=(-2, -1), keepdim=keepdim)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """phi^-1(phi(x) + dphi_x[u])."""
        return self.unchart(self.chart(x) + self.flattened(x, u))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector at x whose chart moves at phi(y) - phi(x)."""
        return self.curved(x, self.chart(y) - self.chart(x))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The vector at y of the same velocity in the chart, parallel along every curve."""
        return self.curved(y, self.flattened(x, v))

    def frechet_mean(self, points: Tensor, weights: Tensor | None = None, **how: Any) -> Tensor:
        """phi^-1(sum_i w_i phi(p_i)), exact; how to iterate is not used."""
        charts = self.chart(points)
        if weights is None:
            return self.unchart(charts.mean(0))
        return self.unchart(torch.tensordot(weights / weights.sum(), charts, dims=1))


class SPDLogEuclidean(_FlatSPD):
    """SPD matrices with <u, v>_x = tr(dlog_x[u] dlog_x[v]); points ``(..., m, m)``."""

    name = "SPDLogEuclidean"

    def chart(self, x: Tensor) -> Tensor:
        """The matrix logarithm."""
        return sym_function(x, LOG)

    def unchart(self, flat: Tensor) -> Tensor:
        """The matrix exponential of a symmetric matrix."""
        return sym(sym_function(flat, EXP))

    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """dlog_x[u] = V (d o V^T u V) V^T."""
        d, basis = _log_derivative(x)
        return sym(basis @ (d * (basis.mT @ u @ basis)) @ basis.mT)

    def curved(self, x: Tensor, flat: Tensor) -> Tensor:
        """V ((V^T flat V) / d) V^T."""
        d, basis = _log_derivative(x)
        return sym(basis @ ((basis.mT @ flat @ basis) / d) @ basis.mT)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """V ((V^T sym(u) V) / d^2) V^T: the inverse of dlog_x is its own adjoint."""
        return self.curved(x, self.curved(x, sym(u)))

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """V (sym(c) / d) V^T from m x m normals c (the kernel of Utpala et al. is inverted)."""
        d, basis = _log_derivative(x)
        return basis @ (sym(c) / d) @ basis.mT


class SPDLogCholesky(_FlatSPD):
    """SPD matrices with the metric of (strict lower L, log diag L); points ``(..., m, m)``.

    Needs Cholesky factors and products only: no eigendecomposition anywhere.
    """

    name = "SPDLogCholesky"

    def chart(self, x: Tensor) -> Tensor:
        """The strict lower part of L plus the logarithm of its diagonal."""
        factor = torch.linalg.cholesky(x)
        return torch.tril(factor, -1) + torch.diag_embed(_diagonal(factor).log())

    def unchart(self, flat: Tensor) -> Tensor:
        """L L^T for the factor whose diagonal is the exponential of ``flat``'s."""
        factor = torch.tril(flat, -1) + torch.diag_embed(_diagonal(flat).exp())
        return factor @ factor.mT

    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """W = L half(L^-1 u L^-T), its diagonal over that of L."""
        factor = torch.linalg.cholesky(x)
        white = whiten(factor, u)
        velocity = factor @ (torch.tril(white, -1) + torch.diag_embed(_diagonal(white) / 2))
        return _scale_diagonal(velocity, 1 / _diagonal(factor))

    def curved(self, x: Tensor, flat: Tensor) -> Tensor:
        """W L^T + L W^T, exactly symmetric, for W = ``flat`` with its diagonal times L's."""
        factor = torch.linalg.cholesky(x)
        half = _scale_diagonal(flat, _diagonal(factor)) @ factor.mT
        return half + half.mT

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector of velocity 2 tril(sym(u) L), its diagonal times L_ii."""
        factor = torch.linalg.cholesky(x)
        return self.curved(x, 2 * _scale_diagonal(torch.tril(sym(u) @ factor), _diagonal(factor)))

    def norm_slack(self, x: Tensor) -> Tensor:
        """4 m eps tr(x) tr(x^-1) max(1, |L|) max(1, |L^-1|): the chart is not scale invariant."""
        factor, inverse = _factor_norms(x)
        return super().norm_slack(x) * factor.clamp_min(1.0) * inverse.clamp_min(1.0)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The vector of velocity tril(c); the strict upper part of c is not used."""
        return self.curved(x, torch.tril(c))


def _log_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    """(d, V): dlog_x[u] = V (d o V^T u V) V^T."""
    w, basis = torch.linalg.eigh(x)
    return divided_differences(w, LOG), basis


def _diagonal(a: Tensor) -> Tensor:
    return a.diagonal(dim1=-2, dim2=-1)


def _scale_diagonal(a: Tensor, scale: Tensor) -> Tensor:
    """``a`` with its diagonal multiplied by ``scale`` (..., m)."""
    return torch.tril(a, -1) + torch.diag_embed(_diagonal(a) * scale)

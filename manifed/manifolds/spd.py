r"""Symmetric positive definite matrices: the set, a curved metric and a flat one.

Points are full symmetric m x m matrices, tangent vectors are symmetric m x m matrices,
dim = m(m+1)/2. A metric is a subclass of `SPDSet`; none inherits another's geometry. Two more
are `manifed_extras.log_cholesky` and `reproduction.bures_wasserstein`.

Affine-invariant (Pennec, Fillard and Ayache: A Riemannian framework for tensor computing, IJCV
2006): everything goes through the Cholesky factor x = L L^T and the whitened matrices
S_u = L^{-1} u L^{-T}: one symmetric eigenproblem a map, no inverse and no square root of x.

Log-Euclidean (Arsigny, Fillard, Pennec, Ayache: Geometric Means in a Novel Vector Space Structure
on SPD Matrices, 2007) is isometric to a vector space by the matrix logarithm, so geodesics are
straight lines there, parallel transport is path independent and the Fréchet mean is
exp(mean log x), in closed form. x = V w V^T, d_ij = divided differences of log,
dlog_x(u) = V (d o V^T u V) V^T.

Symbols: L factor, S_u, S_y whitened u and y, E square root of S_y.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, linalg

from manifed.manifolds.base import Manifold, largest_entry
from manifed.manifolds.linalg import (
    EXP,
    LOG,
    SQRT,
    Shape,
    congruence,
    expm,
    identity_like,
    packed_size,
    sandwich,
    spectral,
    sym,
    sym_function,
    whiten,
)


class SPDSet(Manifold):
    """Symmetric positive definite matrices without a metric; points ``(..., m, m)``."""

    ndim = 2
    form = "(..., m, m)"

    def dim(self, shape: Shape) -> int:
        """m(m+1)/2 for points of shape ``(m, m)``."""
        return packed_size(shape[-1])

    def fits(self, shape: Shape) -> bool:
        """Whether matrices are square."""
        return shape[-1] == shape[-2]

    def projx(self, x: Tensor) -> Tensor:
        """The nearest symmetric matrix with eigenvalues >= 1e-12 (clamped, not mirrored).

        In float32 eight units of rounding are the least.
        """
        smallest = max(1e-12, 8 * torch.finfo(x.dtype).eps)
        w, v = linalg.eigh(sym(x))
        return sym(spectral(v, w.clamp_min(smallest)))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The symmetric part of u."""
        return sym(u).expand(np.broadcast_shapes(x.shape, u.shape))

    def norm_slack(self, x: Tensor) -> Tensor:
        """4 m eps tr(x) tr(x^-1), at least the condition number of x times 4 m eps."""
        factor = linalg.cholesky(x)
        eye = identity_like(x).expand_as(factor)
        inverse = linalg.solve_triangular(factor, eye, upper=False)
        spread = linalg.matrix_norm(factor) * linalg.matrix_norm(inverse)
        return 4 * x.shape[-1] * torch.finfo(x.dtype).eps * spread.square()

    def _off_manifold(self, x: Tensor) -> Tensor:
        """The relative asymmetry; infinite where there is no Cholesky factor."""
        largest = largest_entry(x, 2)
        unit = x / self.expand_scalar(torch.where(largest > 0, largest, 1.0))
        asymmetry = linalg.matrix_norm(unit - unit.mT) / 2
        is_definite = linalg.cholesky_ex(unit).info == 0
        return torch.where(is_definite, asymmetry / linalg.matrix_norm(unit), torch.inf)

    def _normal_part(self, x: Tensor, u: Tensor) -> Tensor:
        """The skew part."""
        normal = linalg.matrix_norm(u - u.mT) / 2
        return normal.expand(np.broadcast_shapes(x.shape, u.shape)[:-2])

    def of_normals(self, z: Tensor) -> Tensor:
        """The exponential of half the symmetric part of z, shape ``(..., m, m)``."""
        root = expm(sym(z) / 4)
        return root @ root.mT

    def of_zeros(self, zeros: Tensor) -> Tensor:
        """The identity matrix."""
        return zeros + identity_like(zeros)


class SPD(SPDSet):
    """SPD matrices with <u, v>_x = tr(x^{-1} u x^{-1} v); curvature in [-1/2, 0].

    Complete and without cut locus: every map is defined everywhere. All methods raise
    ``torch.linalg.LinAlgError`` where x is not positive definite.
    """

    name = "SPD"
    looks_at_all_pairs = False

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """L sym(c) L^T of m x m coordinates."""
        factor = linalg.cholesky(x)
        return sym(sandwich(factor, c))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The gradient x sym(g) x = sym(x g x)."""
        return sym(x @ u @ x)

    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """The whitened S_u."""
        return whiten(linalg.cholesky(x), u)

    to_coords = flattened

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """The Frobenius norm of S_u, shape (...,)."""
        return linalg.matrix_norm(self.flattened(x, u), keepdim=keepdim)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The point x + u + u x^{-1} u / 2 = L (I + S + S^2 / 2) L^T, of second order, definite."""
        half = linalg.solve_triangular(linalg.cholesky(x), u, upper=False)
        return x + u + half.mT @ half / 2

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """L ((2 S_y - I)^{1/2} - I) L^T, for eigenvalues of S_y of at least 1/2."""
        factor = linalg.cholesky(x)
        return congruence(factor, 2 * whiten(factor, y) - identity_like(x), SQRT) - x

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """L exp(S_u) L^T."""
        factor = linalg.cholesky(x)
        return congruence(factor, whiten(factor, u), EXP)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """L log(S_y) L^T."""
        factor = linalg.cholesky(x)
        return congruence(factor, whiten(factor, y), LOG)

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """|log eigenvalues of S_y|."""
        ratios = linalg.eigvalsh(self.flattened(x, y))
        return self.expand_scalar(linalg.vector_norm(ratios.log(), dim=-1))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport L E S_v E L^T; stays whitened, so conditioning enters once."""
        factor = linalg.cholesky(x)
        root = factor @ sym_function(whiten(factor, y), SQRT)
        return sym(sandwich(root, whiten(factor, v)))


class SPDLogEuclidean(SPDSet):
    """SPD matrices with <u, v>_x = tr(dlog_x[u] dlog_x[v]); points ``(..., m, m)``."""

    name = "SPDLogEuclidean"
    looks_at_all_pairs = False

    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """dlog_x[u] = V (d o V^T u V) V^T."""
        d, basis = _log_derivative(x)
        return sym(sandwich(basis, d * sandwich(basis.mT, u)))

    def _curved(self, x: Tensor, flat: Tensor) -> Tensor:
        """The vector u with dlog_x[u] = ``flat``: V ((V^T flat V) / d) V^T."""
        d, basis = _log_derivative(x)
        return sym(sandwich(basis, sandwich(basis.mT, flat) / d))

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """|log x - log y|_F."""
        return linalg.matrix_norm(_log(x) - _log(y), keepdim=True)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """exp(log x + dlog_x[u])."""
        return sym(sym_function(_log(x) + self.flattened(x, u), EXP))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector at x whose logarithm moves at log y - log x."""
        return self._curved(x, _log(y) - _log(x))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The vector at y whose logarithm moves as fast, parallel along every curve."""
        return self._curved(y, self.flattened(x, v))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """V ((V^T sym(u) V) / d^2) V^T: the inverse of dlog_x is its own adjoint."""
        return self._curved(x, self._curved(x, sym(u)))

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """V (sym(c) / d) V^T from m x m normals c (the kernel of Utpala et al. is inverted)."""
        d, basis = _log_derivative(x)
        return sandwich(basis, sym(c) / d)

    def to_coords(self, x: Tensor, u: Tensor) -> Tensor:
        """D o V^T u V."""
        d, basis = _log_derivative(x)
        return d * sandwich(basis.mT, u)

    def frechet_mean(self, points: Tensor, weights: Tensor | None = None, **how: Any) -> Tensor:
        """exp(sum_i w_i log p_i), exact; how to iterate is not used."""
        logs = _log(points)
        if weights is None:
            mean = logs.mean(0)
        else:
            mean = torch.tensordot(weights / weights.sum(), logs, 1)
        return sym(sym_function(mean, EXP))


def _log(x: Tensor) -> Tensor:
    return sym_function(x, LOG)


def _log_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    """(d, V): dlog_x[u] = V (d o V^T u V) V^T."""
    w, basis = linalg.eigh(x)
    return LOG.divided_difference(w.unsqueeze(-1), w.unsqueeze(-2)), basis

r"""The Bures-Wasserstein metric on symmetric positive definite matrices, a geometry of DP-RSVRG.

The optimal transport of centred Gaussians (Malagò, Montrucchio, Pistone:
Wasserstein Riemannian Geometry of Gaussian Densities, 2018; Bhatia, Jain, Lim: On the
Bures-Wasserstein Distance between Positive Definite Matrices, 2019): <u, v>_x = tr(S_x[u] v)/2
where S = S_x[u] solves x S + S x = u, so that <u, v>_I = tr(u v)/4 (Utpala et al. 2023 print it
without the 1/2). It is the quotient of |.|_F on factors by x = L L^T, which gives the tangent
Gaussian without an eigendecomposition.
"""

import torch
from torch import Tensor

from manifed.manifolds.linalg import identity_like, polar, sym
from manifed.manifolds.spd import SPDSet


class SPDBuresWasserstein(SPDSet):
    """SPD matrices with <u, v>_x = tr(S_x[u] v)/2; points ``(..., m, m)``.

    ``transp`` matches the coordinates of ``x`` and ``y`` relative to the identity: a linear
    isometry, the identity at y = x, but not parallel transport (which has no closed form).

    The metric is not complete: ``expmap(x, u)`` is a geodesic only while the smallest eigenvalue of
    I + S_x[u] is positive. Noise of a privacy mechanism can leave that region: clip, or use the
    affine-invariant or the log-Cholesky metric, which have no border.
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

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """|Lx - Ly O|_F with O the polar factor of Ly^T Lx."""
        factor_x = torch.linalg.cholesky(x)
        factor_y = torch.linalg.cholesky(y)
        gap = factor_x - factor_y @ polar(factor_y.mT @ factor_x)
        return torch.linalg.matrix_norm(gap, keepdim=True)

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

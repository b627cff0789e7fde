"""Symmetric positive definite matrices with the affine-invariant metric.

Pennec, Fillard and Ayache: A Riemannian framework for tensor computing (IJCV 2006). Everything
goes through the Cholesky factor x = L L^T and the whitened matrices S_u = L^{-1} u L^{-T}: one
symmetric eigenproblem a map, no inverse and no square root of x.

Symbols: L factor, S_u, S_y whitened u and y, E square root of S_y.
"""

import torch
from torch import Tensor

from manifed.manifolds.linalg import (
    DEGREE_18_RADIUS,
    EXP,
    LOG,
    SQRT,
    congruence,
    expm,
    identity_like,
    sym,
    sym_function,
    whiten,
)
from manifed.manifolds.spd_set import SPDSet

SHORT_STEP = 2 * DEGREE_18_RADIUS
"""1-norm of S_u up to which exp(S_u / 2) is one polynomial, without squaring."""
MANY_ENTRIES = 2500
"""Entries of a stack from which matrix products beat an eigendecomposition."""


class SPD(SPDSet):
    """Affine-invariant metric <u, v>_x = tr(x^{-1} u x^{-1} v); curvature in [-1/2, 0].

    Complete and without cut locus: every map is defined everywhere. All methods raise
    ``torch.linalg.LinAlgError`` where x is not positive definite.
    """

    name = "SPD"
    reversible = False

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """L sym(c) L^T of m x m coordinates."""
        factor = torch.linalg.cholesky(x)
        return sym(factor @ c @ factor.mT)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The symmetric part of u."""
        return sym(u) if x.shape == u.shape else super().proju(x, u)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The gradient x sym(g) x."""
        return sym(x @ sym(u) @ x)

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
        return x + u + half.mT @ half * 0.5

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

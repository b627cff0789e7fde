r"""The log-Cholesky metric on symmetric positive definite matrices, which a chart makes flat.

Lin: Riemannian Geometry of SPD Matrices via Cholesky Decomposition (2019). It is
isometric to a vector space by a chart phi, the Cholesky factor with the logarithm of its diagonal,
so geodesics are straight lines in the chart, parallel transport is path independent and the Fréchet
mean is phi^-1(mean phi), in closed form. x = L L^T, W = L half(L^-1 u L^-T) is the velocity of
L, where half keeps the strictly lower part and half of the diagonal.
"""

from typing import Any

import torch
from torch import Tensor

from manifed.manifolds.linalg import sym, whiten
from manifed.manifolds.spd import SPDSet


class SPDLogCholesky(SPDSet):
    """SPD matrices with the metric of (strict lower L, log diag L); points ``(..., m, m)``.

    Needs Cholesky factors and products only: no eigendecomposition anywhere.
    """

    name = "SPDLogCholesky"
    looks_at_all_pairs = False

    def _chart(self, x: Tensor) -> Tensor:
        """The strict lower part of L plus the logarithm of its diagonal."""
        factor = torch.linalg.cholesky(x)
        return torch.tril(factor, -1) + torch.diag_embed(_diagonal(factor).log())

    def _unchart(self, flat: Tensor) -> Tensor:
        """L L^T for the factor whose diagonal is the exponential of ``flat``'s."""
        factor = torch.tril(flat, -1) + torch.diag_embed(_diagonal(flat).exp())
        return factor @ factor.mT

    def flattened(self, x: Tensor, u: Tensor) -> Tensor:
        """W = L half(L^-1 u L^-T), its diagonal over that of L."""
        factor = torch.linalg.cholesky(x)
        white = whiten(factor, u)
        velocity = factor @ (torch.tril(white, -1) + torch.diag_embed(_diagonal(white) / 2))
        return _scale_diagonal(velocity, 1 / _diagonal(factor))

    def _curved(self, x: Tensor, flat: Tensor) -> Tensor:
        """W L^T + L W^T, exactly symmetric, for W = ``flat`` with its diagonal times L's."""
        factor = torch.linalg.cholesky(x)
        half = _scale_diagonal(flat, _diagonal(factor)) @ factor.mT
        return half + half.mT

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector of velocity 2 tril(sym(u) L), its diagonal times L_ii."""
        factor = torch.linalg.cholesky(x)
        return self._curved(x, 2 * _scale_diagonal(torch.tril(sym(u) @ factor), _diagonal(factor)))

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        """|phi(x) - phi(y)|_F."""
        return torch.linalg.matrix_norm(self._chart(x) - self._chart(y), keepdim=True)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """phi^-1(phi(x) + dphi_x[u])."""
        return self._unchart(self._chart(x) + self.flattened(x, u))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The vector at x whose chart moves at phi(y) - phi(x)."""
        return self._curved(x, self._chart(y) - self._chart(x))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The vector at y of the same velocity in the chart, parallel along every curve."""
        return self._curved(y, self.flattened(x, v))

    def frechet_mean(self, points: Tensor, weights: Tensor | None = None, **how: Any) -> Tensor:
        """phi^-1(sum_i w_i phi(p_i)), exact; how to iterate is not used."""
        charts = self._chart(points)
        if weights is None:
            return self._unchart(charts.mean(0))
        return self._unchart(torch.tensordot(weights / weights.sum(), charts, dims=1))

    def norm_slack(self, x: Tensor) -> Tensor:
        """4 m eps tr(x) tr(x^-1) max(1, |L|) max(1, |L^-1|): the chart is not scale invariant."""
        factor = torch.linalg.matrix_norm(torch.linalg.cholesky(x))
        inverse = torch.linalg.matrix_norm(torch.linalg.inv(torch.linalg.cholesky(x)))
        return super().norm_slack(x) * factor.clamp_min(1.0) * inverse.clamp_min(1.0)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The vector of velocity tril(c); the strict upper part of c is not used."""
        return self._curved(x, torch.tril(c))


def _diagonal(a: Tensor) -> Tensor:
    return a.diagonal(dim1=-2, dim2=-1)


def _scale_diagonal(a: Tensor, scale: Tensor) -> Tensor:
    """``a`` with its diagonal multiplied by ``scale`` (..., m)."""
    return torch.tril(a, -1) + torch.diag_embed(_diagonal(a) * scale)

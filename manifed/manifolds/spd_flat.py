r"""The two flat metrics on SPD matrices: log-Euclidean and log-Cholesky.

Arsigny, Fillard, Pennec, Ayache: Geometric Means in a Novel Vector Space Structure on SPD
Matrices (2007); Lin: Riemannian Geometry of SPD Matrices via Cholesky Decomposition (2019).
Both are isometric to a vector space by a chart phi (matrix logarithm; Cholesky factor with the
logarithm of its diagonal), so exp, log and distance are straight lines in the chart, parallel
transport is path independent and the Fréchet mean is phi^-1(mean phi), in closed form.

Log-Euclidean: x = V w V^T, d_ij = divided differences of log, dphi_x(u) = V (d o V^T u V) V^T.
Log-Cholesky: x = L L^T, W = L half(L^-1 u L^-T) is the velocity of L, where half keeps the
strictly lower part and half of the diagonal.
"""

import torch
from torch import Tensor

from manifed.manifolds.linalg import EXP, LOG, divided_differences, sym, sym_function, whiten
from manifed.manifolds.spd import SPDSet, factor_norms


class SPDLogEuclidean(SPDSet):
    """SPD matrices with <u, v>_x = tr(dlog_x[u] dlog_x[v]); points ``(..., m, m)``."""

    name = "SPDLogEuclidean"
    looks_at_all_pairs = False

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """tr(dlog_x[u] dlog_x[v]), shape ``(...)`` (or ``(..., 1, 1)`` with ``keepdim``)."""
        d, basis = _log_derivative(x)
        left = d * (basis.mT @ u @ basis)
        right = left if v is None else d * (basis.mT @ v @ basis)
        return (left * right).sum((-2, -1), keepdim=keepdim)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """V ((V^T sym(u) V) / d^2) V^T."""
        d, basis = _log_derivative(x)
        return basis @ ((basis.mT @ sym(u) @ basis) / d.square()) @ basis.mT

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """|log x - log y|_F, shape ``(...)``."""
        gap = sym_function(x, LOG) - sym_function(y, LOG)
        return torch.linalg.vector_norm(gap, dim=(-2, -1), keepdim=keepdim)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """exp(log x + dlog_x[u])."""
        w, basis = torch.linalg.eigh(x)
        step = divided_differences(w, LOG) * (basis.mT @ u @ basis)
        moved = sym_function(torch.diag_embed(w.log()) + sym(step), EXP)
        return sym(basis @ moved @ basis.mT)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """dexp_{log x}[log y - log x]."""
        w, basis = torch.linalg.eigh(x)
        gap = basis.mT @ sym_function(y, LOG) @ basis - torch.diag_embed(w.log())
        return sym(basis @ (gap / divided_differences(w, LOG)) @ basis.mT)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """dexp_{log y}[dlog_x[v]], parallel along every curve."""
        d_x, basis_x = _log_derivative(x)
        d_y, basis_y = _log_derivative(y)
        turn = basis_y.mT @ basis_x
        flat = turn @ (d_x * (basis_x.mT @ v @ basis_x)) @ turn.mT
        return sym(basis_y @ (flat / d_y) @ basis_y.mT)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The exponential map."""
        return self.expmap(x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm."""
        return self.logmap(x, y)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """V (sym(c) / d) V^T from m x m normals c (the kernel of Utpala et al. is inverted)."""
        d, basis = _log_derivative(x)
        return basis @ (sym(c) / d) @ basis.mT

    def frechet_mean(
        self,
        points: Tensor,
        weights: Tensor | None = None,
        *,
        max_iterations: int = 100,
        tolerance: float = 1e-12,
    ) -> Tensor:
        """exp(sum_i w_i log p_i), exact; the iteration arguments are not used."""
        return sym_function(_weighted_mean(sym_function(points, LOG), weights), EXP)


class SPDLogCholesky(SPDSet):
    """SPD matrices with the metric of (strict lower L, log diag L); points ``(..., m, m)``.

    Needs Cholesky factors and products only: no eigendecomposition anywhere.
    """

    name = "SPDLogCholesky"
    looks_at_all_pairs = False

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """sum_{i>j} W_ij Z_ij + sum_i W_ii Z_ii / L_ii^2 for the velocities W, Z of L."""
        factor = torch.linalg.cholesky(x)
        left = _flat_velocity(factor, u)
        right = left if v is None else _flat_velocity(factor, v)
        return (left * right).sum((-2, -1), keepdim=keepdim)

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The gradient of velocity 2 tril(sym(u) L), its diagonal times L_ii^2."""
        factor = torch.linalg.cholesky(x)
        flat = 2 * _scale_diagonal(torch.tril(sym(u) @ factor), _diagonal(factor))
        return _push(factor, _scale_diagonal(flat, _diagonal(factor)))

    def norm_slack(self, x: Tensor) -> Tensor:
        """4 m eps tr(x) tr(x^-1) max(1, |L|) max(1, |L^-1|): the chart is not scale invariant."""
        factor, inverse = factor_norms(x)
        return super().norm_slack(x) * factor.clamp_min(1.0) * inverse.clamp_min(1.0)

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """The Frobenius distance of the charts, shape ``(...)``."""
        gap = _chart(torch.linalg.cholesky(x)) - _chart(torch.linalg.cholesky(y))
        return torch.linalg.vector_norm(gap, dim=(-2, -1), keepdim=keepdim)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """L' L'^T with chart(L') = chart(L) + flat velocity."""
        factor = torch.linalg.cholesky(x)
        return _product(_unchart(_chart(factor) + _flat_velocity(factor, u)))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """The tangent vector at x whose flat velocity is chart(y) - chart(x)."""
        factor = torch.linalg.cholesky(x)
        gap = _chart(torch.linalg.cholesky(y)) - _chart(factor)
        return _push(factor, _scale_diagonal(gap, _diagonal(factor)))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """The same flat velocity at y, parallel along every curve."""
        flat = _flat_velocity(torch.linalg.cholesky(x), v)
        factor = torch.linalg.cholesky(y)
        return _push(factor, _scale_diagonal(flat, _diagonal(factor)))

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """The exponential map."""
        return self.expmap(x, u)

    def invretr(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm."""
        return self.logmap(x, y)

    def from_coords(self, x: Tensor, c: Tensor) -> Tensor:
        """The vector of flat velocity tril(c); the strict upper part of c is not used."""
        factor = torch.linalg.cholesky(x)
        return _push(factor, _scale_diagonal(torch.tril(c), _diagonal(factor)))

    def frechet_mean(
        self,
        points: Tensor,
        weights: Tensor | None = None,
        *,
        max_iterations: int = 100,
        tolerance: float = 1e-12,
    ) -> Tensor:
        """chart^-1(sum_i w_i chart(p_i)), exact; the iteration arguments are not used."""
        charts = _chart(torch.linalg.cholesky(points))
        return _product(_unchart(_weighted_mean(charts, weights)))


def _weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """sum_i w_i values_i / sum_i w_i over the first dimension."""
    if weights is None:
        return values.mean(0)
    return torch.tensordot(weights / weights.sum(), values, dims=1)


def _log_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    """(d, V): dlog_x[u] = V (d o V^T u V) V^T."""
    w, basis = torch.linalg.eigh(x)
    return divided_differences(w, LOG), basis


def _diagonal(a: Tensor) -> Tensor:
    return a.diagonal(dim1=-2, dim2=-1)


def _scale_diagonal(a: Tensor, scale: Tensor) -> Tensor:
    """``a`` with its diagonal multiplied by ``scale`` (..., m)."""
    scaled = a * 1.0
    _diagonal(scaled).mul_(scale)
    return scaled


def _chart(factor: Tensor) -> Tensor:
    """The strict lower part of L plus the logarithm of its diagonal."""
    return torch.tril(factor, -1) + torch.diag_embed(_diagonal(factor).log())


def _unchart(flat: Tensor) -> Tensor:
    return torch.tril(flat, -1) + torch.diag_embed(_diagonal(flat).exp())


def _flat_velocity(factor: Tensor, u: Tensor) -> Tensor:
    """The velocity of chart(L) under the velocity u of x = L L^T."""
    white = whiten(factor, u)
    velocity = factor @ (torch.tril(white, -1) + torch.diag_embed(_diagonal(white) / 2))
    return _scale_diagonal(velocity, 1 / _diagonal(factor))


def _push(factor: Tensor, velocity: Tensor) -> Tensor:
    """W L^T + L W^T, exactly symmetric."""
    half = velocity @ factor.mT
    return half + half.mT


def _product(factor: Tensor) -> Tensor:
    return factor @ factor.mT

r"""The Fréchet mean on SPD matrices, with what all examples share computed once.

The problem is ``FrechetMean(SPD())``, PriRFed (6.2); the values are the same to rounding. With
x = L L^T and whitened examples S_j = L^{-1} z_j L^{-T} = V_j diag(lambda_j) V_j^T,

    sum_j w_j log_x z_j = L (sum_j w_j V_j diag(log lambda_j) V_j^T) L^T,

so a weighted sum is one matrix product over all eigenvectors and one congruence, and |grad f_j| =
2 |log lambda_j| comes from the same eigenproblems.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.manifolds.linalg import quotient, sym
from manifed.manifolds.spd import SPD
from manifed.problems.base import Examples
from manifed.problems.finite_sum import Optimum, Shards, pool
from manifed.problems.frechet_mean import FrechetMean

_ENTRIES = 2**22
"""Of the matrices whose eigenvectors are held at once."""
_MOST = 64
"""Iterates of the mean at most; about seven reach rounding."""


class SPDMean(FrechetMean):
    """f_j(x) = dist(x, z_j)^2, affine-invariant; examples ``z`` of shape (..., n, m, m)."""

    def __init__(self) -> None:
        super().__init__(SPD(), min_curvature=-0.5)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """dist(x, z_j)^2, shape ``(..., n)``."""  # (6.2)
        return self._log_ratios(x, examples).square().sum(-1)

    def gradients(self, x: Tensor, examples: Examples) -> "Eigenlogs":
        """-2 log_x z_j from one set of eigenproblems."""
        factor = torch.linalg.cholesky(x)
        values, vectors = torch.linalg.eigh(_whitened(factor, examples["z"]))
        slack = torch.as_tensor(self.manifold.norm_slack(x)).unsqueeze(-1)
        return Eigenlogs(factor, values.log(), vectors, slack)

    def optimum(
        self, shards: Shards, weights: Tensor | None = None, tolerance: float = 1e-12
    ) -> Optimum:
        """The weighted Fréchet mean, to |grad f| <= ``tolerance`` (1 + f) or where rounding ends.

        x <- B exp(theta J) B^T from x = B B^T, J the mean of log(B^-1 z_j B^-T): one eigenproblem
        of each example an iterate, for value, gradient and step. B exp(theta J / 2) is the next
        B, in whose frame parallel transport is the identity: Barzilai-Borwein steps cost nothing.
        They are kept between the inverses of what bounds the Hessian (`_hessian_bound`). Where f
        grows the step is halved.
        """
        examples, each = pool(shards, weights)
        z = examples["z"]
        factor = torch.linalg.cholesky(_between_means(z, each))
        logs, mean = self._iterate(factor, z, each)
        value, step = _value(logs, each), 2 / (1 + _hessian_bound(logs, each))
        for _ in range(_MOST):
            size = 2 * float(torch.linalg.matrix_norm(mean))
            if size <= tolerance * (1.0 + value):
                break
            w, v = torch.linalg.eigh(mean)
            moved = factor @ ((v * (0.5 * step * w).exp().unsqueeze(-2)) @ v.mT)
            logs, after = self._iterate(moved, z, each)
            reached = _value(logs, each)
            if reached >= value and float(torch.linalg.matrix_norm(after)) * 2 >= size:
                if step < 2**-10 or size <= 1e3 * tolerance * (1.0 + value):
                    break  # rounding
                step /= 2
                continue
            least = 1 / _hessian_bound(logs, each)
            curvature = float((mean * (mean - after)).sum())
            step *= float(mean.square().sum()) / curvature if curvature > 0 else 0.0
            step = min(1.0, max(least, step))
            factor, mean, value = moved, after, reached
        return Optimum(sym(factor @ factor.mT), value, 2 * float(torch.linalg.matrix_norm(mean)))

    def _iterate(self, factor: Tensor, z: Tensor, each: Tensor) -> tuple[Tensor, Tensor]:
        """Logs of the eigenvalues of B^-1 z_j B^-T (n, m), and their weighted mean logarithm."""
        inverse, rows = torch.linalg.inv(factor).mT, max(1, _ENTRIES // factor.numel())
        mean, found = torch.zeros_like(factor), []
        for part, share in zip(z.split(rows), each.split(rows), strict=True):
            values, vectors = torch.linalg.eigh(_congruent(inverse, part))
            found.append(values.log())
            mean += _mean_log(vectors, share.unsqueeze(-1) * found[-1])
        return torch.cat(found), mean

    def _log_ratios(self, x: Tensor, examples: Examples) -> Tensor:
        whitened = _whitened(torch.linalg.cholesky(x), examples["z"])
        return torch.linalg.eigvalsh(whitened).log()


@dataclass(frozen=True)
class Eigenlogs:
    """-2 L V_j diag(log lambda_j) V_j^T L^T; ``slack`` is what rounding adds to norms at x."""

    factor: Tensor
    logs: Tensor
    vectors: Tensor
    slack: Tensor

    @property
    def norms(self) -> Tensor:
        """2 |log lambda_j| and what rounding adds in the metric at x, shape ``(..., n)``."""
        return 2 * torch.linalg.vector_norm(self.logs, dim=-1) * (1.0 + self.slack)

    def sum(self, weights: Tensor) -> Tensor:
        """-2 sum_j weights_j log_x z_j, shape ``(..., m, m)``."""
        mean = _mean_log(self.vectors, weights.unsqueeze(-1) * self.logs)
        total = -2 * torch.matmul(torch.matmul(self.factor, mean), self.factor.mT)
        return 0.5 * (total + total.mT)


def _mean_log(vectors: Tensor, spectrum: Tensor) -> Tensor:
    """sum_j V_j diag(spectrum_j) V_j^T, shape ``(..., m, m)``, as one product."""
    *lead, n, m, _ = vectors.shape
    stacked = vectors.transpose(-3, -2).reshape(*lead, m, n * m)
    return torch.matmul(stacked * spectrum.reshape(*lead, 1, n * m), stacked.mT)


def _whitened(factor: Tensor, z: Tensor) -> Tensor:
    """L^{-1} z_j L^{-T}, shape ``(..., n, m, m)``."""
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    return _congruent(
        torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False).mT, z
    )


def _congruent(inverse: Tensor, z: Tensor) -> Tensor:
    """C^T z_j C for C = ``inverse``, by two products over all examples at once.

    z_j is symmetric, so (z_j C)^T = C^T z_j and both products act from the right.
    """
    n, m = z.shape[-3], z.shape[-1]
    half = torch.matmul(z.reshape(*z.shape[:-3], n * m, m), inverse)
    lead = half.shape[:-2]
    turned = half.reshape(*lead, n, m, m).mT.reshape(*lead, n * m, m)
    return torch.matmul(turned, inverse).reshape(*lead, n, m, m)


# -- the mean of all ------------------------------------------------------------------------------
def _between_means(z: Tensor, each: Tensor) -> Tensor:
    """The geometric mean of the arithmetic and the harmonic mean: a start, (m, m)."""
    share = each / each.sum()
    arithmetic = sym(torch.tensordot(share, z, dims=1))
    inverses = torch.cholesky_inverse(torch.linalg.cholesky(z))
    harmonic = sym(torch.linalg.inv(sym(torch.tensordot(share, inverses, dims=1))))
    return SPD().expmap(harmonic, 0.5 * SPD().logmap(harmonic, arithmetic))


def _value(logs: Tensor, each: Tensor) -> float:
    """sum_j w_j dist(x, z_j)^2."""
    return float((each * logs.square().sum(-1)).sum())


def _hessian_bound(logs: Tensor, each: Tensor) -> float:
    """The largest eigenvalue that sum_j w_j dist^2 / 2 can have; the least is 1.

    That of one term is (r / 2) coth(r / 2), with r the logarithm of the condition number of
    x^-1 z_j (Bini and Iannazzo, Linear Algebra Appl. 438 (2013), section 4).
    """
    half = 0.5 * (logs[..., -1] - logs[..., 0])
    return float((each * half.cosh() / quotient(torch.sinh, half)).sum() / each.sum())

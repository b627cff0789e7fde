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

from manifed.manifolds.spd import SPD
from manifed.problems.base import Examples
from manifed.problems.frechet_mean import FrechetMean


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
        spectrum = weights.unsqueeze(-1) * self.logs
        *lead, n, m, _ = self.vectors.shape
        stacked = self.vectors.transpose(-3, -2).reshape(*lead, m, n * m)
        mean = torch.matmul(stacked * spectrum.reshape(*lead, 1, n * m), stacked.mT)
        total = -2 * torch.matmul(torch.matmul(self.factor, mean), self.factor.mT)
        return 0.5 * (total + total.mT)


def _whitened(factor: Tensor, z: Tensor) -> Tensor:
    """L^{-1} z_j L^{-T}, shape ``(..., n, m, m)``, by two products over all examples at once.

    z_j is symmetric, so (z_j L^{-T})^T = L^{-1} z_j and both products act from the right.
    """
    n, m = z.shape[-3], z.shape[-1]
    eye = torch.eye(m, dtype=z.dtype, device=z.device)
    inverse = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False).mT
    half = torch.matmul(z.reshape(*z.shape[:-3], n * m, m), inverse)
    lead = half.shape[:-2]
    turned = half.reshape(*lead, n, m, m).mT.reshape(*lead, n * m, m)
    return torch.matmul(turned, inverse).reshape(*lead, n, m, m)

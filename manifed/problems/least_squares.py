"""Least squares: f_j(x) = 1/2 (a_j^T x - b_j)^2 + ridge/2 |x|^2 on R^d.

DECOR's synthetic task (Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui 2024, section 6) is its
instance with A_i = (i / sqrt n) I and a sum over the d rows of client i; ``sum_scaling`` turns the
mean over examples into that sum.
"""

import math

import torch
from torch import Tensor

from manifed.problems.base import Examples, Problem
from manifed.problems.finite_sum import Constant, Optimum, Shards, pool
from manifed.problems.linear import row_products, squared_norms
from manifed.problems.linear_model import LinearModel
from manifed.problems.second_moments import GramMatrices


class LeastSquares(LinearModel):
    """Examples ``feature`` (..., n, d) and ``target`` (..., n)."""

    keeps_rows_apart = True

    @property
    def sufficient_statistic(self) -> Problem:
        """The second moment of rows with their targets."""
        return GramMatrices()

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """1/2 (a_j^T x - b_j)^2 + ridge/2 |x|^2, shape ``(..., n)``."""
        penalty = 0.5 * self.ridge * x.square().sum(-1, keepdim=True)
        return 0.5 * self.slopes(x, examples).square() + penalty

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """The minimiser (of least norm where it is not unique), by lstsq."""
        examples, each = pool(shards, weights)
        root = each.sqrt()
        design = examples["feature"] * root.unsqueeze(-1)
        target = examples["target"] * root
        if self.ridge:
            d = design.shape[-1]
            penalty = math.sqrt(self.ridge) * torch.eye(d, dtype=design.dtype)
            design = torch.cat([design, penalty])
            target = torch.cat([target, target.new_zeros(d)])
        x = torch.linalg.lstsq(design, target.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
        value = float(self.objective(x, shards, weights))
        return Optimum(x, value, float(self.gradient_norm(x, shards, weights)))

    def smoothness(self, shards: Shards) -> Constant:
        """Max |a|^2 + ridge."""
        largest = max(float(squared_norms(shard, "feature").max()) for shard in shards)
        return Constant(largest + self.ridge, "largest curvature of one example")

    @property
    def steepest_slope(self) -> float:
        """Of r^2 / 2."""
        return 1.0

    def normal_equations(self, examples: Examples, weights: Tensor) -> tuple[Tensor, Tensor] | None:
        """sum_j weights_j (a_j a_j^T + ridge I) and sum_j weights_j b_j a_j."""
        if type(self) is not LeastSquares:  # whose slopes may be others
            return None
        rows, targets = examples["feature"], examples["target"]
        weighted = weights.unsqueeze(-1) * rows
        hessian = torch.matmul(weighted.mT, rows)
        hessian.diagonal(dim1=-2, dim2=-1).add_(self.ridge * weights.sum(-1, keepdim=True))
        return hessian, torch.matmul(weighted.mT, targets.unsqueeze(-1)).squeeze(-1)

    def slopes(self, x: Tensor, examples: Examples) -> Tensor:
        """The residuals a_j^T x - b_j, shape ``(..., n)``."""
        return row_products(examples["feature"], x) - examples["target"]


def sum_scaling(shard: Examples, num_examples: int | None = None) -> Examples:
    """The shard with features and targets times sqrt(p): the mean becomes the sum."""
    root = math.sqrt(num_examples or len(shard))
    scaled = {key: tensor * root for key, tensor in shard.tensors.items()}
    return Examples(scaled, shard.feature_ndim)

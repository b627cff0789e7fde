"""Least squares: f_j(x) = 1/2 (a_j^T x - b_j)^2 + ridge/2 |x|^2 on R^d.

DECOR's synthetic task (Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui 2024, section 6) is its
instance with A_i = (i / sqrt n) I and a sum over the d rows of client i; ``sum_scaling`` turns the
mean over examples into that sum.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.problems.base import Examples
from manifed.problems.finite_sum import Constant, FiniteSum, Optimum, Shards, pool
from manifed.problems.linear import row_products, slope_norms, slope_sum, squared_norms


class LeastSquares(FiniteSum):
    """Examples ``feature`` (..., n, d) and ``target`` (..., n)."""

    points_per_example = 0.0

    def __init__(self, ridge: float = 0.0) -> None:
        self.ridge = ridge
        self._manifold = Euclidean()

    @property
    def manifold(self) -> Manifold:
        """R^d."""
        return self._manifold

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d,)."""
        return (examples["feature"].shape[-1],)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """1/2 (a_j^T x - b_j)^2 + ridge/2 |x|^2, shape ``(..., n)``."""
        penalty = 0.5 * self.ridge * x.square().sum(-1, keepdim=True)
        return 0.5 * self._residuals(x, examples).square() + penalty

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """(a_j^T x - b_j) a_j + ridge x, shape ``(..., n, d)``."""
        residuals = self._residuals(x, examples).unsqueeze(-1)
        return residuals * examples["feature"] + self.ridge * x.unsqueeze(-2)

    def rgrad_norms(self, x: Tensor, examples: Examples) -> Tensor:
        """|grad f_j|, shape ``(..., n)``; without a ridge |a_j^T x - b_j| |a_j|."""
        return slope_norms(x, examples, self._residuals(x, examples), self.ridge)

    def rgrad_sum(self, x: Tensor, examples: Examples, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j, shape ``(..., d)``."""
        return slope_sum(x, examples, weights, self._residuals(x, examples), self.ridge)

    def rgrad_sum_by_norm(
        self, x: Tensor, examples: Examples, weigh: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum and the norms from the same residuals."""
        residuals = self._residuals(x, examples)
        norms = slope_norms(x, examples, residuals, self.ridge)
        return slope_sum(x, examples, weigh(norms), residuals, self.ridge), norms

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

    def _residuals(self, x: Tensor, examples: Examples) -> Tensor:
        return row_products(examples["feature"], x) - examples["target"]


def sum_scaling(shard: Examples) -> Examples:
    """The shard with features and targets times sqrt(p): the mean becomes the sum."""
    root = math.sqrt(len(shard))
    scaled = {key: tensor * root for key, tensor in shard.tensors.items()}
    return Examples(scaled, shard.feature_ndim)

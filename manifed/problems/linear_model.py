"""Losses of a linear score on R^d: f_j(x) = l_j(a_j^T x) + ridge/2 |x|^2.

A gradient is a multiple of its row, slope_j a_j + ridge x, so a clipped sum needs no gradient of
its own: two passes over the rows.
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.problems.base import Examples
from manifed.problems.finite_sum import FiniteSum
from manifed.problems.linear import (
    ROUNDING_SHARE,
    row_combination,
    row_lengths,
    squared_norms,
)


class LinearModel(FiniteSum):
    """Examples with rows a_j ``feature`` (..., n, d); what l_j reads is up to the loss."""

    points_per_example = 0.0

    def __init__(self, ridge: float = 0.0) -> None:
        self.ridge = ridge
        self._manifold = Euclidean()

    @abstractmethod
    def slopes(self, x: Tensor, examples: Examples) -> Tensor:
        """l_j'(a_j^T x), shape ``(..., n)``."""
        raise NotImplementedError

    @property
    def manifold(self) -> Manifold:
        """R^d."""
        return self._manifold

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d,)."""
        return (examples["feature"].shape[-1],)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """slope_j a_j + ridge x, shape ``(..., n, d)``."""
        slopes = self.slopes(x, examples).unsqueeze(-1)
        return slopes * examples["feature"] + self.ridge * x.unsqueeze(-2)

    def rgrad_norms(self, x: Tensor, examples: Examples) -> Tensor:
        """Upper bounds of |grad f_j|, shape ``(..., n)``; without a ridge |slope_j| |a_j|."""
        return self._norms(x, examples, self.slopes(x, examples))

    def rgrad_sum(self, x: Tensor, examples: Examples, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j, shape ``(..., d)``."""
        return self._sum(x, examples, weights, self.slopes(x, examples))

    def rgrad_sum_by_norm(
        self, x: Tensor, examples: Examples, weigh: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum and the norms from the same slopes."""
        slopes = self.slopes(x, examples)
        norms = self._norms(x, examples, slopes)
        return self._sum(x, examples, weigh(norms), slopes), norms

    def _norms(self, x: Tensor, examples: Examples, slopes: Tensor) -> Tensor:
        """With a ridge: the norm of the vector itself, but at least a share of its summands'.

        That is `ROUNDING_SHARE` of |slope_j| |a_j| + ridge |x|: the sum adds all slope_j a_j first
        and the multiples of x afterwards, and where they cancel what rounding leaves must be
        clipped, too.
        """
        lengths = slopes.abs() * squared_norms(examples, "feature").sqrt()
        if not self.ridge:
            return lengths
        gradients = slopes.unsqueeze(-1) * examples["feature"] + self.ridge * x.unsqueeze(-2)
        summands = lengths + self.ridge * row_lengths(x).unsqueeze(-1)
        return torch.maximum(row_lengths(gradients), ROUNDING_SHARE * summands)

    def _sum(self, x: Tensor, examples: Examples, weights: Tensor, slopes: Tensor) -> Tensor:
        total = row_combination(weights * slopes, examples["feature"])
        return total + self.ridge * weights.sum(-1, keepdim=True) * x if self.ridge else total

"""Losses of a linear score on R^d: f_j(x) = l_j(a_j^T x) + ridge/2 |x|^2.

A gradient is a multiple of its row, slope_j a_j + ridge x, so a clipped sum needs no gradient of
its own: two passes over the rows.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.manifolds.euclidean import Euclidean
from manifed.problems.base import Examples
from manifed.problems.finite_sum import FiniteSum
from manifed.problems.linear import (
    ROUNDING_SHARE,
    row_combination,
    row_lengths,
    squared_norms,
)

LARGEST_SQUARE = 1e300
"""Slopes whose squares add up to no more are finite, also times 1e154, the longest row's norm."""


class LinearModel(FiniteSum):
    """Examples with rows a_j ``feature`` (..., n, d); what l_j reads is up to the loss."""

    points_per_example = 0.0

    def __init__(self, ridge: float = 0.0) -> None:
        self.ridge = ridge
        self.manifold = Euclidean()

    @abstractmethod
    def slopes(self, x: Tensor, examples: Examples) -> Tensor:
        """l_j'(a_j^T x), shape ``(..., n)``."""
        raise NotImplementedError

    @property
    def steepest_slope(self) -> float:
        """A bound of |l_j''| for every record that there could be."""
        raise NotImplementedError

    def curvatures(self, examples: Examples) -> Tensor:
        """Bounds of the Lipschitz constant of each gradient in L2, shape ``(..., n)``."""
        rounding = 1 + 2.0**-40
        return (self.steepest_slope * squared_norms(examples, "feature") + self.ridge) * rounding

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d,)."""
        return (examples["feature"].shape[-1],)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """slope_j a_j + ridge x, shape ``(..., n, d)``."""
        slopes = self.slopes(x, examples).unsqueeze(-1)
        return slopes * examples["feature"] + self.ridge * x.unsqueeze(-2)

    def gradients(self, x: Tensor, examples: Examples) -> "Slopes":
        """The same from the slopes."""
        return Slopes(x, examples, self.slopes(x, examples), self.ridge)


@dataclass(frozen=True)
class Slopes:
    """slope_j a_j + ridge x for rows a_j and slopes (..., n)."""

    x: Tensor
    examples: Examples
    slopes: Tensor
    ridge: float

    @property
    def norms(self) -> Tensor:
        """Upper bounds of |grad f_j|, shape ``(..., n)``; without a ridge |slope_j| |a_j|.

        With one: the norm of the vector itself, but at least a share of its summands'. That is
        `ROUNDING_SHARE` of |slope_j| |a_j| + ridge |x|: the sum adds all slope_j a_j first and the
        multiples of x afterwards, and where they cancel what rounding leaves must be clipped, too.
        """
        lengths = self.slopes.abs() * squared_norms(self.examples, "feature").sqrt()
        if not self.ridge:
            return lengths
        along = self.slopes.unsqueeze(-1) * self.examples["feature"]
        gradients = along + self.ridge * self.x.unsqueeze(-2)
        summands = lengths + self.ridge * row_lengths(self.x).unsqueeze(-1)
        return torch.maximum(row_lengths(gradients), ROUNDING_SHARE * summands)

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j, shape ``(..., d)``."""
        total = row_combination(weights * self.slopes, self.examples["feature"])
        return total + self.ridge * weights.sum(-1, keepdim=True) * self.x if self.ridge else total

    def clipped_sum(self, weights: Tensor, clip: float) -> Tensor | None:
        """`sum` of gradients that are each clipped to ``clip``, without a factor for each.

        That is every slope cut off at clip / |a_j|; zero where the gradient is not finite. A factor
        below `SMALLEST_FACTOR`, as clips near 1e-140 have, leaves a gradient as long as the clip
        here, and zero in `clip_factors`. None where that is not all: with a ridge, and outside
        float64.
        """
        slopes, flat = self.slopes, self.slopes.reshape(-1)
        if self.ridge or slopes.dtype != torch.float64:
            return None
        # made anew for every sum: what was kept would outlive rows that change in place
        room = squared_norms(self.examples, "feature").rsqrt().mul_(clip)
        kept = torch.clamp(slopes, -room, room)
        if not float(torch.dot(flat, flat)) <= LARGEST_SQUARE:  # NaN is not
            lengths = slopes.abs() * squared_norms(self.examples, "feature").sqrt()
            kept = torch.where(torch.isfinite(lengths), kept, 0.0)
        return row_combination(weights * kept, self.examples["feature"])

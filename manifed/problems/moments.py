r"""Means, second moments and their sampling errors, as one release of sums over examples.

The model x is the mean over all examples of the statistic s_j = (t_j, a t_j t_j^T), where
t_j = (v_j, v_j v_j^T) and v_j is a row in units of the public bound of its length. So x holds the
mean and the second moment of the rows, and of these numbers again the second moment, from which
follows how far the mean over a sample is from that over a population. `manifed.intervals` reads it.

f_j(x) = 1/2 |x - s_j|^2, whose minimiser is that mean. One full-batch step of length 1 from the
origin, where the gradient is -s_j, releases it with the noise, the price and the sums of any
gradient. Matrices are in coordinates of Sym, in which |v v^T| = |v|^2, so |v_j| <= 1 gives
|t_j|^2 <= 2 and |s_j|^2 <= 2 + 4 a^2.

Where records are persons, t_j is the mean of (v, v v^T) over a person's rows, which is as short.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from manifed.fields import Positive, Values
from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.linalg import LOG, Shape, packed, packed_size, sym_function
from manifed.manifolds.spd import SPD
from manifed.problems.data import ExampleKind
from manifed.problems.examples import SHARE, Examples, mean_of_rows
from manifed.problems.problem import (
    FrozenProblem,
    Optimum,
    OriginStart,
    Shards,
    Start,
    check_points,
    pool,
)
from manifed.problems.rows import RowVectors, dots, row_lengths

SPREAD_SHARE = 0.5
"""The factor a of t t^T in the statistic."""
LARGEST = math.sqrt(2 + 4 * SPREAD_SHARE**2)
"""A bound of |s_j|: the clip norm that clips nothing."""


def _with_squares(rows: Tensor, share: float) -> Tensor:
    """(v, a v v^T) of rows v (..., d), the matrix in coordinates of Sym."""
    return torch.cat([rows, share * packed(rows.unsqueeze(-1) * rows.unsqueeze(-2))], -1)


def log_rows(matrices: Tensor) -> Tensor:
    """Logarithms of SPD matrices (n, k, k) in coordinates of Sym(k), (n, k(k+1)/2).

    Raises:
        InvalidRecord: for a matrix that is not positive definite.
    """
    check_points(SPD(), matrices)
    return torch.stack([packed(sym_function(matrix, LOG)) for matrix in matrices])


class Moments(FrozenProblem):
    """Mean, second moment and their sampling errors of rows, or of logarithms of SPD matrices."""

    points_per_example = 3.0
    keeps_rows_apart = True
    takes_whole_persons = True
    manifold: ClassVar[Manifold] = Euclidean()
    kind: Literal["moments"] = "moments"
    start: Start = OriginStart()
    of: Literal["rows", "spd-matrices"] = "rows"
    """What an example is. Of an SPD matrix the row is its logarithm, in coordinates of Sym."""
    row_norm: Positive = 1.0
    """Public bound of a row's length. Longer rows are scaled down to it."""

    @property
    def needs(self) -> ExampleKind:
        """Rows or matrices."""
        return self.of

    def prepare(self, shard: Examples, meta: Values) -> Examples:
        """Returns rows ``z`` (n, d), each computed by itself; of matrices those of `log_rows`."""
        return Examples({"z": log_rows(shard["z"])}, {"z": 1}) if self.of != "rows" else shard

    def rows(self, examples: Examples) -> Tensor:
        """The rows v_j, of length 1 at most, shape ``(..., n, d)``."""
        z = examples["z"]
        return z / row_lengths(z).clamp_min(self.row_norm).unsqueeze(-1)

    def point_shape(self, examples: Examples) -> Shape:
        """The size of s_j."""
        size = examples["z"].shape[-1]
        size += packed_size(size)
        return (size + packed_size(size),)

    def statistics(self, examples: Examples) -> Tensor:
        """s_j, shape ``(..., n, m)``; of a person, from the mean of t over her rows."""
        t = _with_squares(self.rows(examples), 1.0)
        t = mean_of_rows(t, examples, 1) if SHARE in examples.tensors else t
        return _with_squares(t, SPREAD_SHARE)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """1/2 |x - s_j|^2, shape ``(..., n)``."""
        gradients = self.rgrads(x, examples)
        return 0.5 * dots(gradients, gradients)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Differences x - s_j, shape ``(..., n, m)``."""
        return x.unsqueeze(-2) - self.statistics(examples)

    def gradients(self, x: Tensor, examples: Examples) -> RowVectors:
        """Gradients of `rgrads`, each with a norm of its own."""
        return RowVectors(self.rgrads(x, examples))

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """The mean of the statistics."""
        examples, each = pool(shards, weights)
        return self.optimum_at(each @ self.statistics(examples), shards, weights)

r"""Sufficient statistics as sums over examples: second moments of rows, logarithms of matrices.

A sum of statistics s_j is the gradient of the linear problem f_j(x) = <s_j, x> on R^m, at any x. So
an oracle clips, sums, noises and charges it as it does every gradient.

Sensitivity of second moments s_j = z_j z_j^T in coordinates of Sym(d). Let |s_j|_F <= C after the
clip, which multiplies z_j z_j^T by min(1, C / |z_j|^2): the row is scaled to length at most
sqrt(C), because |z z^T|_F = |z|^2 for every z (the singular values are |z|^2 and zeros).

* Add-or-remove moves the sum by one s_j: C.
* Replace-one moves it by s - s' with s, s' positive semidefinite. Then <s, s'> = tr(s s') >= 0,
  and |s - s'|^2 = |s|^2 + |s'|^2 - 2 <s, s'> <= 2 C^2: sqrt(2) C, and not the 2 C of vectors that
  may be opposite. Two orthogonal rows of length sqrt(C) attain it.

Sensitivity of logarithms. A clip scales log z_j to |log z_j|_F <= C, which moves z_j along its
geodesic towards the identity. Add-or-remove moves the sum by C; replace-one by 2 C, which z and
z^{-1} attain: logarithms, unlike second moments, may be opposite.
"""

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.linalg import LOG, Shape, packed, packed_size, sym_function
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem
from manifed.problems.rows import squared_norms

APART = math.sqrt(2.0)
"""So many clip norms are two clipped z z^T apart at most."""


class _Statistic(Problem):
    """f_j(x) = <s_j, x> on R^m."""

    manifold = Euclidean()

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """<s_j, x>, shape ``(..., n)``."""
        return (self.rgrads(x, examples) * x.unsqueeze(-2)).sum(-1)


class _OuterRows(_Statistic):
    """s_j = z_j z_j^T in R^{d(d+1)/2} of rows z_j."""

    points_per_example = 0.0
    beside: ClassVar[str | None] = None
    """What stands beside a row in z_j."""

    def rows(self, examples: Examples) -> Tensor:
        """The rows z_j: ``z``, or (a_j, b_j)."""
        if self.beside is None:
            return examples["z"]
        return torch.cat([examples["feature"], examples[self.beside].unsqueeze(-1)], dim=-1)

    def point_shape(self, examples: Examples) -> Shape:
        """(d(d+1)/2,)."""
        return (packed_size(self.rows(examples).shape[-1]),)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """z_j z_j^T in coordinates, shape ``(..., n, d(d+1)/2)``."""
        z = self.rows(examples)
        return packed(z.unsqueeze(-1) * z.unsqueeze(-2))

    def gradients(self, x: Tensor, examples: Examples) -> "_OuterProducts":
        """Gradients of `rgrads`, whose sum is one product of matrices."""
        return _OuterProducts(self.rows(examples))


class _OuterProducts(NamedTuple):
    """z_j z_j^T for rows z_j, in coordinates of Sym(d)."""

    z: Tensor

    @property
    def norms(self) -> Tensor:
        """|z_j|^2, shape ``(..., n)``."""
        return squared_norms(self.z)

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j z_j z_j^T, shape ``(..., d(d+1)/2)``."""
        return packed(torch.matmul((weights.unsqueeze(-1) * self.z).mT, self.z))


class SecondMoments(_OuterRows):
    """The statistic of second moments of rows ``z`` (..., n, d)."""

    keeps_rows_apart = True


class GramMatrices(_OuterRows):
    """The statistic of second moments of rows ``feature`` (..., n, d) with ``target`` (..., n)."""

    keeps_rows_apart = True
    beside = "target"


class LabelledGrams(_OuterRows):
    """The statistic of second moments of ``feature`` (..., n, d) with ``label`` -1 or 1."""

    keeps_rows_apart = True
    beside = "label"


class LogSums(_Statistic):
    """The statistic s_j = log z_j in R^{m(m+1)/2} of examples ``z`` (..., n, m, m).

    The Frechet mean of SPD matrices in the log-Euclidean metric is exp of the mean of the
    logarithms (Arsigny, Fillard, Pennec, Ayache 2007).
    """

    def point_shape(self, examples: Examples) -> Shape:
        """(m(m+1)/2,)."""
        return (packed_size(examples["z"].shape[-1]),)

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Random SPD matrices."""
        from manifed.manifolds.spd import SPD

        shape = like["z"].shape[-2:]
        z = SPD().random(count, *shape, dtype=torch.float64, generator=generator)
        return Examples({"z": z.to(like["z"].dtype)}, {"z": 2})

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """Log z_j in coordinates, shape ``(..., n, m(m+1)/2)``; not finite where z_j has none."""
        return packed(sym_function(examples["z"], LOG))

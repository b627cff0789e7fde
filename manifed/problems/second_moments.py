r"""The second moment of rows as a sum over examples: s_j = z_j z_j^T in coordinates of Sym(d).

A sum of statistics is the gradient of the linear problem f_j(x) = <s_j, x> on R^m, at any x. So an
oracle clips, sums, noises and charges it as it does every gradient.

Sensitivity. Let |s_j|_F <= C after the clip, which multiplies z_j z_j^T by min(1, C / |z_j|^2): the
row is scaled to length at most sqrt(C), because |z z^T|_F = |z|^2 for every z (the singular values
are |z|^2 and zeros).

* Add-or-remove moves the sum by one s_j: C.
* Replace-one moves it by s - s' with s, s' positive semidefinite. Then <s, s'> = tr(s s') >= 0,
  and |s - s'|^2 = |s|^2 + |s'|^2 - 2 <s, s'> <= 2 C^2: sqrt(2) C, and not the 2 C of vectors that
  may be opposite. Two orthogonal rows of length sqrt(C) attain it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.symmetric import packed, packed_size
from manifed.problems.base import Examples, ProblemBase
from manifed.problems.linear import squared_norms

APART = math.sqrt(2.0)
"""So many clip norms are two clipped z z^T apart at most."""


class SecondMoments(ProblemBase):
    """f_j(x) = <z_j z_j^T, x> on R^{d(d+1)/2}; examples ``z`` of shape (..., n, d)."""

    points_per_example = 0.0
    keeps_rows_apart = True

    def __init__(self) -> None:
        self.manifold = Euclidean()

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d(d+1)/2,)."""
        return (packed_size(examples["z"].shape[-1]),)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """<z_j z_j^T, x>, shape ``(..., n)``."""
        return (self.rgrads(x, examples) * x.unsqueeze(-2)).sum(-1)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """z_j z_j^T in coordinates, shape ``(..., n, d(d+1)/2)``."""
        z = examples["z"]
        return packed(z.unsqueeze(-1) * z.unsqueeze(-2))

    def gradients(self, x: Tensor, examples: Examples) -> "OuterProducts":
        """The same, whose sum is one product of matrices."""
        return OuterProducts(examples)


@dataclass(frozen=True)
class OuterProducts:
    """z_j z_j^T for rows z_j, in coordinates of Sym(d)."""

    examples: Examples

    @property
    def norms(self) -> Tensor:
        """|z_j|^2, shape ``(..., n)``."""
        return squared_norms(self.examples, "z")

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j z_j z_j^T, shape ``(..., d(d+1)/2)``."""
        z = self.examples["z"]
        return packed(torch.matmul((weights.unsqueeze(-1) * z).mT, z))


class _Joint(ProblemBase):
    """The second moment of rows (a_j, b_j); ``feature`` (..., n, d) and ``beside`` (..., n)."""

    points_per_example = 0.0
    beside: ClassVar[str]
    """What b_j is called."""

    def __init__(self) -> None:
        self.manifold = Euclidean()

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """((d+1)(d+2)/2,)."""
        return (packed_size(examples["feature"].shape[-1] + 1),)

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """<r_j r_j^T, x>, shape ``(..., n)``."""
        return SecondMoments().losses(x, self._rows(examples))

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """r_j r_j^T in coordinates, shape ``(..., n, (d+1)(d+2)/2)``."""
        return SecondMoments().rgrads(x, self._rows(examples))

    def gradients(self, x: Tensor, examples: Examples) -> OuterProducts:
        """The same, whose sum is one product of matrices."""
        return OuterProducts(self._rows(examples))

    def _rows(self, examples: Examples) -> Examples:
        """The rows (a_j, b_j) as ``z``; norms that are stored are those of a_j alone."""
        z = torch.cat([examples["feature"], examples[self.beside].unsqueeze(-1)], dim=-1)
        return Examples({"z": z}, {"z": 1})


class GramMatrices(_Joint):
    """Of rows with their targets."""

    keeps_rows_apart = True
    beside: ClassVar[str] = "target"


class LabelledGrams(_Joint):
    """Of rows with their labels -1 or 1."""

    keeps_rows_apart = True
    beside: ClassVar[str] = "label"

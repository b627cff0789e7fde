r"""A network with one hidden layer: cross-entropy of softmax(W_2 s(W_1 z + b_1) + b_2) on R^d.

The task of DECOR on MNIST (Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui 2024, section 6; 784,
128 and 10 units with ReLU in its public code). A point is W_1 (h, p), b_1 (h), W_2 (k, h), b_2 (k),
row by row, in one vector of d = h (p + 1) + k (h + 1) entries.

An example's gradient is two outer products, so its norm needs no gradient (Goodfellow, "Efficient
per-example gradient computations", 2015): with the errors delta_1 and delta_2 at the two layers

    |grad f_j|^2 = |delta_1|^2 (|z_j|^2 + 1) + |delta_2|^2 (|s_j|^2 + 1).
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.problems.data import ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.problem import (
    FrozenProblem,
    ModelStart,
    Optimum,
    Problem,
    Shards,
    Start,
    check_classes,
    class_numbers,
)
from manifed.problems.rows import in_pieces, row_lengths, row_maps


@dataclass(frozen=True)
class Layers:
    """The parts of a point, views of shape (..., h, p), (..., h), (..., k, h), (..., k)."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


class MLP(FrozenProblem):
    """Classification by a network with one hidden layer, packed in one vector of R^d.

    Examples ``z`` (..., n, p) and ``label`` (..., n), a class number from 0 to k - 1.
    """

    points_per_example = 0.1
    # about 3 / p points: errors and units of two layers, no gradient
    keeps_rows_apart = True
    manifold: ClassVar[Manifold] = Euclidean()
    needs: ClassVar[ExampleKind] = "labelled-rows"
    kind: Literal["reproduction.mlp:MLP"] = "reproduction.mlp:MLP"
    start: Start = ModelStart()
    """"model": every entry uniform in +-1 / sqrt(units that feed it), as `torch.nn.Linear` does."""
    hidden: int = Field(default=32, ge=1, le=10_000)
    """Units of the hidden layer."""
    num_classes: int = Field(ge=2, le=1000)
    """Number of classes. Labels are 0, 1, ... ."""
    activation: Literal["relu", "tanh"] = "relu"
    """Of the hidden layer."""

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d,)."""
        p = examples["z"].shape[-1]
        return (self.hidden * (p + 1) + self.num_classes * (self.hidden + 1),)

    def layers(self, x: Tensor) -> Layers:
        """Weights and biases of a point."""
        h = self.hidden
        k = self.num_classes
        p = (x.shape[-1] - k * (h + 1)) // h - 1
        w1, b1, w2, b2 = x.split([h * p, h, k * h, k], dim=-1)
        return Layers(w1.unflatten(-1, (h, p)), b1, w2.unflatten(-1, (k, h)), b2)

    def check_records(self, examples: Examples) -> None:
        """Class numbers."""
        super().check_records(examples)
        check_classes(examples, self.num_classes)

    def first_point(
        self, problem: Problem, shape: tuple[int, ...], generator: torch.Generator
    ) -> Tensor:
        """Layers as torch's, weights and biases; another start of the config where one is given."""
        if self.start.kind != "model":
            return super().first_point(problem, shape, generator)
        uniform = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
        second = self.num_classes * (self.hidden + 1)
        p = (shape[0] - second) // self.hidden - 1
        first, last = uniform.split([shape[0] - second, second])
        return torch.cat([first / math.sqrt(p), last / math.sqrt(self.hidden)])

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """Log sum_c exp(score_c) - score of the example's class, shape ``(..., n)``."""
        scores = self._forward(self.layers(x), examples["z"])[1]
        label = class_numbers(examples["label"], self.num_classes)
        own = scores.gather(-1, label.expand(scores.shape[:-1]).unsqueeze(-1))
        return in_pieces(lambda rows: torch.logsumexp(rows, -1), scores, 1) - own.squeeze(-1)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """The gradients one by one, shape ``(..., n, d)``."""
        found = self.gradients(x, examples)
        parts = [
            (found.delta1.unsqueeze(-1) * examples["z"].unsqueeze(-2)).flatten(-2),
            found.delta1,
            (found.delta2.unsqueeze(-1) * found.units.unsqueeze(-2)).flatten(-2),
            found.delta2,
        ]
        return torch.cat(parts, -1)

    def gradients(self, x: Tensor, examples: Examples) -> "OuterProducts":
        """The errors at both layers, by one pass forth and one back.

        NaN for a label that is no class, so that such a record counts for nothing.
        """
        layers = self.layers(x)
        z = examples["z"]
        units, scores = self._forward(layers, z)
        label = class_numbers(examples["label"], self.num_classes).unsqueeze(-1)
        is_own = label == torch.arange(self.num_classes, device=label.device)
        delta2 = in_pieces(lambda rows: torch.softmax(rows, -1), scores, 1) - is_own.to(scores)
        has_class = label == examples["label"].unsqueeze(-1)
        if not bool(has_class.all()):
            delta2 = torch.where(has_class, delta2, torch.nan)
        slopes = (units > 0).to(units) if self.activation == "relu" else 1 - units.square()
        delta1 = row_maps(delta2, layers.w2.mT.contiguous()) * slopes
        return OuterProducts(z, delta1, units, delta2)

    def correct(self, x: Tensor, examples: Examples) -> Tensor:
        """1 where the largest score is that of the example's class, else 0, shape ``(..., n)``."""
        scores = self._forward(self.layers(x), examples["z"])[1]
        return (scores.argmax(-1) == class_numbers(examples["label"], self.num_classes)).to(x.dtype)

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """Zero, which bounds every cross-entropy from below; no point of a network attains it.

        So a cost's gap to it is the cost. ``x`` is the origin and means nothing.
        """
        del weights
        origin = torch.zeros(self.point_shape(shards[0]), dtype=torch.float64)
        return Optimum(origin, 0.0, 0.0)

    def _forward(self, layers: Layers, z: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden units (..., n, h) and scores (..., n, k)."""
        before = row_maps(z, layers.w1) + layers.b1.unsqueeze(-2)
        is_relu = self.activation == "relu"
        units = torch.relu(before) if is_relu else in_pieces(torch.tanh, before)
        return units, row_maps(units, layers.w2) + layers.b2.unsqueeze(-2)


@dataclass(frozen=True)
class OuterProducts:
    """Gradients delta_1 (z, 1)^T and delta_2 (s, 1)^T, one pair an example."""

    z: Tensor
    delta1: Tensor
    """(..., n, h)."""
    units: Tensor
    """s, (..., n, h)."""
    delta2: Tensor
    """(..., n, k)."""

    @property
    def norms(self) -> Tensor:
        """Upper bounds of the gradients' norms, shape ``(..., n)``; infinite where one overflows.

        A factor shorter than 1e-145 counts as that long (`row_lengths`).
        """
        first = row_lengths(self.delta1) * _hypot(row_lengths(self.z), 1.0)
        second = row_lengths(self.delta2) * _hypot(row_lengths(self.units), 1.0)
        return _hypot(first, second)

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j, two products, shape ``(..., d)``."""
        parts = []
        for delta, inputs in ((self.delta1, self.z), (self.delta2, self.units)):
            left = (weights.unsqueeze(-1) * delta).mT
            total = torch.matmul(left, inputs)
            parts += [total.flatten(-2), left.sum(-1).expand(total.shape[:-1])]
        return torch.cat(parts, -1)


def _hypot(a: Tensor, b: Tensor | float) -> Tensor:
    """The root of a^2 + b^2, without overflow between."""
    pairs = torch.stack([a, torch.as_tensor(b, dtype=a.dtype, device=a.device).expand_as(a)], -1)
    return in_pieces(lambda rows: torch.hypot(rows[:, 0], rows[:, 1]), pairs, 1)

"""Logistic regression: f_j(x) = log(1 + exp(-b_j a_j^T x)) + ridge/2 |x|^2 on R^d, b = -1 or 1.

Used on a9a by DECOR (2024), whose printed loss log(1 + b exp(-x^T a)) vanishes for b = 0; this is
the loss its code runs. The paper's lambda |x|^2 is ridge = 2 lambda.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from manifed.problems.base import Examples, Problem
from manifed.problems.finite_sum import Constant, Optimum, Shards, pool
from manifed.problems.linear import in_pieces, row_products, squared_norms
from manifed.problems.linear_model import LinearModel
from manifed.problems.records import require
from manifed.problems.second_moments import LabelledGrams


class Logistic(LinearModel):
    """Examples ``feature`` (..., n, d) and ``label`` (..., n) in {-1, 1}."""

    keeps_rows_apart = True

    @property
    def sufficient_statistic(self) -> Problem:
        """Of the loss up to second order at the origin: second moments of rows with labels."""
        return LabelledGrams()

    def check_records(self, examples: Examples) -> None:
        """Labels -1 and 1."""
        label = examples["label"]
        require(label, label.abs() == 1, "a label -1 or 1")

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """log(1 + exp(-b_j a_j^T x)) + ridge/2 |x|^2, shape ``(..., n)``."""
        margins = examples["label"] * row_products(examples["feature"], x)
        return in_pieces(softplus, -margins) + 0.5 * self.ridge * x.square().sum(-1, keepdim=True)

    def correct(self, x: Tensor, examples: Examples) -> Tensor:
        """1 where the score a_j^T x has the sign of the label, else 0, shape ``(..., n)``."""
        return (examples["label"] * row_products(examples["feature"], x) > 0).to(x.dtype)

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """The minimiser by damped Newton steps, to a gradient norm of 1e-9.

        The Hessian's null space is left alone. On separable directions (a9a has some) Newton's
        method is linear and x diverges while f converges.
        """
        examples, each = pool(shards, weights)
        x = torch.zeros(self.point_shape(examples), dtype=torch.float64)
        value = float((each * self.losses(x, examples)).sum())
        for _ in range(100):
            g = self.rgrad_sum(x, examples, each)
            if float(g.norm()) <= 1e-9:
                break
            direction = torch.linalg.pinv(self._hessian(x, examples, each), hermitian=True) @ g
            step, lower = 1.0, value
            while step > 1e-8:
                lower = float((each * self.losses(x - step * direction, examples)).sum())
                if lower <= value - 1e-4 * step * float(g @ direction) + 1e-16:
                    break
                step /= 2
            x, value = x - step * direction, lower
            if step <= 1e-8:
                break
        return Optimum(x, value, float(self.gradient_norm(x, shards, weights)))

    def lipschitz(self, shards: Shards) -> Constant:
        """Max |a| (no ridge; unbounded otherwise)."""
        if self.ridge:
            return super().lipschitz(shards)
        return Constant(max(_largest(shard) for shard in shards) ** 0.5, "|sigmoid| <= 1")

    def smoothness(self, shards: Shards) -> Constant:
        """Max |a|^2 / 4 + ridge."""
        return Constant(max(_largest(s) for s in shards) / 4 + self.ridge, "sigmoid' <= 1/4")

    @property
    def steepest_slope(self) -> float:
        """Of the logistic loss."""
        return 0.25

    def slopes(self, x: Tensor, examples: Examples) -> Tensor:
        """-b_j / (1 + exp(b_j a_j^T x)), shape ``(..., n)``."""
        label = examples["label"]
        margins = label * row_products(examples["feature"], x)
        return -label * in_pieces(torch.sigmoid, -margins)

    def _hessian(self, x: Tensor, examples: Examples, each: Tensor) -> Tensor:
        features = examples["feature"]
        p = torch.sigmoid(row_products(features, x))
        curvature = features.mT @ ((each * p * (1 - p)).unsqueeze(-1) * features)
        return curvature + self.ridge * torch.eye(features.shape[-1], dtype=features.dtype)


def _largest(shard: Examples) -> float:
    return float(squared_norms(shard, "feature").max())

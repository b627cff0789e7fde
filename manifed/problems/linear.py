"""Problems with a linear score on R^d: least squares and logistic regression.

A gradient is a multiple of its row, slope_j a_j + ridge x, so a clipped sum needs no gradient of
its own: two passes over the rows. Both are tasks of DECOR (Allouah, Koloskova, El Firdoussi, Jaggi,
Guerraoui 2024, section 6).
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, linalg
from torch.nn.functional import softplus

from manifed.fields import NonNegative, Values
from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.problems.data import NUM_EXAMPLES, ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.problem import (
    FrozenProblem,
    Optimum,
    OriginStart,
    Problem,
    Shards,
    Start,
    pool,
    require,
)
from manifed.problems.rows import (
    ROUNDING_SHARE,
    in_pieces,
    row_lengths,
    row_products,
    squared_norms,
    sum_scaling,
)
from manifed.problems.statistics import GramMatrices, LabelledGrams


class LinearModel(FrozenProblem):
    """Base of problems f_j(x) = l_j(a_j^T x) + ridge/2 |x|^2 with rows a_j ``feature``.

    Rows have shape (..., n, d); what else l_j reads is up to the loss.
    """

    points_per_example = 0.0
    manifold: ClassVar[Manifold] = Euclidean()
    steepest_slope: ClassVar[float]
    """A bound of |l_j''| for every record that there could be."""
    if TYPE_CHECKING:  # a key of its own
        ridge: float
        """Weight of |x|^2 / 2 in the loss."""

    @abstractmethod
    def slopes(self, x: Tensor, examples: Examples) -> Tensor:
        """l_j'(a_j^T x), shape ``(..., n)``."""

    def curvatures(self, examples: Examples) -> Tensor:
        """Bounds of the Lipschitz constant of each gradient in L2, shape ``(..., n)``."""
        rounding = 1 + 2.0**-40
        return (self.steepest_slope * squared_norms(examples["feature"]) + self.ridge) * rounding

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d,)."""
        return (examples["feature"].shape[-1],)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """slope_j a_j + ridge x, shape ``(..., n, d)``."""
        slopes = self.slopes(x, examples).unsqueeze(-1)
        return slopes * examples["feature"] + self.ridge * x.unsqueeze(-2)

    def gradients(self, x: Tensor, examples: Examples) -> "_Slopes":
        """Gradients of `rgrads`, from the slopes."""
        return _Slopes(x, examples, self.slopes(x, examples), self.ridge)


class _Slopes(NamedTuple):
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
        lengths = self.slopes.abs() * squared_norms(self.examples["feature"]).sqrt()
        if not self.ridge:
            return lengths
        along = self.slopes.unsqueeze(-1) * self.examples["feature"]
        gradients = along + self.ridge * self.x.unsqueeze(-2)
        summands = lengths + self.ridge * row_lengths(self.x).unsqueeze(-1)
        return torch.maximum(row_lengths(gradients), ROUNDING_SHARE * summands)

    def sum(self, weights: Tensor) -> Tensor:
        """sum_j weights_j grad f_j, shape ``(..., d)``."""
        shares = (weights * self.slopes).unsqueeze(-2)
        total = torch.matmul(shares, self.examples["feature"]).squeeze(-2)
        return total + self.ridge * weights.sum(-1, keepdim=True) * self.x if self.ridge else total


class LeastSquares(LinearModel):
    """Least squares on R^d.

    f_j(x) = 1/2 (a_j^T x - b_j)^2 + ridge/2 |x|^2 of examples ``feature`` (..., n, d) and
    ``target`` (..., n). DECOR's synthetic task is its instance with A_i = (i / sqrt n) I and a sum
    over the d rows of client i.
    """

    keeps_rows_apart = True
    needs: ClassVar[ExampleKind] = "regression"
    steepest_slope: ClassVar[float] = 1.0
    kind: Literal["least-squares"] = "least-squares"
    ridge: NonNegative = 0.0
    """Weight of |x|^2 / 2 in the loss."""
    scaling: Literal["mean", "sum"] = "mean"
    """Whether the loss is the mean or the sum over a client's rows."""

    def prepare(self, shard: Examples, meta: Values) -> Examples:
        """Returns rows and targets, scaled."""
        if self.scaling == "sum":
            shard = sum_scaling(shard, meta.get(NUM_EXAMPLES), "feature", "target")
        return shard

    @property
    def sufficient_statistic(self) -> Problem:
        """The second moment of rows with their targets."""
        return GramMatrices()

    def slopes(self, x: Tensor, examples: Examples) -> Tensor:
        """The residuals a_j^T x - b_j, shape ``(..., n)``."""
        return row_products(examples["feature"], x) - examples["target"]

    def predict(self, x: Tensor, features: Tensor) -> Tensor:
        """a_j^T x, shape ``(..., n)``."""
        return row_products(features, x)

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
        x = linalg.lstsq(design, target.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
        return self.optimum_at(x, shards, weights)


class Logistic(LinearModel):
    """Logistic regression on R^d.

    f_j(x) = log(1 + exp(-b_j a_j^T x)) + penalty/2 |x|^2 of examples ``feature`` (..., n, d) and
    ``label`` (..., n) in {-1, 1}. DECOR's printed loss log(1 + b exp(-x^T a)) vanishes for b = 0;
    this is the loss its code runs, with penalty = 2 lambda.
    """

    keeps_rows_apart = True
    needs: ClassVar[ExampleKind] = "classification"
    steepest_slope: ClassVar[float] = 0.25
    kind: Literal["logistic"] = "logistic"
    start: Start = OriginStart()
    penalty: NonNegative = 0.0
    """Weight of |x|^2 / 2 in the loss."""

    @property
    def ridge(self) -> float:
        """The ridge, which is the key ``penalty``."""
        return self.penalty

    @property
    def sufficient_statistic(self) -> Problem:
        """The second moments of rows with labels: the loss at the origin up to second order."""
        return LabelledGrams()

    def check_records(self, examples: Examples) -> None:
        """Refuses labels that are not -1 or 1."""
        super().check_records(examples)
        require(examples["label"], examples["label"].abs() == 1, "a label -1 or 1")

    def slopes(self, x: Tensor, examples: Examples) -> Tensor:
        """-b_j / (1 + exp(b_j a_j^T x)), shape ``(..., n)``."""
        return -examples["label"] * in_pieces(torch.sigmoid, -self._margins(x, examples))

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """log(1 + exp(-b_j a_j^T x)) + ridge/2 |x|^2, shape ``(..., n)``."""
        penalty = 0.5 * self.ridge * x.square().sum(-1, keepdim=True)
        return in_pieces(softplus, -self._margins(x, examples)) + penalty

    def correct(self, x: Tensor, examples: Examples) -> Tensor:
        """1 where the score a_j^T x has the sign of the label, else 0, shape ``(..., n)``."""
        return (self._margins(x, examples) > 0).to(x.dtype)

    def predict(self, x: Tensor, features: Tensor) -> Tensor:
        """The label 1 where the score a_j^T x is positive, else -1, shape ``(..., n)``."""
        return (row_products(features, x) > 0).to(x.dtype) * 2 - 1

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """The minimiser by damped Newton steps, to a gradient norm of 1e-9.

        The Hessian's null space is left alone. On separable directions (a9a has some) Newton's
        method is linear and x diverges while f converges.
        """
        examples, each = pool(shards, weights)
        x = torch.zeros(self.point_shape(examples), dtype=torch.float64)
        value = float((each * self.losses(x, examples)).sum())
        for _ in range(100):
            g = self.gradients(x, examples).sum(each)
            if float(g.norm()) <= 1e-9:
                break
            direction = linalg.pinv(self._hessian(x, examples, each), hermitian=True) @ g
            step = 1.0
            lower = value
            while step > 1e-8:
                lower = float((each * self.losses(x - step * direction, examples)).sum())
                if lower <= value - 1e-4 * step * float(g @ direction) + 1e-16:
                    break
                step /= 2
            x = x - step * direction
            value = lower
            if step <= 1e-8:
                break
        return self.optimum_at(x, shards, weights)

    def _margins(self, x: Tensor, examples: Examples) -> Tensor:
        return examples["label"] * row_products(examples["feature"], x)

    def _hessian(self, x: Tensor, examples: Examples, each: Tensor) -> Tensor:
        features = examples["feature"]
        p = torch.sigmoid(row_products(features, x))
        curvature = features.mT @ ((each * p * (1 - p)).unsqueeze(-1) * features)
        return curvature + self.ridge * torch.eye(features.shape[-1], dtype=features.dtype)

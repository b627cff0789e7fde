r"""Problems of distances to points: Fréchet mean, geometric median, hyperbolic prediction.

f_j(x) = dist(x, z_j)^2 of the mean, and dist(x, z_j) of the median, on any manifold.

Huang, Huang, Jawanpuria, Mishra (PriRFed), (6.2), on symmetric positive definite matrices with the
affine-invariant metric. grad f_j(x) = -2 log_x z_j. The base point of the logarithms is handed over
with one singleton dimension, so what the manifold factorises of it is shared by all examples. A
clip measures the logarithms themselves: for a point off the manifold they are not 2 dist(x, z_j)
long.

The geometric median (Fletcher, Venkatasubramanian, Joshi, NeuroImage 2009) has the gradient
-log_x z_j / dist(x, z_j) of norm 1: no record pulls harder than another, so a clip norm of 1 cuts
nothing, whatever the data are. At x = z_j the gradient is taken as 0.

Prediction on hyperbolic space, (6.3): f_j(x) = alpha_j dist(x, y_j)^2 on the hyperboloid. For a
test feature w, agent i solves once, on its own N_i records, alpha_i(w) = (K_i + gamma I)^{-1}
K_{i,w} with a Gaussian kernel, and the shard then holds only ``target``
(n, d + 1) and ``weight`` (n,). Deviations: the gradient is -2 alpha_j log_x y_j (the paper prints
+2). The kernel is exp(-|w - w'|^2 / c) with c = (2 v)^2 as printed or 2 v^2, the ridge gamma as
printed or N_i gamma. Because alpha_i depends on every record of agent i, replacing one record's
*feature* changes every f_ij: a mechanism with per-example sensitivity protects the targets (label
privacy), not the features.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PlainSerializer, WrapValidator
from torch import Tensor

from manifed.fields import Positive, Values
from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz, PoincareBall
from manifed.manifolds.of_geoopt import counterpart
from manifed.manifolds.spd import SPD, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.problems.data import ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.problem import (
    FrozenProblem,
    Optimum,
    OriginStart,
    Problem,
    Start,
    check_points,
    lifted,
)
from manifed.problems.statistics import LogSums

_Name = Literal["spd", "spd-log-euclidean", "sphere", "lorentz", "poincare"]
MANIFOLDS: Mapping[_Name, Manifold] = {
    "spd": SPD(),
    "spd-log-euclidean": SPDLogEuclidean(),
    "sphere": Sphere(),
    "lorentz": Lorentz(),
    "poincare": PoincareBall(),
}
_LOG_SUMS = LogSums()
"""One object for all who ask: how its blocks are computed is tried out once for each problem."""


def name_of(manifold: Manifold) -> str:
    """Returns the name of a manifold in a config, or its own name if configs have none."""
    return next(
        (name for name, one in MANIFOLDS.items() if type(one) is type(manifold)), manifold.name
    )


def _read(value: Any, known: Any) -> Manifold:
    """A manifold that a config names, or that is handed over as an object, also geoopt's."""
    return MANIFOLDS[known(value)] if isinstance(value, str) else counterpart(value)


if TYPE_CHECKING:
    _OfManifold = Manifold
else:
    _OfManifold = Annotated[_Name, WrapValidator(_read), PlainSerializer(name_of)]


class _NearPoints(FrozenProblem):
    """A problem of the distances to points of a manifold, an example each."""

    points: ClassVar[str] = "z"
    """The tensor of the points, (..., n, *point)."""

    @property
    def looks_at_all_rows(self) -> bool:
        """Where the manifold's logarithm does."""
        return self.manifold.looks_at_all_pairs

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """Shape of one of the points."""
        return tuple(examples[self.points].shape[-self.manifold.ndim :])

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Random points of the manifold, and normal numbers beside them."""
        made = super().made_up(like, count, generator)
        shape = made[self.points].shape
        points = self.manifold.random(*shape, dtype=torch.float64, generator=generator)
        tensors = {**made.tensors, self.points: points.to(made[self.points].dtype)}
        return Examples(tensors, like.feature_ndim)

    def widened(self, examples: Examples) -> Examples:
        """Points of the manifold, in float64."""
        return super().widened(lifted(self.manifold, self.points, examples))

    def check_records(self, examples: Examples) -> None:
        """Points of the manifold."""
        super().check_records(examples)
        check_points(self.manifold, examples[self.points])

    def metrics(self, x: Tensor, optimum: Optimum, meta: Values) -> dict[str, float]:
        """Distance to the optimum."""
        return {"distance_to_optimum": float(self.manifold.dist(x, optimum.x))}

    def _distances(self, x: Tensor, examples: Examples) -> Tensor:
        return self.manifold.dist(x.unsqueeze(-1 - self.manifold.ndim), examples[self.points])

    def _logs(self, x: Tensor, examples: Examples) -> Tensor:
        return self.manifold.logmap(x.unsqueeze(-1 - self.manifold.ndim), examples[self.points])


class OnPoints(_NearPoints):
    """Base of problems whose examples are points ``z`` (..., n, *point) of a manifold."""

    manifold: _OfManifold = Field(default_factory=SPD)
    """The manifold of the points, with its metric."""

    reference_tolerance = 1e-12

    def model_post_init(self, context: Any) -> None:
        """Refuse a manifold without logarithms."""
        if not self.manifold.has_logmap:
            raise ValueError(f"A Fréchet mean needs a logarithm, and {self.manifold.name} has none")

    @property
    def needs(self) -> ExampleKind:
        """Points of ``manifold``."""
        if isinstance(self.manifold, Sphere):
            return "sphere-points"
        is_hyperbolic = isinstance(self.manifold, Lorentz | PoincareBall)
        return "hyperbolic-pairs" if is_hyperbolic else "spd-matrices"

    def prepare(self, shard: Examples, meta: Values) -> Examples:
        """The points alone, as ``z``."""
        if self.needs != "hyperbolic-pairs":
            return shard
        z = shard["target"]
        if isinstance(self.manifold, PoincareBall):
            z = z[..., 1:] / (1 + z[..., :1])
        return Examples({"z": z}, {"z": 1})

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """The Fréchet mean of at most 64 examples, evenly spaced, to 1e-6."""
        stride = math.ceil(len(examples) / 64)
        points = examples["z"][::stride]
        share = weights[::stride]
        return self.manifold.frechet_mean(points, share, max_iterations=50, tolerance=1e-6)


class FrechetMean(OnPoints):
    """Fréchet mean (PriRFed, section 6.2)."""

    kind: Literal["frechet-mean"] = "frechet-mean"

    @property
    def sufficient_statistic(self) -> Problem | None:
        """The sum of the logarithms where the metric is log-Euclidean; else none is known."""
        return _LOG_SUMS if isinstance(self.manifold, SPDLogEuclidean) else None

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """dist(x, z_j)^2, shape ``(..., n)``."""  # (6.2)
        return self._distances(x, examples).square()

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-2 log_x z_j, shape ``(..., n, *point)``."""
        return -2 * self._logs(x, examples)


class GeometricMedian(OnPoints):
    """Geometric median. Its gradients have norm 1 for any data."""

    kind: Literal["geometric-median"] = "geometric-median"

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """dist(x, z_j), shape ``(..., n)``."""
        return self._distances(x, examples)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-log_x z_j / dist(x, z_j), shape ``(..., n, *point)``."""
        logs = self._logs(x, examples)
        manifold = self.manifold
        norms = manifold.norm(x.unsqueeze(-1 - manifold.ndim), logs)
        is_far = norms > 1e-9  # a nearer record counts as being at x: its direction is rounding
        inverse = torch.where(is_far, 1.0 / torch.where(is_far, norms, 1.0), 0.0)
        return -manifold.expand_scalar(inverse) * logs


# -- prediction on hyperbolic space ----------------------------------------------------------------
class HyperbolicPrediction(_NearPoints):
    """Structured prediction on the hyperbolic plane (PriRFed, section 6.3).

    f_j(x) = alpha_j dist(x, y_j)^2; examples ``target`` (..., n, d + 1), ``weight`` (..., n).
    """

    points = "target"
    manifold: ClassVar[Manifold] = Lorentz()
    needs: ClassVar[ExampleKind] = "hyperbolic-pairs"
    kind: Literal["hyperbolic-prediction"] = "hyperbolic-prediction"
    start: Start = OriginStart()
    bandwidth: Positive = 0.3
    """Width v of the kernel over features."""
    ridge: Positive = 1e-5
    """The gamma that is added to the diagonal of the kernel matrix."""
    kernel_width: Literal["printed", "rbf"] = "printed"
    """"printed": exp(-|w-w'|^2 / (2 v)^2); "rbf": exp(-|w-w'|^2 / (2 v^2))."""
    ridge_rule: Literal["printed", "times-examples"] = "printed"
    """"printed": K + gamma I; "times-examples": K + N_i gamma I."""
    radius: Positive = 4.0
    """The paper's bound M on distances. Nothing is computed from it."""
    are_features_public: bool = False
    """Declares the features public. Privacy then protects the targets only."""

    def mixes_records(self) -> str | None:
        """A feature moves the kernel weights of every example of its agent."""
        if self.are_features_public:
            return None
        return (
            "problem.are_features_public: the kernel weights depend on all features of an agent; "
            "expected true with privacy (a declaration that features are public and targets alone "
            "protected), got false"
        )

    def prepare(self, shard: Examples, meta: Values) -> Examples:
        """Targets and the agent's own kernel weights alpha_i(w) for the query feature."""
        features = shard["feature"]
        identity = torch.eye(len(shard), dtype=torch.float64)
        scale = (4 if self.kernel_width == "printed" else 2) * self.bandwidth**2
        gamma = self.ridge * (1 if self.ridge_rule == "printed" else len(shard))
        gram = torch.exp(-torch.cdist(features, features).square() / scale)
        against = torch.exp(-(features - meta["query_feature"]).square().sum(-1) / scale)
        root = torch.linalg.cholesky(gram + gamma * identity)
        weight = torch.cholesky_solve(against.unsqueeze(-1), root).squeeze(-1)
        return Examples({"target": shard["target"], "weight": weight}, {"target": 1, "weight": 0})

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """alpha_j dist(x, y_j)^2, shape ``(..., n)``."""  # (6.3)
        return examples["weight"] * self._distances(x, examples).square()

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-2 alpha_j log_x y_j, shape ``(..., n, d + 1)``."""
        return -2 * examples["weight"].unsqueeze(-1) * self._logs(x, examples)

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """The target of largest total weight."""
        return examples["target"][(weights * examples["weight"]).argmax()]

    def metrics(self, x: Tensor, optimum: Optimum, meta: Values) -> dict[str, float]:
        """Distance to the optimum and, where the data set knows it, to the true embedding."""
        found = super().metrics(x, optimum, meta)
        if "query_target" in meta:
            found["distance_to_truth"] = float(self.manifold.dist(x, meta["query_target"]))
        return found

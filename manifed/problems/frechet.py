r"""Fréchet mean and geometric median: f_j(x) = dist(x, z_j)^2, or dist(x, z_j), on any manifold.

Huang, Huang, Jawanpuria, Mishra (PriRFed), (6.2), on symmetric positive definite matrices with the
affine-invariant metric. grad f_j(x) = -2 log_x z_j. The base point of the logarithms is handed over
with one singleton dimension, so what the manifold factorises of it is shared by all examples. A
clip measures the logarithms themselves: for a point off the manifold they are not 2 dist(x, z_j)
long.

The geometric median (Fletcher, Venkatasubramanian, Joshi, NeuroImage 2009) has the gradient
-log_x z_j / dist(x, z_j) of norm 1: no record pulls harder than another, so a clip norm of 1 cuts
nothing, whatever the data are. At x = z_j the gradient is taken as 0.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, GetPydanticSchema
from pydantic_core import core_schema
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz, PoincareBall
from manifed.manifolds.spd import SPD, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.problems.data import ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.problem import FrozenProblem, Optimum, Problem, check_points
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
    """What a config calls a manifold; of another one its own name."""
    return next(
        (name for name, one in MANIFOLDS.items() if type(one) is type(manifold)), manifold.name
    )


def _by_name(source: Any, handler: Any) -> core_schema.CoreSchema:
    """The schema of a manifold that a config names, or that is handed over as an object."""

    def read(value: Any, known: Any) -> Manifold:
        return value if isinstance(value, Manifold) else MANIFOLDS[known(value)]

    del source
    return core_schema.no_info_wrap_validator_function(
        read,
        handler(_Name),
        serialization=core_schema.plain_serializer_function_ser_schema(name_of),
    )


_OfManifold = Annotated[Manifold, GetPydanticSchema(_by_name)]


class OnPoints(FrozenProblem):
    """A problem whose examples are points ``z`` (..., n, *point) of a manifold."""

    manifold: _OfManifold = Field(default_factory=lambda: MANIFOLDS["spd"])
    """Where the points lie, and which metric measures between them."""

    reference_tolerance = 1e-12

    def model_post_init(self, context: Any) -> None:
        """Refuse a manifold without logarithms."""
        del context
        if not self.manifold.has_logmap:
            raise ValueError(f"A Fréchet mean needs a logarithm, and {self.manifold.name} has none")

    @property
    def needs(self) -> ExampleKind:
        """Points of ``manifold``."""
        if isinstance(self.manifold, Sphere):
            return "sphere-points"
        is_hyperbolic = isinstance(self.manifold, Lorentz | PoincareBall)
        return "hyperbolic-pairs" if is_hyperbolic else "spd-matrices"

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """The points alone, as ``z``."""
        del meta
        if self.needs != "hyperbolic-pairs":
            return shard
        z = shard["target"]
        if isinstance(self.manifold, PoincareBall):
            z = z[..., 1:] / (1 + z[..., :1])
        return Examples({"z": z}, {"z": 1})

    @property
    def looks_at_all_rows(self) -> bool:
        """Where the manifold's logarithm does."""
        return self.manifold.looks_at_all_pairs

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(examples["z"].shape[-self.manifold.ndim :])

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Random points of the manifold."""
        shape = like["z"].shape[-self.manifold.ndim :]
        z = self.manifold.random(count, *shape, dtype=torch.float64, generator=generator)
        return Examples({"z": z.to(like["z"].dtype)}, {"z": self.manifold.ndim})

    def check_records(self, examples: Examples) -> None:
        """Points of the manifold."""
        super().check_records(examples)
        check_points(self.manifold, examples["z"])

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """The Fréchet mean of at most 64 examples, evenly spaced, to 1e-6."""
        stride = math.ceil(len(examples) / 64)
        points, share = examples["z"][::stride], weights[::stride]
        return self.manifold.frechet_mean(points, share, max_iterations=50, tolerance=1e-6)

    def metrics(self, x: Tensor, optimum: Optimum, meta: Mapping[str, Any]) -> dict[str, float]:
        """Distance to the optimum."""
        del meta
        return {"distance_to_optimum": float(self.manifold.dist(x, optimum.x))}

    def _distances(self, x: Tensor, examples: Examples) -> Tensor:
        return self.manifold.dist(x.unsqueeze(-1 - self.manifold.ndim), examples["z"])

    def _logs(self, x: Tensor, examples: Examples) -> Tensor:
        return self.manifold.logmap(x.unsqueeze(-1 - self.manifold.ndim), examples["z"])


class FrechetMean(OnPoints):
    """The Fréchet mean (PriRFed section 6.2)."""

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
    """The geometric median, whose gradients have norm 1 whatever the data are."""

    kind: Literal["geometric-median"] = "geometric-median"

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """dist(x, z_j), shape ``(..., n)``."""
        return self._distances(x, examples)

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-log_x z_j / dist(x, z_j), shape ``(..., n, *point)``."""
        logs, manifold = self._logs(x, examples), self.manifold
        return directions(logs, manifold.norm(x.unsqueeze(-1 - manifold.ndim), logs), manifold.ndim)


def directions(logs: Tensor, norms: Tensor, ndim: int) -> Tensor:
    """-log_x z_j / dist(x, z_j) of logarithms (..., *point) and their norms (...).

    A record nearer than 1e-9 counts as being at x: its direction is rounding.
    """
    far = norms > 1e-9
    inverse = torch.where(far, 1.0 / torch.where(far, norms, 1.0), 0.0)
    return -inverse.reshape(*inverse.shape, *[1] * ndim) * logs

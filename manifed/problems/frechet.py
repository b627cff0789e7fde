r"""Fréchet mean and geometric median: f_j(x) = dist(x, z_j)^2, or dist(x, z_j), on any manifold.

Huang, Huang, Jawanpuria, Mishra (PriRFed), (6.2), on symmetric positive definite matrices with the
affine-invariant metric. grad f_j(x) = -2 log_x z_j. The base point of the logarithms is handed over
with one singleton dimension, so what the manifold factorises of it is shared by all examples. A
clip measures the logarithms themselves: for a point off the manifold they are not 2 dist(x, z_j)
long.

On SPD matrices, with x = L L^T and whitened examples L^{-1} z_j L^{-T} = V_j diag(lambda_j) V_j^T,

    sum_j w_j log_x z_j = L (sum_j w_j V_j diag(log lambda_j) V_j^T) L^T,

so a weighted sum is one matrix product over all eigenvectors and one congruence, and |grad f_j| =
2 |log lambda_j| comes from the same eigenproblems.

The geometric median (Fletcher, Venkatasubramanian, Joshi, NeuroImage 2009) has the gradient
-log_x z_j / dist(x, z_j) of norm 1: no record pulls harder than another, so a clip norm of 1 cuts
nothing, whatever the data are. At x = z_j the gradient is taken as 0.
"""

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, GetPydanticSchema
from pydantic_core import core_schema
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.poincare import PoincareBall
from manifed.manifolds.spd import SPD, SPDLogCholesky, SPDLogEuclidean
from manifed.manifolds.sphere import Sphere
from manifed.problems.data import ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.problem import FrozenProblem, Gradients, Optimum, Problem, check_points
from manifed.problems.statistics import LogSums

Name = Literal["spd", "spd-log-euclidean", "spd-log-cholesky", "sphere", "lorentz", "poincare"]
MANIFOLDS: Mapping[Name, Manifold] = {
    "spd": SPD(),
    "spd-log-euclidean": SPDLogEuclidean(),
    "spd-log-cholesky": SPDLogCholesky(),
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
    """Of a manifold that a config names, or that is handed over."""

    def read(value: Any, known: Any) -> Manifold:
        return value if isinstance(value, Manifold) else MANIFOLDS[known(value)]

    del source
    return core_schema.no_info_wrap_validator_function(
        read,
        handler(Name),
        serialization=core_schema.plain_serializer_function_ser_schema(name_of),
    )


OfManifold = Annotated[Manifold, GetPydanticSchema(_by_name)]


class OnPoints(FrozenProblem):
    """A problem whose examples are points ``z`` (..., n, *point) of a manifold."""

    manifold: OfManifold = Field(default_factory=lambda: MANIFOLDS["spd"])
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

    def gradients(self, x: Tensor, examples: Examples) -> Gradients:
        """Gradients of `rgrads`; on SPD matrices from one set of eigenproblems."""
        if type(self.manifold) is not SPD:
            return super().gradients(x, examples)
        factor = torch.linalg.cholesky(x)
        values, vectors = torch.linalg.eigh(_whitened(factor, examples["z"]))
        slack = torch.as_tensor(self.manifold.norm_slack(x)).unsqueeze(-1)
        return Eigenlogs(factor, values.log(), vectors, slack)


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


@dataclass(frozen=True)
class Eigenlogs:
    """-2 L V_j diag(log lambda_j) V_j^T L^T; ``slack`` is what rounding adds to norms at x."""

    factor: Tensor
    logs: Tensor
    vectors: Tensor
    slack: Tensor

    @property
    def norms(self) -> Tensor:
        """2 |log lambda_j| and what rounding adds in the metric at x, shape ``(..., n)``."""
        return 2 * torch.linalg.vector_norm(self.logs, dim=-1) * (1.0 + self.slack)

    def sum(self, weights: Tensor) -> Tensor:
        """-2 sum_j weights_j log_x z_j, shape ``(..., m, m)``."""
        *lead, n, m, _ = self.vectors.shape
        spectrum = weights.unsqueeze(-1) * self.logs
        stacked = self.vectors.transpose(-3, -2).reshape(*lead, m, n * m)
        mean = torch.matmul(stacked * spectrum.reshape(*lead, 1, n * m), stacked.mT)
        total = -2 * torch.matmul(torch.matmul(self.factor, mean), self.factor.mT)
        return 0.5 * (total + total.mT)


def _whitened(factor: Tensor, z: Tensor) -> Tensor:
    """L^{-1} z_j L^{-T}, shape ``(..., n, m, m)``, by two products over all examples at once.

    z_j is symmetric, so with C = L^{-T} (z_j C)^T = C^T z_j and both products act from the right.
    """
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    inverse = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False).mT
    n, m = z.shape[-3], z.shape[-1]
    half = torch.matmul(z.reshape(*z.shape[:-3], n * m, m), inverse)
    lead = half.shape[:-2]
    turned = half.reshape(*lead, n, m, m).mT.reshape(*lead, n * m, m)
    return torch.matmul(turned, inverse).reshape(*lead, n, m, m)

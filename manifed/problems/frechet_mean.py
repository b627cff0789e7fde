r"""The Fréchet mean: f_j(x) = dist(x, z_j)^2 with grad f_j(x) = -2 log_x z_j, on any manifold.

Huang, Huang, Jawanpuria, Mishra (PriRFed), (6.2), on symmetric positive definite matrices with the
affine-invariant metric. The base point of the logarithms is handed over with one singleton
dimension, so what the manifold factorises of it (the Cholesky factor, for SPD) is shared by all
examples. A clip measures the logarithms themselves: for a point off the manifold they are not
2 dist(x, z_j) long.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.spd_flat import SPDLogEuclidean
from manifed.problems.base import Examples, Problem
from manifed.problems.finite_sum import Constant, FiniteSum, Optimum, Shards, pool
from manifed.problems.log_sums import LogSums
from manifed.problems.records import check_points

_LOG_SUMS = LogSums()
"""One object for all who ask: how its blocks are computed is tried out once for each problem."""


class FrechetMean(FiniteSum):
    """f_j(x) = dist(x, z_j)^2; examples ``z`` of shape (..., n, *point).

    ``min_curvature`` is a lower bound on the sectional curvature, for ``smoothness`` only.
    """

    def __init__(self, manifold: Manifold, min_curvature: float = -1.0) -> None:
        if not manifold.has_logmap:
            raise ValueError(f"A Fréchet mean needs a logarithm, and {manifold.name} has none")
        self.manifold = manifold
        self.looks_at_all_rows = manifold.looks_at_all_pairs
        self.min_curvature = min_curvature

    @property
    def sufficient_statistic(self) -> Problem | None:
        """The sum of the logarithms where the metric is log-Euclidean; else none is known."""
        return _LOG_SUMS if isinstance(self.manifold, SPDLogEuclidean) else None

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
        check_points(self.manifold, examples["z"])

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """dist(x, z_j)^2, shape ``(..., n)``."""  # (6.2)
        return self.manifold.dist(self._base(x), examples["z"]).square()

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-2 log_x z_j, shape ``(..., n, *point)``."""
        return -2 * self.manifold.logmap(self._base(x), examples["z"])

    def optimum(self, shards: Shards, weights: Tensor | None = None) -> Optimum:
        """The weighted Fréchet mean: Karcher flow on a sample, then steepest descent on all."""
        examples, each = pool(shards, weights)
        start = self.reference_start(examples, each)
        found = self.descend_from(start, shards, weights, tolerance=1e-12)
        return Optimum(found.x, found.value, found.gradient_norm)

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """The Fréchet mean of at most 64 examples, evenly spaced, to 1e-6."""
        stride = math.ceil(len(examples) / 64)
        points, share = examples["z"][::stride], weights[::stride]
        return self.manifold.frechet_mean(points, share, max_iterations=50, tolerance=1e-6)

    def metrics(self, x: Tensor, optimum: Optimum, meta: Mapping[str, Any]) -> dict[str, float]:
        """Distance to the optimum."""
        del meta
        return {"distance_to_optimum": float(self.manifold.dist(x, optimum.x))}

    def lipschitz(self, shards: Shards) -> Constant:
        """2 D, with D twice the largest distance of an example from the first one.

        Holds for x in the ball of that radius around the first example, hence wherever the iterates
        stay in the data's neighbourhood (Assumption 5.3).
        """
        return Constant(2 * self._diameter(shards), "PriRFed section 6.2, Assumption 5.3")

    def smoothness(self, shards: Shards) -> Constant:
        """2 zeta(D): the Hessian of dist^2 lies between 2 and 2 zeta."""
        reach = math.sqrt(max(0.0, -self.min_curvature)) * self._diameter(shards)
        zeta = reach / math.tanh(reach) if reach > 0 else 1.0  # (5.1)
        return Constant(2 * zeta, "PriRFed (5.1) and section 6.2")

    def _diameter(self, shards: Shards) -> float:
        examples, _ = pool(shards)
        points = examples["z"]
        first = points.narrow(0, 0, 1)
        return 2 * float(self.manifold.dist(first, points).max())

    def _base(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1 - self.manifold.ndim)

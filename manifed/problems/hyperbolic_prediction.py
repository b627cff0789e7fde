r"""Structured prediction on hyperbolic space: f_j(x) = alpha_j dist(x, y_j)^2 on the hyperboloid.

Huang, Huang, Jawanpuria, Mishra (PriRFed), (6.3). For a test feature w, agent i solves once, on
its own N_i records, alpha_i(w) = (K_i + gamma I)^{-1} K_{i,w} with a Gaussian kernel;
``kernel_weights`` does it, and the shard then holds only ``target`` (n, d + 1) and ``weight`` (n,).

Deviations: the gradient is -2 alpha_j log_x y_j (the paper prints +2). The kernel is
exp(-|w - w'|^2 / c) with c = (2 v)^2 as printed or 2 v^2, the ridge gamma as printed or N_i gamma.
Because alpha_i depends on every record of agent i, replacing one record's *feature* changes every
f_ij: a mechanism with per-example sensitivity protects the targets (label privacy), not the
features.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from manifed.manifolds.hyperbolic import Lorentz
from manifed.problems.base import Examples
from manifed.problems.finite_sum import Constant, FiniteSum, Optimum, Shards
from manifed.problems.records import check_points

KernelWidth = Literal["printed", "rbf"]
Ridge = Literal["printed", "times-examples"]


def kernel_weights(
    features: Tensor,
    query: Tensor,
    *,
    bandwidth: float = 0.3,
    ridge: float = 1e-5,
    kernel_width: KernelWidth = "printed",
    ridge_rule: Ridge = "printed",
) -> Tensor:
    """alpha(w) = (K + gamma I)^{-1} K_w, shape (n,), of features (n, r) for the query (r,)."""
    scale = 4 * bandwidth**2 if kernel_width == "printed" else 2 * bandwidth**2
    gamma = ridge if ridge_rule == "printed" else ridge * features.shape[0]
    gram = torch.exp(-torch.cdist(features, features).square() / scale)
    against = torch.exp(-(features - query).square().sum(-1) / scale)
    system = gram + gamma * torch.eye(features.shape[0], dtype=features.dtype)
    return torch.cholesky_solve(against.unsqueeze(-1), torch.linalg.cholesky(system)).squeeze(-1)


class HyperbolicPrediction(FiniteSum):
    """f_j(x) = alpha_j dist(x, y_j)^2; examples ``target`` (..., n, d + 1), ``weight`` (..., n).

    ``radius`` is the paper's M: a bound on the distance between iterates and targets.
    """

    def __init__(self, radius: float = 4.0) -> None:
        self.radius = radius
        self.manifold = Lorentz()

    def point_shape(self, examples: Examples) -> tuple[int, ...]:
        """(d + 1,)."""
        return (examples["target"].shape[-1],)

    def made_up(self, like: Examples, count: int, generator: torch.Generator) -> Examples:
        """Random targets with normal weights."""
        made = super().made_up(like, count, generator).tensors
        shape = made["target"].shape
        target = self.manifold.random(*shape, dtype=torch.float64, generator=generator)
        return Examples({**made, "target": target.to(made["target"].dtype)}, like.feature_ndim)

    def check_records(self, examples: Examples) -> None:
        """Targets on the hyperboloid."""
        check_points(self.manifold, examples["target"])

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """alpha_j dist(x, y_j)^2, shape ``(..., n)``."""  # (6.3)
        return examples["weight"] * self._distances(x, examples).square()

    def rgrads(self, x: Tensor, examples: Examples) -> Tensor:
        """-2 alpha_j log_x y_j, shape ``(..., n, d + 1)``."""
        logs = self.manifold.logmap(x.unsqueeze(-2), examples["target"])
        return -2 * examples["weight"].unsqueeze(-1) * logs

    def reference_start(self, examples: Examples, weights: Tensor) -> Tensor:
        """The target of largest total weight."""
        return examples["target"][(weights * examples["weight"]).argmax()]

    def metrics(self, x: Tensor, optimum: Optimum, meta: Mapping[str, Any]) -> dict[str, float]:
        """Distance to the optimum and, where the data set knows it, to the true embedding."""
        found = {"distance_to_optimum": float(self.manifold.dist(x, optimum.x))}
        if "query_target" in meta:
            found["distance_to_truth"] = float(self.manifold.dist(x, meta["query_target"]))
        return found

    def lipschitz(self, shards: Shards) -> Constant:
        """2 max|alpha| M (the settings of section 6.3 use max|alpha| M, half of it)."""
        return Constant(2 * self._largest_weight(shards) * self.radius, "PriRFed section 6.3")

    def smoothness(self, shards: Shards) -> Constant:
        """2 max|alpha| M / tanh M (the paper prints half of it)."""
        zeta = self.radius / math.tanh(self.radius)
        return Constant(2 * self._largest_weight(shards) * zeta, "PriRFed section 6.3, corrected")

    def _distances(self, x: Tensor, examples: Examples) -> Tensor:
        return self.manifold.dist(x.unsqueeze(-2), examples["target"])

    @staticmethod
    def _largest_weight(shards: Shards) -> float:
        return max(float(shard["weight"].abs().max()) for shard in shards)

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

# pyright: reportIncompatibleVariableOverride=false
# (what any problem has as an attribute, the class of a frozen one fixes or computes)

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import Lorentz
from manifed.problems.data import ExampleKind
from manifed.problems.examples import Examples
from manifed.problems.problem import FrozenProblem, Optimum, OriginStart, Start, check_points

_KernelWidth = Literal["printed", "rbf"]
_Ridge = Literal["printed", "times-examples"]


def kernel_weights(
    features: Tensor,
    query: Tensor,
    *,
    bandwidth: float = 0.3,
    ridge: float = 1e-5,
    kernel_width: _KernelWidth = "printed",
    ridge_rule: _Ridge = "printed",
) -> Tensor:
    """alpha(w) = (K + gamma I)^{-1} K_w, shape (n,), of features (n, r) for the query (r,)."""
    scale = 4 * bandwidth**2 if kernel_width == "printed" else 2 * bandwidth**2
    gamma = ridge if ridge_rule == "printed" else ridge * features.shape[0]
    gram = torch.exp(-torch.cdist(features, features).square() / scale)
    against = torch.exp(-(features - query).square().sum(-1) / scale)
    system = gram + gamma * torch.eye(features.shape[0], dtype=features.dtype)
    return torch.cholesky_solve(against.unsqueeze(-1), torch.linalg.cholesky(system)).squeeze(-1)


class HyperbolicPrediction(FrozenProblem):
    """Structured prediction on the hyperbolic plane (PriRFed section 6.3).

    f_j(x) = alpha_j dist(x, y_j)^2; examples ``target`` (..., n, d + 1), ``weight`` (..., n).
    """

    manifold: ClassVar[Manifold] = Lorentz()
    needs: ClassVar[ExampleKind] = "hyperbolic-pairs"
    kind: Literal["hyperbolic-prediction"] = "hyperbolic-prediction"
    start: Start = OriginStart()
    bandwidth: float = Field(default=0.3, gt=0)
    """v, the width of the kernel over features."""
    ridge: float = Field(default=1e-5, gt=0)
    """gamma, added to the diagonal of the kernel matrix."""
    kernel_width: _KernelWidth = "printed"
    """"printed": exp(-|w-w'|^2 / (2 v)^2); "rbf": exp(-|w-w'|^2 / (2 v^2))."""
    ridge_rule: _Ridge = "printed"
    """"printed": K + gamma I; "times-examples": K + N_i gamma I."""
    radius: float = Field(default=4.0, gt=0)
    """The paper's M, of its constants L_f and L_g; nothing is computed from it."""
    are_features_public: bool = False
    """Declares the features public: the weights of an agent depend on all of its features, so what
    privacy protects is the targets alone (label privacy)."""

    def mixes_records(self) -> str | None:
        """A feature moves the kernel weights of every example of its agent."""
        if self.are_features_public:
            return None
        return (
            "problem.are_features_public: the kernel weights depend on all features of an agent; "
            "expected true with privacy (a declaration that features are public and targets alone "
            "protected), got false"
        )

    def prepare(self, shard: Examples, meta: Mapping[str, Any]) -> Examples:
        """Targets and the agent's own kernel weights alpha_i(w) for the query feature."""
        weight = kernel_weights(
            shard["feature"],
            meta["query_feature"],
            bandwidth=self.bandwidth,
            ridge=self.ridge,
            kernel_width=self.kernel_width,
            ridge_rule=self.ridge_rule,
        )
        return Examples({"target": shard["target"], "weight": weight}, {"target": 1, "weight": 0})

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
        super().check_records(examples)
        check_points(self.manifold, examples["target"])

    def losses(self, x: Tensor, examples: Examples) -> Tensor:
        """alpha_j dist(x, y_j)^2, shape ``(..., n)``."""  # (6.3)
        distances = self.manifold.dist(x.unsqueeze(-2), examples["target"])
        return examples["weight"] * distances.square()

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

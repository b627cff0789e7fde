"""The simulation oracle: cost, gap and gradient on all data. No deployment could compute these.

They are diagnostics of a seeded simulation, never part of a release: `oracle_is_on` says when they
are computed, and the privacy statement says what they would do to a release.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from manifed.experiment.schema import Experiment
from manifed.problems.base import Examples
from manifed.problems.finite_sum import FiniteSum, Optimum


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models against a reference optimum that is computed once, on first use."""

    problem: FiniteSum
    shards: Sequence[Examples]
    weights: Tensor
    meta: Mapping[str, Any]

    @cached_property
    def optimum(self) -> Optimum:
        """The reference solution."""
        return self.problem.optimum(self.shards, self.weights)

    def row(self, x: Tensor) -> dict[str, float]:
        """cost, cost_gap, relative_cost_gap, gradient_norm and the problem's own metrics.

        The relative gap is (f(x) - f*) / |f*|, and f(x) - f* where f* = 0.
        """
        x = x.to("cpu")
        cost = float(self.problem.objective(x, self.shards, self.weights))
        gradient_norm = float(self.problem.gradient_norm(x, self.shards, self.weights))
        gap = cost - self.optimum.value
        scale = abs(self.optimum.value) or 1.0
        row = {
            "cost": cost,
            "cost_gap": gap,
            "relative_cost_gap": gap / scale,
            "gradient_norm": gradient_norm,
        }
        return row | self.problem.metrics(x, self.optimum, self.meta)


def oracle_is_on(config: Experiment, *, is_deployment: bool = False) -> bool:
    """Whether a run may print numbers that are computed on all data without noise.

    Guarantees: with noise keyed by the operating system, and in a deployment, only if the config
    says ``evaluation.is_simulated_oracle = true``.
    """
    evaluation, privacy = config.evaluation, config.privacy
    if not evaluation.is_enabled:
        return False
    if evaluation.is_simulated_oracle is not None:
        return evaluation.is_simulated_oracle
    is_release = privacy.kind != "none" and privacy.noise_source == "os"
    return not (is_release or is_deployment or config.engine.kind == "deployment")


def client_shares(sizes: Sequence[int], rule: str) -> Tensor:
    """p_i: N_i / sum_l N_l, or 1/n under uniform weights."""
    weights = torch.tensor(sizes, dtype=torch.float64)
    if rule == "uniform":
        weights = torch.ones_like(weights)
    return weights / weights.sum()

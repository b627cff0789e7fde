"""Rivals of logistic regression: objective perturbation, and Newton's method with noise.

Noise is that of every client, as with other rivals. Rows are clipped to a quantile of their norms.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.leaderboard.rivals import Pooled
from benchmarks.leaderboard.tasks import DELTA
from manifed.problems.linear import Logistic


def _clipped(data: Pooled, quantile: float) -> tuple[Tensor, float]:
    """Rows times their labels, (n, d), none longer than a quantile of all, and that length."""
    rows = data.examples["feature"] * data.examples["label"].unsqueeze(-1)
    norms = rows.norm(dim=-1)
    longest = float(torch.quantile(norms, quantile))
    return rows * (longest / norms.clamp_min(1e-300)).clamp_max(1.0).unsqueeze(-1), longest


def objective_perturbation(
    data: Pooled, epsilon: float, ridge: float, quantile: float, seed: int
) -> float:
    """The minimum of the loss with a random slope (Kifer, Smith, Thakurta 2012, Algorithm 1).

    ``ridge`` is at least 1 of the least that the proof needs. The minimum is found exactly, as if
    no step on the way to it showed a gradient.
    """
    rows, longest = _clipped(data, quantile)
    drawn = torch.randn(
        data.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    deviation = longest * math.sqrt(8 * math.log(2 / DELTA) + 4 * epsilon) / epsilon
    slope = deviation * math.sqrt(data.clients) * drawn / data.count
    least = longest**2 / 2 / epsilon / data.count  # 2 lambda / epsilon, lambda = longest^2 / 4
    x = data.start.clone().requires_grad_()
    descent = torch.optim.LBFGS([x], max_iter=500, line_search_fn="strong_wolfe",
                                tolerance_grad=1e-10, tolerance_change=1e-14)  # fmt: skip

    def loss() -> Tensor:
        descent.zero_grad()
        value = softplus(-rows @ x).mean() + ridge * least / 2 * x @ x + slope @ x
        value.backward()
        return value

    descent.step(loss)
    return float(data.shares(x.detach().unsqueeze(0)))


def newton(
    data: Pooled, epsilon: float, steps: int, ridge: float, quantile: float, seed: int
) -> float:
    """Steps by a noised Hessian, half of the budget (Ganesh, Haghifam, Steinke, Thakurta 2023)."""
    rows, longest = _clipped(data, quantile)
    generator = torch.Generator().manual_seed(seed)
    noise = data.deviation(epsilon) * math.sqrt(2 * steps)
    bound = longest**2 / 4
    d = rows.shape[1]
    added = ridge * bound * noise * math.sqrt(d)
    x = data.start.clone()
    for _ in range(steps):
        share = torch.sigmoid(-rows @ x)
        drawn = torch.randn(d, generator=generator, dtype=torch.float64)
        slope = -(share @ rows) / data.count + longest * noise * drawn
        bent = (rows * (share * (1 - share)).unsqueeze(-1)).mT @ rows / data.count
        square = torch.randn(d, d, generator=generator, dtype=torch.float64)
        values, axes = torch.linalg.eigh(bent + bound * noise * (square + square.mT) / 2)
        x = x - axes @ (axes.mT @ slope / (values.clamp_min(0.0) + added))
    return float(data.shares(x.unsqueeze(0)))


def releases(data: Pooled) -> dict[str, dict[str, Any]]:
    """What the two may choose where the loss is logistic, by what it is called."""
    if not isinstance(data.problem, Logistic):
        return {}
    quantiles = (0.5, 0.9, 1.0)
    return {
        "objective perturbation": {
            f"ridge {r:g}, rows clipped at quantile {q:g}": (objective_perturbation, (r, q))
            for r in (1.0, 3.0, 10.0, 30.0, 100.0)
            for q in quantiles
        },
        "DP-Newton": {
            f"{t} steps, ridge {r:g}, rows clipped at quantile {q:g}": (newton, (t, r, q))
            for t in (1, 3, 6, 12)
            for r in (0.3, 1.0, 3.0, 10.0)
            for q in quantiles
        },
    }

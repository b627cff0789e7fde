"""Check 11: Figure 2, more agents at a fixed total, and DP-RSVRG against DP-RSGD."""

import os
from itertools import pairwise

from reproduction.findings import Finding, verdict_of
from reproduction.trials import mean, trials

SEEDS = (0, 1)
DIGITS = (3, 6, 12)
MNIST = (8, 16)
SHORT = {"digits": ("federation.num_rounds=60",), "mnist": ("federation.num_rounds=30",)}


def cost(name: str, *sets: str) -> float:
    """Mean cost of the last measurements."""
    return mean([run.tail("cost", 4) for run in trials(name, SEEDS, "evaluation.every=5", *sets)])


def by_clients(data: str, counts: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Final cost of both algorithms for each number of agents, as printed."""
    return {
        algorithm: {str(n): cost(f"000_2_{data}-{algorithm}-N-{n}", *SHORT[data]) for n in counts}
        for algorithm in ("rsgd", "rsvrg")
    }


def improves(costs: dict[str, float]) -> bool:
    """Whether the cost falls from each number of agents to the next."""
    values = list(costs.values())
    return all(b < a for a, b in pairwise(values))


def speed_at_epsilon_one() -> dict[str, float]:
    """Mean cost after five rounds at local epsilon 1, N = 3."""
    return {
        algorithm: mean(
            [run.at("cost", 5) for run in trials(f"000_2_regime_eps-1-{algorithm}-N-3", SEEDS)]
        )
        for algorithm in ("rsgd", "rsvrg")
    }


def check_11() -> Finding:
    """Larger N at a fixed total is worse; with sigma held fixed it can be better."""
    printed = {"digits": by_clients("digits", DIGITS)}
    if os.environ.get("MANIFED_DATA"):
        printed["mnist"] = by_clients("mnist", MNIST)
    fixed = {str(n): cost(f"000_2_regime_fixed-noise-N-{n}") for n in DIGITS}
    speed = speed_at_epsilon_one()
    better = all(improves(costs) for both in printed.values() for costs in both.values())
    return Finding(
        "11",
        'Figure 2: more agents at a fixed total are better, and "DP-RSVRG is faster"',
        verdict_of(better, in_regime=improves(fixed) and speed["rsvrg"] < speed["rsgd"]),
        {"final cost": printed, "sigma fixed": fixed, "epsilon 1, t=5": speed},
        SEEDS,
        "regimes: sigma held fixed while N grows (alpha, m by Theorem 5.6); epsilon = 1 for speed",
    )

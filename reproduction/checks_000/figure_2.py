"""Check 11: Figure 2, more agents at a fixed total, and DP-RSVRG against DP-RSGD."""

import os
from itertools import pairwise

from reproduction.findings import Finding
from reproduction.trials import averaged

SEEDS = (0, 1)
DIGITS = (3, 6, 12)
BOTH = ("rsgd", "rsvrg")


def costs(stem: str, counts: tuple[int, ...], *sets: str) -> dict[str, float]:
    """Mean cost of the last measurements for each number of agents."""
    return {
        str(n): averaged(f"{stem}-N-{n}", SEEDS, "evaluation.every=5", *sets).tail("cost", 4)
        for n in counts
    }


def by_clients(data: str, counts: tuple[int, ...], rounds: int) -> dict[str, dict[str, float]]:
    """Final cost of both algorithms for each number of agents, as printed."""
    return {a: costs(f"000_2_{data}-{a}", counts, f"federation.num_rounds={rounds}") for a in BOTH}


def improves(costs: dict[str, float]) -> bool:
    """Whether the cost falls from each number of agents to the next."""
    return all(b < a for a, b in pairwise(costs.values()))


def check_11() -> Finding:
    """Larger N at a fixed total is worse; with sigma held fixed it can be better."""
    printed = {"digits": by_clients("digits", DIGITS, 60)}
    if os.environ.get("MANIFED_DATA"):
        printed["mnist"] = by_clients("mnist", (8, 16), 30)
    fixed = costs("000_2_regime_fixed-noise", DIGITS)
    speed = {a: averaged(f"000_2_regime_eps-1-{a}-N-3", SEEDS).at("cost", 5) for a in BOTH}
    return Finding(
        'Figure 2: more agents at a fixed total are better, and "DP-RSVRG is faster"',
        all(improves(costs) for both in printed.values() for costs in both.values()),
        {"final cost": printed, "sigma fixed": fixed, "epsilon 1, t=5": speed},
        SEEDS,
        "regimes: sigma held fixed while N grows (alpha, m by Theorem 5.6); epsilon = 1 for speed",
        in_regime=improves(fixed) and speed["rsvrg"] < speed["rsgd"],
    )

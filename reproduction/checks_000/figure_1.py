"""Check 4: Figure 1, larger epsilon gives a better cost and a smaller gradient norm."""

from itertools import pairwise

from reproduction.findings import Finding, verdict_of
from reproduction.trials import mean, trials

EPSILONS = ("0.08", "0.15", "0.3")
SEEDS = {1: (0, 1, 2), 2: (0, 1, 2), 3: (0, 1)}
LITERAL = {1: "000_1_col1", 2: "000_1_col2", 3: "000_1_col3"}
REGIME = {
    1: "000_1_regime_col1-shared",
    2: "000_1_regime_col2-rows-2000",
    3: "000_1_regime_col3-rows-2000",
}
ROUNDS = {1: 200, 2: 200, 3: 40}


def finals(stem: str, column: int) -> dict[str, list[float]]:
    """Relative gap and gradient norm, mean of the last measurements, for each epsilon."""
    sets = (f"federation.num_rounds={ROUNDS[column]}", "evaluation.every=5")
    gaps = []
    gradients = []
    for epsilon in EPSILONS:
        runs = trials(f"{stem}-eps-{epsilon}", SEEDS[column], *sets)
        gaps.append(mean([run.tail("relative_cost_gap", 3) for run in runs]))
        gradients.append(mean([run.tail("gradient_norm", 3) for run in runs]))
    return {"relative gap": gaps, "gradient norm": gradients}


def falls(values: list[float]) -> bool:
    """Whether each value is at least 5 % below the one before."""
    return all(b < 0.95 * a for a, b in pairwise(values))


def check_4() -> Finding:
    """Three columns, literally and in the regime where the noise is below the gradient."""
    literal = {column: finals(stem, column) for column, stem in LITERAL.items()}
    regime = {column: finals(stem, column) for column, stem in REGIME.items()}
    as_printed = all(falls(values) for both in literal.values() for values in both.values())
    in_regime = all(falls(v["relative gap"]) for v in regime.values())
    return Finding(
        "4",
        "Figure 1: larger epsilon, better cost and smaller gradient (epsilon = 0.08, 0.15, 0.3)",
        verdict_of(as_printed, in_regime=in_regime),
        {
            "literal": {f"column {c}": v for c, v in literal.items()},
            "regime": {f"column {c}": v for c, v in regime.items()},
        },
        SEEDS[1],
        "regime: one basis for all agents, N_i = 2000 in columns 2 and 3; column 3 on two seeds",
    )

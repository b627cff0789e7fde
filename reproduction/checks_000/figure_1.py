"""Check 4: Figure 1, larger epsilon gives a better cost and a smaller gradient norm."""

from itertools import pairwise

from reproduction.findings import Finding
from reproduction.trials import averaged

SEEDS = (0, 1, 2)
LITERAL = ("000_1_col1", "000_1_col2", "000_1_col3")
REGIME = (
    "000_1_regime_col1-shared",
    "000_1_regime_col2-rows-2000",
    "000_1_regime_col3-rows-2000",
)


def finals(stems: tuple[str, ...]) -> dict[str, dict[str, list[float]]]:
    """By column relative gap and gradient norm, means of the last measurements by epsilon."""
    found = {}
    for column, stem in enumerate(stems, 1):
        runs = [
            averaged(
                f"{stem}-eps-{epsilon}",
                SEEDS[:2] if column == 3 else SEEDS,
                f"federation.num_rounds={40 if column == 3 else 200}",
                "evaluation.every=5",
            )
            for epsilon in ("0.08", "0.15", "0.3")
        ]
        found[f"column {column}"] = {
            "relative gap": [run.tail("relative_cost_gap", 3) for run in runs],
            "gradient norm": [run.tail("gradient_norm", 3) for run in runs],
        }
    return found


def falls(values: list[float]) -> bool:
    """Whether each value is at least 5 % below the one before."""
    return all(b < 0.95 * a for a, b in pairwise(values))


def check_4() -> Finding:
    """Three columns, literally and in the regime where the noise is below the gradient."""
    literal = finals(LITERAL)
    regime = finals(REGIME)
    return Finding(
        "Figure 1: larger epsilon, better cost and smaller gradient (epsilon = 0.08, 0.15, 0.3)",
        all(falls(values) for both in literal.values() for values in both.values()),
        {"literal": literal, "regime": regime},
        SEEDS,
        "regime: one basis for all agents, N_i = 2000 in columns 2 and 3; column 3 on two seeds",
        in_regime=all(falls(both["relative gap"]) for both in regime.values()),
    )

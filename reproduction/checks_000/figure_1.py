"""Check 4: Figure 1, larger epsilon gives a better cost and a smaller gradient norm."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from reproduction.findings import Finding, Part
from reproduction.trials import trial

EPSILONS = ("0.08", "0.15", "0.3")
WAYS = {
    "as printed": ("000_1_col1", "000_1_col2", "000_1_col3"),
    "regime": (
        "000_1_regime_col1-shared",
        "000_1_regime_col2-rows-2000",
        "000_1_regime_col3-rows-2000",
    ),
}
MEASURED = {"cost gap": "relative_cost_gap", "gradient norm": "gradient_norm"}
Ends = Mapping[str, Sequence[float]]
"""By what is measured, its last values for each of ``EPSILONS``."""


def ends(stem: str, rounds: int, seed: int) -> dict[str, list[float]]:
    """Means of the last three measurements."""
    sets = (f"federation.num_rounds={rounds}", "evaluation.every=5")
    runs = [trial(f"{stem}-eps-{epsilon}", seed, *sets)[0] for epsilon in EPSILONS]
    return {what: [run.tail(key, 3) for run in runs] for what, key in MEASURED.items()}


def better_parts(name: str, each: Sequence[Ends]) -> list[Part]:
    """What is left at each epsilon over that at the next larger one, by seed."""
    return [
        Part(
            f"{name}: {what} at epsilon {small} over that at {large}",
            [one[what][at] / one[what][at + 1] for one in each],
            least=1.0,
        )
        for what in MEASURED
        for at, (small, large) in enumerate(pairwise(EPSILONS))
    ]


def check_4(seeds: Sequence[int] = range(10)) -> Finding:
    """Three columns, literally and in the regime where the noise is below the gradient."""
    parts = []
    for way, stems in WAYS.items():
        for column, stem in enumerate(stems, 1):
            rounds = 40 if column == 3 else 200
            each = [ends(stem, rounds, seed) for seed in seeds]
            parts += better_parts(f"{way}, column {column}", each)
    return Finding.judged(
        "Figure 1: larger epsilon, better cost and smaller gradient (epsilon = 0.08, 0.15, 0.3)",
        parts,
        {},
        seeds,
        "Regime (ours): one basis for all agents, N_i = 2000 in columns 2 and 3.",
    )

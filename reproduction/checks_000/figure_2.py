"""Check 11: Figure 2, more agents at a fixed total, and DP-RSVRG against DP-RSGD."""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise

from reproduction.findings import Finding, Part
from reproduction.trials import trial

DIGITS = (3, 6, 12)
BOTH = ("rsgd", "rsvrg")
Costs = Mapping[int, float]


def costs(stem: str, counts: Sequence[int], seed: int, *sets: str) -> dict[int, float]:
    """The mean of the last four costs for each number of agents."""
    return {
        n: trial(f"{stem}-N-{n}", seed, "evaluation.every=5", *sets)[0].tail("cost", 4)
        for n in counts
    }


def more_parts(name: str, each: Sequence[Costs]) -> list[Part]:
    """Costs for each number of agents less those for the next smaller one, by seed."""
    return [
        Part(
            f"{name}: cost with {many} agents less that with {few}",
            [one[many] - one[few] for one in each],
            most=0.0,
        )
        for few, many in pairwise(each[0])
    ]


def sooner_part(each: Sequence[Mapping[str, float]]) -> Part:
    """Costs after five rounds by algorithm, by seed."""
    ahead = [one["rsvrg"] - one["rsgd"] for one in each]
    return Part("epsilon 1, after 5 rounds: cost of DP-RSVRG less DP-RSGD's", ahead, most=0.0)


def check_11(seeds: Sequence[int] = range(10)) -> Finding:
    """Larger N at a fixed total is worse; with sigma held fixed it can be better."""
    sizes = {"digits": (DIGITS, 60)}
    if os.environ.get("MANIFED_DATA"):
        sizes["mnist"] = ((8, 16), 30)
    parts = []
    for data, (counts, rounds) in sizes.items():
        for a in BOTH:
            sets = f"federation.num_rounds={rounds}"
            found = [costs(f"000_2_{data}-{a}", counts, seed, sets) for seed in seeds]
            parts += more_parts(f"{data}, DP-{a.upper()}", found)
    fixed = [costs("000_2_regime_fixed-noise", DIGITS, seed) for seed in seeds]
    speed = [
        {a: trial(f"000_2_regime_eps-1-{a}-N-3", seed)[0].at("cost", 5) for a in BOTH}
        for seed in seeds
    ]
    return Finding.judged(
        'Figure 2: more agents at a fixed total are better, and "DP-RSVRG is faster"',
        [*parts, *more_parts("sigma held fixed (ours)", fixed), sooner_part(speed)],
        {},
        seeds,
        "Sigma held fixed while N grows: alpha and m by Theorem 5.6. MNIST's test images.",
    )

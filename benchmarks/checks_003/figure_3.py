"""H17 to H20: Figure 3, DP-RSVRG against DP-RGD and DP-RSGD, on the stand-ins of its data.

Every curve is a config, configs/experiments/003_3*; "scount" is Algorithm 11 with the noise that
the public code's count gives (H13), "reuse" the variant of which that count is true.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from app.assembly import load_shards
from benchmarks.checks_003.central import Curve, experiment, solve
from benchmarks.checks_003.finding import Finding, Verdict, verdict_of

Rows = dict[str, dict[str, float]]
PRINTED = ("rgd", "rsgd", "rsvrg")


@lru_cache(maxsize=64)
def curve(panel: str, algorithm: str, seeds: tuple[int, ...]) -> Curve:
    """One curve of a panel (for example "3c_tree_eps0.1")."""
    return solve(experiment(f"003_{panel}_{algorithm}"), seeds)


def finals(panel: str, algorithms: Sequence[str], seeds: tuple[int, ...]) -> dict[str, float]:
    """Mean excess risk at the end of every curve."""
    return {name: curve(panel, name, seeds).final for name in algorithms}


def is_best(row: dict[str, float], name: str, among: Sequence[str]) -> bool:
    """Whether ``name`` ends strictly below all of ``among``."""
    return all(row[name] < row[other] for other in among if other != name)


def check_h17() -> Finding:
    """Figure 3b: a leading eigenvector on the sphere, n = 6903, d = 784."""
    seeds, rows = (0, 1, 2), Rows()
    for epsilon in (0.1, 0.5):
        panel = f"3b_spiked_eps{epsilon}"
        rows[f"epsilon {epsilon}"] = finals(panel, (*PRINTED, "scount"), seeds)
    alias = experiment("003_3b_spiked_eps0.1_rgd", "training.step_size=3.0", "name=alias")
    config = experiment("003_3b_spiked_eps0.1_rgd")
    stddev = curve("3b_spiked_eps0.1", "rgd", seeds).noise_stddev
    turn = stddev * math.sqrt(783)
    numbers = {
        "final excess risk (start 52)": rows,
        "DP-RGD, epsilon 0.1, step size 3: excess risk, noise of one step in units of pi": [
            solve(alias, seeds).final, 3.0 * turn / math.pi
        ],
        "the same at the step size reported": [
            rows["epsilon 0.1"]["rgd"], config.training.step_size * turn / math.pi
        ],
    }  # fmt: skip
    return Finding(
        "H17",
        "Figure 3b (MNIST, sphere): DP-RSVRG consistently outperforms DP-RGD and DP-RSGD",
        ordering(rows),
        numbers,
        seeds=seeds,
    )


def ordering(rows: Rows) -> Verdict:
    """Whether RSVRG is best at every epsilon; in a regime if at some, or by the public count."""
    printed = [is_best(row, "rsvrg", PRINTED) for row in rows.values()]
    counted = [is_best(row, "scount", ("rgd", "rsgd")) for row in rows.values()]
    return verdict_of(as_printed=all(printed), in_regime=any(printed) or all(counted))


def check_h18() -> Finding:
    """Figure 3a, row 1: a Frechet mean on SPD(11), n = 10704."""
    seeds = (0, 1)
    rows = {"epsilon 0.1": finals("3a_lognormal_eps0.1", (*PRINTED, "scount"), seeds)}
    return Finding(
        "H18",
        "Figure 3a (PathMNIST, SPD(11)): DP-RSVRG consistently better than both",
        ordering(rows),
        {"final excess risk": rows},
        seeds=seeds,
    )


def check_h19() -> Finding:
    """Figure 3c: a Frechet mean on the Poincare ball, n = 1180."""
    seeds = (0, 1, 2, 3, 4)
    rows = {
        f"epsilon {epsilon}": finals(f"3c_tree_eps{epsilon}", (*PRINTED, "scount", "reuse"), seeds)
        for epsilon in (0.1, 0.3, 0.5)
    }
    best = all(is_best(row, "rgd", PRINTED) for row in rows.values())
    second = [row["rsvrg"] < row["rsgd"] for row in rows.values()]
    return Finding(
        "H19",
        "Figure 3c (Poincare embeddings): DP-RGD best, DP-RSVRG better than DP-RSGD",
        verdict_of(as_printed=best and all(second), in_regime=best and any(second)),
        {"final excess risk": rows},
        seeds=seeds,
    )


def check_h20() -> Finding:
    """The first IFO calls: one epoch of DP-RSVRG (1.2 n) against one step of DP-RGD (n)."""
    rows: dict[str, list[float]] = {}
    cases = (("3c_tree_eps0.1", (0, 1, 2, 3, 4)), ("3b_spiked_eps0.1", (0, 1, 2)))
    for panel, seeds in cases:
        size = load_shards(experiment(f"003_{panel}_rgd")).sizes[0]
        for calls in (1.2, 2.4, 6.0):
            rows[f"{panel}, {calls} n"] = [
                curve(panel, name, seeds).at(calls * size) for name in PRINTED
            ]
    ahead = [row[2] <= row[0] for row in rows.values()]
    return Finding(
        "H20",
        "DP-RSVRG needs fewer IFO calls: ahead of DP-RGD, or level, in the initial iterations",
        verdict_of(as_printed=all(ahead), in_regime=any(ahead)),
        {"excess risk of DP-RGD, DP-RSGD, DP-RSVRG": rows},
        seeds=(0, 1, 2, 3, 4),
    )

"""H17 to H20: Figure 3, DP-RSVRG against DP-RGD and DP-RSGD, on the stand-ins of its data.

Every curve is one of configs/figures/003_3*; "scount" is Algorithm 11 with the noise that
the public code's count gives (H13), "reuse" the variant of which that count is true.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from manifed.experiment.assembly import load_shards
from reproduction.checks_003.central import Curve, experiment, solve
from reproduction.findings import Finding, Verdict, verdict_of

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
    seeds = (0, 1, 2)
    rows = Rows()
    for epsilon in (0.1, 0.5):
        panel = f"3b_spiked_eps{epsilon}"
        rows[f"epsilon {epsilon}"] = finals(panel, (*PRINTED, "scount"), seeds)
    return Finding(
        "H17",
        "Figure 3b (sphere; stand-in): DP-RSVRG consistently outperforms DP-RGD and DP-RSGD",
        ordering(rows),
        {
            "final excess risk (52 at the start)": rows,
            "DP-RGD at epsilon 0.1, steps 0.1, 1, 2: noise of a step / pi, excess risk": antipodes(
                seeds
            ),
        },
        seeds=seeds,
        remark="DP-RSVRG is best with the noise of the public code's count only (scount), whose "
        "epsilon is 9 times the target. A step whose noise has length pi ends at the antipode, "
        "where an eigenvector is none the worse: a search up to step 5 takes that for progress.",
    )


def antipodes(seeds: tuple[int, ...]) -> list[float]:
    """DP-RGD with steps whose noise alone turns the point by a large part of pi."""
    found = []
    for step_size in (0.1, 1.0, 2.0):
        config = experiment("003_3b_spiked_eps0.1_rgd", f"training.step_size={step_size}")
        run = solve(config, seeds)
        found += [step_size * run.noise_stddev * math.sqrt(783) / math.pi, run.final]
    return found


def ordering(rows: Rows) -> Verdict:
    """Whether RSVRG with noise for the stated epsilon is best at every epsilon, or at some."""
    printed = [is_best(row, "rsvrg", PRINTED) for row in rows.values()]
    return verdict_of(all(printed), in_regime=any(printed))


def check_h18() -> Finding:
    """Figure 3a, row 1: a Frechet mean on SPD(11), n = 10704."""
    seeds = (0,)
    row = {}
    for name in (*PRINTED, "scount"):
        config = experiment(f"003_3a_lognormal_eps0.1_{name}", "evaluation.every=10")
        row[name] = solve(config, seeds).final
    return Finding(
        "H18",
        "Figure 3a (SPD(11); stand-in): DP-RSVRG consistently better than DP-RGD and DP-RSGD",
        verdict_of(
            all(1.5 * row["rsvrg"] < row[other] for other in ("rgd", "rsgd")),
            in_regime=row["rsvrg"] < 1.5 * row["rgd"] and 1.5 * row["rsvrg"] < row["rsgd"],
        ),
        {"final excess risk, epsilon 0.1": row},
        seeds=seeds,
        remark="In a regime: level with DP-RGD, better than DP-RSGD. The excess is noise in 66 "
        "dimensions, +- 17 % a run by chance, so a factor below 1.5 between two runs is a tie.",
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
        "Figure 3c (Poincare ball; stand-in): DP-RGD best, DP-RSVRG better than DP-RSGD",
        verdict_of(best and all(second), in_regime=best and any(second)),
        {
            "final excess risk": rows,
            "DP-RSGD / DP-RSVRG": [row["rsgd"] / row["rsvrg"] for row in rows.values()],
            "DP-RGD / DP-RSVRG": [row["rgd"] / row["rsvrg"] for row in rows.values()],
        },
        seeds=seeds,
    )


def check_h20() -> Finding:
    """The first IFO calls: one epoch of DP-RSVRG (1.2 n) against one step of DP-RGD (n)."""
    rows = {}
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
        verdict_of(all(ahead), in_regime=any(ahead)),
        {"excess risk of DP-RGD, DP-RSGD, DP-RSVRG": rows},
        seeds=(0, 1, 2, 3, 4),
    )

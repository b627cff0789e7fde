"""H17 to H20: Figure 3, DP-RSVRG against DP-RGD and DP-RSGD, on the stand-ins of its data.

Every curve is one of configs/figures/003_3*; "scount" is Algorithm 11 with the noise that
the public code's count gives (H13), "reuse" the variant of which that count is true.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from manifed.experiment.assembly import load_shards
from reproduction.checks_003.central import Curve, solve
from reproduction.findings import Finding
from reproduction.trials import experiment

PRINTED = ("rgd", "rsgd", "rsvrg")


@lru_cache(maxsize=64)
def curve(panel: str, algorithm: str, seeds: tuple[int, ...]) -> Curve:
    """One curve of a panel (for example "3c_tree_eps0.1")."""
    return solve(experiment(f"003_{panel}_{algorithm}"), seeds)


def finals(panel: str, more: Sequence[str], seeds: tuple[int, ...]) -> dict[str, float]:
    """Mean excess risk at the end of every curve."""
    return {name: curve(panel, name, seeds).final for name in (*PRINTED, *more)}


def is_best(row: dict[str, float], name: str) -> bool:
    """Whether ``name`` ends strictly below the others that are printed."""
    return all(row[name] < row[other] for other in PRINTED if other != name)


def check_h17() -> Finding:
    """Figure 3b: a leading eigenvector on the sphere, n = 6903, d = 784.

    Also DP-RGD with steps whose noise alone turns the point by a large part of pi.
    """
    seeds = (0, 1, 2)
    rows = {f"epsilon {e}": finals(f"3b_spiked_eps{e}", ("scount",), seeds) for e in (0.1, 0.5)}
    best = [is_best(row, "rsvrg") for row in rows.values()]
    antipodes = []
    for step_size in (0.1, 1.0, 2.0):
        config = experiment("003_3b_spiked_eps0.1_rgd", f"training.step_size={step_size}")
        run = solve(config, seeds)
        antipodes += [step_size * run.noise_stddev * math.sqrt(783) / math.pi, run.final]
    return Finding(
        "Figure 3b (sphere; stand-in): DP-RSVRG consistently outperforms DP-RGD and DP-RSGD",
        all(best),
        {
            "final excess risk (52 at the start)": rows,
            "DP-RGD at epsilon 0.1, steps 0.1, 1, 2: noise of a step / pi, excess risk": antipodes,
        },
        seeds,
        remark="DP-RSVRG is best with the noise of the public code's count only (scount), whose "
        "epsilon is 9 times the target. A step whose noise has length pi ends at the antipode, "
        "where an eigenvector is none the worse: a search up to step 5 takes that for progress.",
        in_regime=any(best),
    )


def check_h18() -> Finding:
    """Figure 3a, row 1: a Frechet mean on SPD(11), n = 10704."""
    seeds = (0,)
    row = {}
    for name in (*PRINTED, "scount"):
        config = experiment(f"003_3a_lognormal_eps0.1_{name}", "evaluation.every=10")
        row[name] = solve(config, seeds).final
    return Finding(
        "Figure 3a (SPD(11); stand-in): DP-RSVRG consistently better than DP-RGD and DP-RSGD",
        all(1.5 * row["rsvrg"] < row[other] for other in ("rgd", "rsgd")),
        {"final excess risk, epsilon 0.1": row},
        seeds,
        in_regime=row["rsvrg"] < 1.5 * row["rgd"] and 1.5 * row["rsvrg"] < row["rsgd"],
        remark="In a regime: level with DP-RGD, better than DP-RSGD. The excess is noise in 66 "
        "dimensions, +- 17 % a run by chance, so a factor below 1.5 between two runs is a tie.",
    )


def check_h19() -> Finding:
    """Figure 3c: a Frechet mean on the Poincare ball, n = 1180."""
    seeds = (0, 1, 2, 3, 4)
    rows = {
        f"epsilon {e}": finals(f"3c_tree_eps{e}", ("scount", "reuse"), seeds)
        for e in (0.1, 0.3, 0.5)
    }
    best = all(is_best(row, "rgd") for row in rows.values())
    second = [row["rsvrg"] < row["rsgd"] for row in rows.values()]
    return Finding(
        "Figure 3c (Poincare ball; stand-in): DP-RGD best, DP-RSVRG better than DP-RSGD",
        best and all(second),
        {
            "final excess risk": rows,
            **{
                f"DP-{name.upper()} / DP-RSVRG": [r[name] / r["rsvrg"] for r in rows.values()]
                for name in ("rsgd", "rgd")
            },
        },
        seeds,
        in_regime=best and any(second),
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
        "DP-RSVRG needs fewer IFO calls: ahead of DP-RGD, or level, in the initial iterations",
        all(ahead),
        {"excess risk of DP-RGD, DP-RSGD, DP-RSVRG": rows},
        (0, 1, 2, 3, 4),
        in_regime=any(ahead),
    )

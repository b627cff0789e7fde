"""Checks 6, 7 and 14: the convergence bounds of section 5 against measured runs.

Every constant of a bound is computed from the shards of the run it is compared with. Theorem 5.3
ignores clipping, so its runs use a clip norm above every gradient in the ball W.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from manifed.experiment.assembly import initial_point, load_shards
from manifed.problems.examples import Examples
from reproduction.findings import Finding, Part, log_slope
from reproduction.trials import FULL_STEPS, curve, trial


def published_stddev(clip: float, examples: int, epsilon: float) -> float:
    """sigma_i of the paper with o_i = 1 for one step at the local delta 1e-4."""
    return clip * math.sqrt(math.log(1 / 1e-4)) / (examples * epsilon)


def bounded(ratios: Mapping[str, Sequence[float]]) -> list[Part]:
    """Ratios of what was measured to its bound, which are at most 1."""
    return [Part(f"{name} over its bound", each, most=1.0) for name, each in ratios.items()]


def check_6(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 5.1 on the digits sphere: min E |grad f|^2 <= (5.2).

    The minimum over the rounds is that of the mean over the seeds: the mean of each seed's own
    minimum is smaller, and no more is claimed for it.
    """
    step = 1 / 4  # 1 / (2 L_g)
    over = {}
    for epsilon in (0.15, 0.5, 2.0):
        sets = (
            *FULL_STEPS,
            "federation.num_clients=10",
            "federation.num_rounds=100",
            "federation.partition.shard_size=179",
            f"training.step_size={step}",
            f"privacy.noise.local_epsilon={epsilon}",
        )
        runs = [trial("000_2_digits-rsgd-N-3", seed, *sets)[0] for seed in seeds]
        squares = np.square([run["gradient_norm"] for run in runs])
        noise = 63 * 2 * step * published_stddev(2.0, 179, epsilon) ** 2 / 10
        bounds = [2 * run.at("cost_gap", 0) / (100 * step) + noise for run in runs]
        least = squares[:, squares.mean(0).argmin()]
        over[f"epsilon {epsilon}: min E|grad f|^2"] = least / bounds
    return Finding.judged(
        "Theorem 5.1 holds on the sphere (digits, N=10, N_i=179, b=N_i, alpha=1/(2L_g), T=100)",
        bounded(over),
        {},
        seeds,
    )


# -- Theorem 5.3 -----------------------------------------------------------------------------
SPD_NAME = "000_3_wishart-rsgd-N-20"


@dataclass(frozen=True)
class Ball:
    """W around the optimum: its diameter M, curvature constant zeta and smoothness 2 zeta."""

    diameter: float

    @property
    def zeta(self) -> float:
        """(5.1) with kappa_min = -1/2."""
        reach = math.sqrt(0.5) * self.diameter
        return reach / math.tanh(reach)

    @property
    def smoothness(self) -> float:
        """L_g = 2 zeta."""
        return 2 * self.zeta

    @property
    def clip(self) -> float:
        """2 M bounds every gradient in W."""
        return 2 * self.diameter


@lru_cache(maxsize=8)
def ball_of(seed: int) -> Ball:
    """The ball around the optimum that holds the data and the start of a run of `SPD_NAME`."""
    config = curve(SPD_NAME, seed=seed)
    found = load_shards(config)
    problem = found.problem
    best = problem.optimum(found.examples).x
    points = Examples.concatenate(found.examples)["z"]
    away = problem.manifold.dist(best.unsqueeze(0), points).max()
    return Ball(2 * max(float(away), float(problem.manifold.dist(best, initial_point(config)))))


def spd_overrides(ball: Ball, epsilon: float, num_rounds: int) -> tuple[str, ...]:
    """`SPD_NAME` turned into the setting of Theorem 5.3: K = 1, b = N_i, s = N."""
    return (
        *FULL_STEPS,
        f"federation.num_rounds={num_rounds}",
        f"training.step_size={1 / (2 * ball.smoothness)}",
        f"privacy.l2_norm_clip={ball.clip}",
        f"privacy.noise.local_epsilon={epsilon}",
        "evaluation.every=10",
    )


def theorem_5_3(ball: Ball, start: float, stddev: float, num_rounds: int) -> float:
    """The right side of (5.4) in dimension 3 for 20 equal N_i at alpha = 1 / (2 L_g)."""
    zeta = ball.zeta
    smooth = ball.smoothness
    t = num_rounds
    drift = zeta * start**2 * smooth / (zeta + t - 1)
    growth = t * (6 * zeta + t - 1) * 3 / (16 * smooth * (zeta + t - 1))
    return drift + growth * stddev**2 / 20


def check_7(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 5.3 on SPD, and the interior minimum of its bound in T."""
    over: dict[str, list[float]] = {f"T={t}: excess risk": [] for t in (10, 50, 200)}
    best_times = []
    for seed in seeds:
        ball = ball_of(seed)
        run, _ = trial(SPD_NAME, seed, *spd_overrides(ball, 0.15, 200))
        stddev = published_stddev(ball.clip, 250, 0.15)
        start = run.at("distance_to_optimum", 0)
        bound = [theorem_5_3(ball, start, stddev, t) for t in range(1, 5001)]
        for t, ratios in zip((10, 50, 200), over.values(), strict=True):
            ratios.append(run.at("cost_gap", t) / bound[t - 1])
        best_times.append(1 + int(np.argmin(bound)))
    inside = Part("T of the least bound, of 1 to 5000", best_times, least=2, most=4999)
    return Finding.judged(
        "Theorem 5.3 holds on SPD (N=20, N_i=250, K=1, alpha=1/(2L_g), epsilon=0.15); "
        "its bound is least at some T in between",
        [*bounded(over), inside],
        {},
        seeds,
        "The clip norm is above every gradient in W: the theorem ignores clipping.",
    )


LEVELS = (0.02, 0.04, 0.08, 0.16)
"""Of epsilon."""


def slope_part(excess: Sequence[Sequence[float]]) -> Part:
    """The slope in epsilon of the excess risk at `LEVELS`."""
    slopes = [log_slope(LEVELS, row) for row in excess]
    return Part("log-log slope in epsilon", slopes, least=-2.25, most=-1.75)


def check_14(seeds: Sequence[int] = range(10)) -> Finding:
    """Excess risk against epsilon at fixed T: slope -2 where noise dominates."""
    excess = [
        [
            trial(SPD_NAME, s, *spd_overrides(ball_of(s), epsilon, 100))[0].tail("cost_gap", 8)
            for epsilon in LEVELS
        ]
        for s in seeds
    ]
    return Finding.judged(
        "excess risk falls as epsilon^-2 at fixed T where noise dominates",
        [slope_part(excess)],
        {"excess of the first seed": dict(zip(map(str, LEVELS), excess[0], strict=True))},
        seeds,
        "SPD, N=20, N_i=250, K=1, s=N, T=100, mean of rounds 30 to 100",
    )

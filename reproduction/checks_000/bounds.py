"""Checks 6, 7 and 14: the convergence bounds of section 5 against measured runs.

Every constant of a bound is computed from the shards of the run it is compared with. Theorem 5.3
ignores clipping, so its runs use a clip norm above every gradient in the ball W.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.load import load
from manifed.problems.examples import Examples
from reproduction.figure_files import curve_path
from reproduction.findings import Finding, log_slope, verdict_of
from reproduction.trials import Trial, mean, trial, trials

LOCAL_DELTA = 1e-4
SEEDS = (0, 1, 2)
FIVE_SEEDS = (0, 1, 2, 3, 4)

# -- Theorem 5.1 -----------------------------------------------------------------------------
DIGITS = {"clients": 10, "examples": 179, "tau": 2.0, "smoothness": 2.0, "rounds": 100, "dim": 63}
SPHERE_EPSILONS = (0.15, 0.5, 2.0)


def published_stddev(clip: float, steps: int, examples: int, epsilon: float) -> float:
    """sigma_i of the paper with o_i = 1."""
    return clip * math.sqrt(steps * math.log(1 / LOCAL_DELTA)) / (examples * epsilon)


def sphere_overrides(epsilon: float) -> tuple[str, ...]:
    """000_2_digits-rsgd-N-3 turned into the setting of Theorem 5.1: K = 1, b = N_i, s = N."""
    return (
        f"federation.num_clients={DIGITS['clients']}",
        f"federation.num_rounds={DIGITS['rounds']}",
        f"federation.partition.shard_size={DIGITS['examples']}",
        'federation.cohort={ kind = "all" }',
        "training.local_steps=1",
        'training.minibatch={ kind = "full" }',
        f"training.step_size={1 / (2 * DIGITS['smoothness'])}",
        f"privacy.noise.local_epsilon={epsilon}",
    )


def theorem_5_1(run: Trial, epsilon: float) -> float:
    """The right side of (5.2) for equal N_i."""
    step = 1 / (2 * DIGITS["smoothness"])
    stddev = published_stddev(DIGITS["tau"], 1, int(DIGITS["examples"]), epsilon)
    gap = run.at("cost_gap", 0)
    noise = DIGITS["dim"] * DIGITS["smoothness"] * step * stddev**2 / DIGITS["clients"]
    return 2 * gap / (DIGITS["rounds"] * step) + noise


def least_mean_square(runs: Sequence[Trial]) -> float:
    """The minimum over the rounds of the mean over the seeds of |grad f|^2: what (5.2) bounds.

    The mean of each seed's own minimum is smaller, and no more is claimed for it.
    """
    squares = [run.columns["gradient_norm"] ** 2 for run in runs]
    return float(np.mean(squares, axis=0).min())


def check_6() -> Finding:
    """Theorem 5.1 on the digits sphere: min E |grad f|^2 <= (5.2)."""
    numbers = {}
    for epsilon in SPHERE_EPSILONS:
        runs = trials("000_2_digits-rsgd-N-3", FIVE_SEEDS, *sphere_overrides(epsilon))
        bound = mean([theorem_5_1(run, epsilon) for run in runs])
        measured = least_mean_square(runs)
        numbers[f"epsilon {epsilon}"] = {"min mean |grad f|^2": measured, "bound": bound}
    return Finding(
        "6",
        "Theorem 5.1 holds on the sphere (digits, N=10, N_i=179, b=N_i, alpha=1/(2L_g), T=100)",
        verdict_of(all(n["min mean |grad f|^2"] <= n["bound"] for n in numbers.values())),
        numbers,
        FIVE_SEEDS,
    )


# -- Theorem 5.3 -----------------------------------------------------------------------------
SPD_NAME = "000_3_wishart-rsgd-N-20"
SPD_ROUNDS = (10, 50, 200)
SPD_DIM = 3


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
def ball_of(name: str, seed: int) -> Ball:
    """The ball around the optimum that holds the data and the start of a config's run."""
    config = load(curve_path(name), [f"federation.seed={seed}"])
    found = load_shards(config)
    x = initial_point(config)
    problem = found.problem
    best = problem.optimum(found.examples).x
    points = Examples.concatenate(found.examples)["z"]
    radius = max(
        float(problem.manifold.dist(best.unsqueeze(0), points).max()),
        float(problem.manifold.dist(best, x)),
    )
    return Ball(2 * radius)


def spd_overrides(ball: Ball, epsilon: float, num_rounds: int = 200) -> tuple[str, ...]:
    """000_3_wishart-rsgd turned into the setting of Theorem 5.3: K = 1, b = N_i, s = N."""
    return (
        f"federation.num_rounds={num_rounds}",
        'federation.cohort={ kind = "all" }',
        "training.local_steps=1",
        'training.minibatch={ kind = "full" }',
        f"training.step_size={1 / (2 * ball.smoothness)}",
        f"privacy.l2_norm_clip={ball.clip}",
        f"privacy.noise.local_epsilon={epsilon}",
        "evaluation.every=10",
    )


def theorem_5_3(ball: Ball, start: float, stddev: float, num_rounds: int, clients: int) -> float:
    """The right side of (5.4) for equal N_i at alpha = 1 / (2 L_g)."""
    zeta = ball.zeta
    smooth = ball.smoothness
    t = num_rounds
    drift = zeta * start**2 * smooth / (zeta + t - 1)
    growth = t * (6 * zeta + t - 1) * SPD_DIM / (16 * smooth * (zeta + t - 1))
    return drift + growth * stddev**2 / clients


def check_7() -> Finding:
    """Theorem 5.3 on SPD, and the interior minimum of its bound in T."""
    numbers = {}
    interior = True
    measured = {t: [] for t in SPD_ROUNDS}
    bounds = {t: [] for t in SPD_ROUNDS}
    for seed in SEEDS:
        ball = ball_of(SPD_NAME, seed)
        run = trial(SPD_NAME, seed, *spd_overrides(ball, 0.15))
        stddev = published_stddev(ball.clip, 1, 250, 0.15)
        start = run.at("distance_to_optimum", 0)
        for t in SPD_ROUNDS:
            measured[t].append(run.at("cost_gap", t))
            bounds[t].append(theorem_5_3(ball, start, stddev, t, 20))
        curve = [theorem_5_3(ball, start, stddev, t, 20) for t in range(1, 5001)]
        interior &= 1 < int(np.argmin(curve)) + 1 < 5000
    for t in SPD_ROUNDS:
        numbers[f"T={t}"] = {"excess risk": mean(measured[t]), "bound": mean(bounds[t])}
    holds = all(n["excess risk"] <= n["bound"] for n in numbers.values())
    return Finding(
        "7",
        "Theorem 5.3 holds on SPD (N=20, N_i=250, K=1, alpha=1/(2L_g), epsilon=0.15); "
        "its bound is least at some T in between",
        verdict_of(holds and interior),
        numbers,
        SEEDS,
        "clip norm above every gradient in W: the theorem ignores clipping",
    )


# -- the trade-off ---------------------------------------------------------------------------
TRADE_OFF_EPSILONS = (0.02, 0.04, 0.08, 0.16)


def check_14() -> Finding:
    """Excess risk against epsilon at fixed T: slope -2 where noise dominates."""
    excess = {}
    for epsilon in TRADE_OFF_EPSILONS:
        tails = [
            trial(SPD_NAME, seed, *spd_overrides(ball_of(SPD_NAME, seed), epsilon, 100)).tail(
                "cost_gap", 8
            )
            for seed in SEEDS
        ]
        excess[epsilon] = mean(tails)
    slope = log_slope(list(excess), list(excess.values()))
    return Finding(
        "14",
        "excess risk falls as epsilon^-2 at fixed T where noise dominates",
        verdict_of(abs(slope + 2) <= 0.25),
        {"slope": slope, "excess": {str(k): v for k, v in excess.items()}},
        SEEDS,
        "SPD, N=20, N_i=250, K=1, s=N, T=100, mean of rounds 30 to 100",
    )

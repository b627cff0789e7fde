"""Check 8: Theorem 5.4, client sampling with heterogeneous shards and no noise."""

import numpy as np
import torch

from app.assembly import load_shards
from benchmarks.checks_000.bounds import Ball, ball_of
from benchmarks.checks_000.trials import NON_PRIVATE, trial
from benchmarks.experiment_files import experiment_path
from benchmarks.findings import Finding, verdict_of
from configs.load import load

NAME = "000_3_wishart-rsgd-N-20"
CLIENTS, SHARD, STEP, SEED = 20, 25, 0.05, 0
COHORTS = (1, 2, 5, 10, 20)
CONVEXITY = 2.0
"""mu: f is a mean of squared distances, 2-strongly convex along geodesics."""


def overrides(cohort: int) -> tuple[str, ...]:
    """Small shards, so that the agents differ: K = 1, b = N_i, no noise, no clipping."""
    return (
        NON_PRIVATE,
        f"federation.partition.shard_size={SHARD}",
        f"federation.cohort.cohort_size={cohort}",
        "federation.num_rounds=350",
        f"training.step_size={STEP}",
        "training.local_steps=1",
        'training.minibatch={ kind = "full" }',
    )


def contraction(ball: Ball) -> float:
    """P of (5.5)."""
    return 1 - 2 * CONVEXITY * STEP + CONVEXITY * STEP**2 * ball.smoothness


def divergence() -> float:
    """The v of Assumption 5.4 at the optimum: the mean over agents of |grad f_i - grad f|^2."""
    config = load(experiment_path(NAME), [*overrides(1), f"federation.seed={SEED}"])
    found = load_shards(config)
    problem = found.problem
    x = problem.optimum(found.examples).x
    each = torch.stack([problem.gradient(x, [shard]) for shard in found.examples])
    return float(problem.manifold.norm(x, each - each.mean(0)).square().mean())


def printed_shape(cohort: int) -> float:
    """(N - S) / (S (N - 1))."""
    return (CLIENTS - cohort) / (cohort * (CLIENTS - 1))


def check_8() -> Finding:
    """Geometric decay at rate <= P, then a floor proportional to (N - S) / (S (N - 1))."""
    ball, v = ball_of(NAME, SEED), divergence()
    runs = {cohort: trial(NAME, SEED, *overrides(cohort)) for cohort in COHORTS}
    smooth = ball.smoothness
    kappa_1 = smooth * STEP * v / (2 * CONVEXITY * (2 - smooth * STEP))
    floors = {cohort: run.tail("cost_gap", 200) for cohort, run in runs.items()}
    ratios = {s: floors[s] / printed_shape(s) for s in COHORTS if s < CLIENTS}
    gaps = runs[CLIENTS].columns["cost_gap"]
    decaying = gaps[gaps > 1e-12]
    rate = float((decaying[1:] / decaying[:-1]).max())
    holds = (
        all(floors[s] <= kappa_1 * printed_shape(s) for s in COHORTS if s < CLIENTS)
        and abs(floors[CLIENTS]) < 1e-12
        and rate <= contraction(ball)
    )
    spread = float(np.max(list(ratios.values())) / np.min(list(ratios.values())))
    return Finding(
        8,
        "Theorem 5.4 on SPD, no noise: decay at rate <= P to a floor ~ (N-S)/(S(N-1)), 0 at S=N",
        verdict_of(as_printed=holds and spread <= 2),
        {
            "floor": {str(s): value for s, value in floors.items()},
            "floor / shape": {str(s): value for s, value in ratios.items()},
            "kappa_1 without the spurious d": kappa_1,
            "rate at S=N": rate,
            "P": contraction(ball),
        },
        (SEED,),
        "N=20, N_i=25, K=1, b=N_i, alpha=0.05, mean of rounds 151 to 350",
    )

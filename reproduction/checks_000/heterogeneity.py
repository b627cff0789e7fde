"""Check 8: Theorem 5.4, client sampling with heterogeneous shards and no noise."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from manifed.experiment.assembly import load_shards
from manifed.experiment.load import load
from reproduction.checks_000.bounds import Ball, ball_of
from reproduction.figure_files import curve_path
from reproduction.findings import Finding, verdict_of
from reproduction.trials import NON_PRIVATE, mean, trial

NAME = "000_3_wishart-rsgd-N-20"
CLIENTS = 20
SHARD = 25
STEP = 0.05
SEEDS = (0, 1, 2, 3, 4)
COHORTS = (1, 2, 5, 10, 20)
ROUNDING = 1e-12
"""Gaps below this are the rounding of f."""
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


def divergence(seed: int) -> float:
    """The v of Assumption 5.4 at the optimum: the mean over agents of |grad f_i - grad f|^2."""
    config = load(curve_path(NAME), [*overrides(1), f"federation.seed={seed}"])
    found = load_shards(config)
    problem = found.problem
    x = problem.optimum(found.examples).x
    each = torch.stack([problem.gradient(x, [shard]) for shard in found.examples])
    return float(problem.manifold.norm(x, each - each.mean(0)).square().mean())


def printed_shape(cohort: int) -> float:
    """(N - S) / (S (N - 1))."""
    return (CLIENTS - cohort) / (cohort * (CLIENTS - 1))


@dataclass(frozen=True)
class Measured:
    """One seed: floors by cohort size, the bound's constants, and the decay without sampling."""

    floors: Mapping[int, float]
    kappa_1: float
    rate: float
    contraction: float

    @property
    def over_shape(self) -> dict[int, float]:
        """Each floor over (N - S) / (S (N - 1))."""
        return {s: self.floors[s] / printed_shape(s) for s in COHORTS if s < CLIENTS}


def measured(seed: int) -> Measured:
    """The runs of one seed, their shards included."""
    ball = ball_of(NAME, seed)
    v = divergence(seed)
    runs = {cohort: trial(NAME, seed, *overrides(cohort)) for cohort in COHORTS}
    smooth = ball.smoothness
    gaps = runs[CLIENTS].columns["cost_gap"]
    decaying = gaps[gaps > ROUNDING]
    return Measured(
        {cohort: run.tail("cost_gap", 200) for cohort, run in runs.items()},
        smooth * STEP * v / (2 * CONVEXITY * (2 - smooth * STEP)),
        float((decaying[1:] / decaying[:-1]).max()),
        contraction(ball),
    )


def check_8() -> Finding:
    """Geometric decay at rate <= P, then a floor proportional to (N - S) / (S (N - 1)).

    The floor of the theorem is an expectation over cohorts: floors are averaged over the seeds,
    each divided by its own bound where shards differ in how much their agents disagree.
    """
    seeds = [measured(seed) for seed in SEEDS]
    sampled = [s for s in COHORTS if s < CLIENTS]
    shapes = {s: mean([m.over_shape[s] for m in seeds]) for s in sampled}
    of_bound = {s: mean([m.over_shape[s] / m.kappa_1 for m in seeds]) for s in sampled}
    whole = max(abs(m.floors[CLIENTS]) for m in seeds)
    spread = max(of_bound.values()) / min(of_bound.values())
    decays = all(m.rate <= m.contraction for m in seeds)
    holds = max(of_bound.values()) <= 1 and whole < ROUNDING and decays
    return Finding(
        "8",
        "Theorem 5.4 on SPD, no noise: decay at rate <= P to a floor ~ (N-S)/(S(N-1)), 0 at S=N",
        verdict_of(holds and spread <= 2, in_regime=holds),
        {
            "mean floor": {str(s): mean([m.floors[s] for m in seeds]) for s in COHORTS},
            "mean floor / shape": {str(s): value for s, value in shapes.items()},
            "mean floor / (kappa_1 shape), without the spurious d": {
                str(s): value for s, value in of_bound.items()
            },
            "largest over smallest of these": spread,
            "the same, seed by seed": [
                max(m.over_shape.values()) / min(m.over_shape.values()) for m in seeds
            ],
            "rate at S=N by seed": [m.rate for m in seeds],
            "P by seed": [m.contraction for m in seeds],
        },
        SEEDS,
        "N=20, N_i=25, K=1, b=N_i, alpha=0.05, mean of rounds 151 to 350",
    )

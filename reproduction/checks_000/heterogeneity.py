"""Check 8: Theorem 5.4, client sampling with heterogeneous shards and no noise."""

from dataclasses import dataclass
from statistics import mean

import torch

from manifed.experiment.assembly import load_shards
from reproduction.checks_000.bounds import SPD_NAME, ball_of
from reproduction.findings import Finding
from reproduction.trials import FULL_STEPS, NON_PRIVATE, experiment, trial

CLIENTS = 20
STEP = 0.05
SEEDS = (0, 1, 2, 3, 4)
COHORTS = (1, 2, 5, 10)
"""Of those who are sampled."""
ROUNDING = 1e-12
"""Gaps below this are the rounding of f."""
CONVEXITY = 2.0
"""mu: f is a mean of squared distances, 2-strongly convex along geodesics."""
OVERRIDES = (
    NON_PRIVATE,
    "federation.partition.shard_size=25",
    "federation.num_rounds=350",
    f"training.step_size={STEP}",
    *FULL_STEPS[1:],
)
"""Small shards, so that the agents differ: K = 1, b = N_i, no noise, no clipping."""


def divergence(seed: int) -> float:
    """The v of Assumption 5.4 at the optimum: the mean over agents of |grad f_i - grad f|^2."""
    found = load_shards(experiment(SPD_NAME, *OVERRIDES, f"federation.seed={seed}"))
    problem = found.problem
    x = problem.optimum(found.examples).x
    each = torch.stack([problem.gradient(x, [shard]) for shard in found.examples])
    return float(problem.manifold.norm(x, each - each.mean(0)).square().mean())


@dataclass(frozen=True)
class Measured:
    """One seed: floors by cohort size, the bound's constants, and the decay without sampling."""

    floors: dict[int, float]
    kappa_1: float
    rate: float
    contraction: float
    """P of (5.5)."""

    @property
    def over_shape(self) -> dict[int, float]:
        """Each floor over (N - S) / (S (N - 1))."""
        return {s: self.floors[s] / ((CLIENTS - s) / (s * (CLIENTS - 1))) for s in COHORTS}


def measured(seed: int) -> Measured:
    """The runs of one seed, their shards included."""
    runs = {
        cohort: trial(SPD_NAME, seed, *OVERRIDES, f"federation.cohort.cohort_size={cohort}")[0]
        for cohort in (*COHORTS, CLIENTS)
    }
    smooth = ball_of(seed).smoothness
    gaps = runs[CLIENTS]["cost_gap"]
    decaying = gaps[gaps > ROUNDING]
    return Measured(
        {cohort: run.tail("cost_gap", 200) for cohort, run in runs.items()},
        smooth * STEP * divergence(seed) / (2 * CONVEXITY * (2 - smooth * STEP)),
        float((decaying[1:] / decaying[:-1]).max()),
        1 - 2 * CONVEXITY * STEP + CONVEXITY * STEP**2 * smooth,
    )


def check_8() -> Finding:
    """Geometric decay at rate <= P, then a floor proportional to (N - S) / (S (N - 1)).

    The floor of the theorem is an expectation over cohorts: floors are averaged over the seeds,
    each divided by its own bound where shards differ in how much their agents disagree.
    """
    seeds = [measured(seed) for seed in SEEDS]
    of_bound = {str(s): mean(m.over_shape[s] / m.kappa_1 for m in seeds) for s in COHORTS}
    spread = max(of_bound.values()) / min(of_bound.values())
    holds = (
        max(of_bound.values()) <= 1
        and max(abs(m.floors[CLIENTS]) for m in seeds) < ROUNDING
        and all(m.rate <= m.contraction for m in seeds)
    )
    return Finding(
        "Theorem 5.4 on SPD, no noise: decay at rate <= P to a floor ~ (N-S)/(S(N-1)), 0 at S=N",
        holds and spread <= 2,
        {
            "mean floor": {str(s): mean(m.floors[s] for m in seeds) for s in (*COHORTS, CLIENTS)},
            "mean floor / shape": {str(s): mean(m.over_shape[s] for m in seeds) for s in COHORTS},
            "mean floor / (kappa_1 shape), without the spurious d": of_bound,
            "largest over smallest of these": spread,
            "the same, seed by seed": [
                max(m.over_shape.values()) / min(m.over_shape.values()) for m in seeds
            ],
            "rate at S=N by seed": [m.rate for m in seeds],
            "P by seed": [m.contraction for m in seeds],
        },
        SEEDS,
        "N=20, N_i=25, K=1, b=N_i, alpha=0.05, mean of rounds 151 to 350",
        in_regime=holds,
    )

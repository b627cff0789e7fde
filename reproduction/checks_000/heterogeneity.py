"""Check 8: Theorem 5.4, client sampling with heterogeneous shards and no noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from manifed.experiment.assembly import load_shards
from reproduction.checks_000.bounds import SPD_NAME, ball_of
from reproduction.findings import Finding, Part
from reproduction.trials import FULL_STEPS, NON_PRIVATE, experiment, trial

CLIENTS = 20
STEP = 0.05
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


def decay_parts(each: Sequence[Measured]) -> list[Part]:
    """The rate of decay without sampling, and each floor beside its bound and its shape."""
    first = COHORTS[0]
    parts = [
        Part("rate of decay over P, S = N", [m.rate / m.contraction for m in each], most=1.0),
        Part("floor at S = N", [abs(m.floors[CLIENTS]) for m in each], most=ROUNDING),
    ]
    for s in COHORTS:
        over = [m.over_shape[s] / m.kappa_1 for m in each]
        parts.append(Part(f"S = {s}: floor over its bound", over, most=1.0))
        if s != first:
            shape = [math.log2(m.over_shape[s] / m.over_shape[first]) for m in each]
            claim = f"S = {s}: log2 of that ratio over the one at S = {first}"
            parts.append(Part(claim, shape, least=-1.0, most=1.0))
    return parts


def check_8(seeds: Sequence[int] = range(10)) -> Finding:
    """Geometric decay at rate <= P, then a floor proportional to (N - S) / (S (N - 1))."""
    return Finding.judged(
        "Theorem 5.4 on SPD, no noise: decay at rate <= P to a floor ~ (N-S)/(S(N-1)), 0 at S=N",
        decay_parts([measured(seed) for seed in seeds]),
        {},
        seeds,
        "N=20, N_i=25, K=1, b=N_i, alpha=0.05, mean of rounds 151 to 350; the bound without the "
        "spurious d.",
    )

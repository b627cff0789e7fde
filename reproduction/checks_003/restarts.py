"""H23: Algorithm 12, DP-RSVRG with restarts, with the parameters of Theorem 8."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from reproduction.checks_003.central import solve
from reproduction.checks_003.settings import (
    DELTA,
    centrally,
    cloud,
    example_level,
    rsvrg,
)
from reproduction.findings import Finding, Part, log_slope

DIMENSION = 20
SMOOTHNESS = 2.0
PL = 0.25
LIPSCHITZ = 1.0
"""L and tau = 1 / (2 mu) of dist(w, z)^2 near its mean, and L0, which is both clips."""
POINTS = ((30, 16.0), (30, 64.0), (120, 16.0))
"""(n, epsilon)."""
RUNS = 4
"""Of one seed, whose mean stands for an expectation."""


def schedule(num_examples: int, epsilon: float) -> tuple[int, int]:
    """(K restarts, S epochs each) of Theorem 8 for zeta = 1, mu_0 = 1/10 and nu = 1/2."""
    n = num_examples
    inside = n**2 * epsilon**2 / ((DIMENSION - 1) * SMOOTHNESS * PL**2 * math.log(1 / DELTA))
    epochs = (6 + 18 / (n - 3)) * SMOOTHNESS * PL * 0.1 / (0.5 * n ** (1 / 3))
    return max(1, math.ceil(math.log(inside / LIPSCHITZ**2))), math.ceil(epochs)


def excess(num_examples: int, epsilon: float, clip: float, seeds: Sequence[int]) -> float:
    """Mean excess risk after all restarts: a round is DP-RSVRG with Output II from the last one."""
    n = num_examples
    restarts, epochs = schedule(n, epsilon)
    step_size = 1 / (10 * SMOOTHNESS * n ** (2 / 3))
    training = rsvrg(step_size, 10 * n // 3, epochs=epochs, output="random-iterate")
    privacy = example_level(epsilon, LIPSCHITZ, clip)
    config = centrally(cloud(n, DIMENSION), training, restarts, privacy)
    return float(np.mean(solve(config, seeds).excess[:, -1]))


def restart_parts(by_point: Sequence[Mapping[tuple[int, float], float]]) -> list[Part]:
    """Log-log slopes of the excess risk at `POINTS` with C0 = C1, of every seed."""
    first, louder, larger = POINTS
    parts = []
    for name, other, at in (("epsilon", louder, 1), ("n", larger, 0)):
        ends = first[at], other[at]
        slopes = [log_slope(ends, [one[first], one[other]]) for one in by_point]
        parts.append(Part(f"slope of the excess risk in {name}, C0 = C1 = 1", slopes, most=-1.8))
    return parts


def check_h23(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 8: the excess risk of a function with a PL constant falls as 1 / (n epsilon)^2."""

    def measured(clip: float, seed: int) -> dict[tuple[int, float], float]:
        runs = range(RUNS * seed, RUNS * (seed + 1))
        return {point: excess(*point, clip, runs) for point in POINTS}

    found = [measured(1.0, seed) for seed in seeds]
    rows = {"C1 = 1": found[0], "C1 = 0.0001": measured(1e-4, seeds[0])}
    return Finding.judged(
        "Algorithm 12 with Theorem 8's parameters: the excess risk falls as 1 / (n epsilon)^2",
        restart_parts(found),
        {
            "(n, epsilon) = (30, 16), (30, 64), (120, 16), first seed: excess risk": {
                name: list(row.values()) for name, row in rows.items()
            },
            "(K, S) there": [value for n, epsilon in POINTS for value in schedule(n, epsilon)],
        },
        seeds,
        "A mean on S^19, at epsilons that protect nobody. C1 = C0 is the theorem's "
        "case; where C1 << C0 the full gradient sets the noise.",
    )

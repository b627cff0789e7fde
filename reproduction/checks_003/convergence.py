"""H14 to H16: what variance reduction and the theorems promise, on small problems."""

import math
from collections.abc import Sequence

import numpy as np

from manifed.experiment.assembly import load_shards
from reproduction.checks_003.central import Curve, solve
from reproduction.checks_003.settings import (
    DELTA,
    ONE,
    Pair,
    centrally,
    cloud,
    example_level,
    matrices,
    rsvrg,
    spiked,
)
from reproduction.findings import Finding, log_slope

# -- H14 -------------------------------------------------------------------------------------
NOISELESS: dict[str, tuple[Pair, float, int, int]] = {
    "leading eigenvector, sphere": (spiked(500), 0.03, 500, 8),
    "Frechet mean, SPD(4)": (matrices(500), 0.003, 250, 10),
}
"""(problem and data, step size, m, epochs)."""


def check_h14() -> Finding:
    """Without noise and clipping."""
    seeds = (0, 1)
    rows = {}
    for name, (pair, step_size, inner, epochs) in NOISELESS.items():
        rsgd = {"kind": "rsgd", "step_size": step_size, "local_steps": inner, "minibatch": ONE}
        reduced, plain = (
            solve(centrally(pair, training, epochs), seeds)
            for training in (rsvrg(step_size, inner), rsgd)
        )
        early = reduced.excess.mean(0)[: epochs - 1]
        factor = float((early[-1] / early[1]) ** (1 / (len(early) - 2)))
        rows[name] = [factor, reduced.final, plain.final]
    return Finding(
        "without noise RSVRG converges linearly in epochs; RSGD with constant steps plateaus",
        all(
            factor < 0.5 and final < 1e-10 and plateau > 1e-3
            for factor, final, plateau in rows.values()
        ),
        {"mean factor an epoch, final excess risk of RSVRG, of RSGD": rows},
        seeds,
    )


# -- H15 -------------------------------------------------------------------------------------
def strongly_convex(num_examples: int, dimension: int, clip: float, seeds: Sequence[int]) -> Curve:
    """A mean on the sphere at epsilon = 0.5: m and the step size do not depend on n (Theorem 6)."""
    privacy = example_level(0.5, 1.0, clip)
    training = rsvrg(0.005, 100, epochs=10)
    return solve(centrally(cloud(num_examples, dimension), training, 1, privacy), seeds)


def check_h15() -> Finding:
    """Theorems 6 and 8: the excess risk is of order d / (n epsilon)^2."""
    seeds = tuple(range(16))
    sizes = (1000, 3000, 10_000)
    dimensions = (5, 20, 80)
    by_clip = {
        f"C1={clip:g}": [strongly_convex(n, 10, clip, seeds).final for n in sizes]
        for clip in (1e-5, 1e-3, 1.0)
    }
    by_dimension = [strongly_convex(10_000, d, 1e-5, seeds).final for d in dimensions]
    slopes = {key: log_slope(sizes, values) for key, values in by_clip.items()}
    in_d = log_slope([d - 1 for d in dimensions], by_dimension)
    holds = {key: abs(found + 2) < 0.2 for key, found in slopes.items()}
    return Finding(
        "the excess risk falls as d / (n epsilon)^2 (Theorems 6 and 8: clips C0 = C1 = L0)",
        holds["C1=1"],
        {
            "excess risk at n = 1000, 3000, 10000 (C0 = 1)": by_clip,
            "slope in n (-2)": slopes,
            "slope in d at C1=1e-05 (1)": in_d,
        },
        seeds,
        in_regime=holds["C1=1e-05"] and abs(in_d - 1) < 0.2,
        remark="Regime: C1 << C0, where the full gradient sets the noise. With C1 = C0 the noise "
        "that one example in n needs is near 4 C1 whatever n: Claim 5's closed form would make it "
        "smaller, and is no guarantee there (H12).",
    )


# -- H16 -------------------------------------------------------------------------------------
def nonconvex(epsilon: float, clip: float, seeds: Sequence[int]) -> tuple[float, float]:
    """(mean |grad F|^2 at Output II, the constant c of (16)) with Theorem 7's eta, m and S."""
    n = 30
    dimension = 20
    smoothness = 2.0
    lipschitz = 1.0
    spread = dimension * math.log(1 / DELTA)
    epochs = max(1, round(math.sqrt(smoothness / spread) * n ** (2 / 3) * epsilon / lipschitz))
    step_size = 1 / (10 * smoothness * n ** (2 / 3))
    training = rsvrg(step_size, 10 * n // 3, epochs=epochs, output="random-iterate")
    pair = spiked(n, dimension)
    config = centrally(pair, training, 1, example_level(epsilon, lipschitz, clip))
    curve = solve(config, seeds)
    data = load_shards(config)
    squares = [float(data.problem.gradient_norm(x, data.examples)) ** 2 for x in curve.points]
    found = float(np.mean(squares))
    bound = lipschitz * math.sqrt(spread * smoothness * float(curve.excess[:, 0].mean()))
    return found, found * n * epsilon / bound


def check_h16() -> Finding:
    """Theorem 7: the squared gradient norm is of order 1 / (n epsilon)."""
    seeds = tuple(range(32))
    epsilons = (16.0, 64.0)
    rows = {
        f"C1={clip:g}": [nonconvex(epsilon, clip, seeds) for epsilon in epsilons]
        for clip in (1.0, 1e-4)
    }
    slopes = {key: log_slope(epsilons, [row[0] for row in found]) for key, found in rows.items()}
    return Finding(
        "E|grad F|^2 at Output II falls as 1 / (n epsilon) with Theorem 7's step, m and S",
        slopes["C1=1"] < -0.5,
        {
            "n = 30, epsilon = 16 and 64: |grad F|^2 and the constant of (16)": {
                key: [value for row in found for value in row] for key, found in rows.items()
            },
            "slope (at most -1 asymptotically)": slopes,
        },
        seeds,
        in_regime=slopes["C1=0.0001"] < -0.5,
        remark="Regime: C1 << C0 and epsilons that protect nobody; an upper bound, so the slope is "
        "what counts. With C1 = C0 (the theorem's case) noise drives the iterates away from the "
        "start, and S, which grows with n epsilon, makes it worse.",
    )

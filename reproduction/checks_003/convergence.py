"""H14 to H16: what variance reduction and the theorems promise, on small problems."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

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
from reproduction.findings import Finding, Part, log_slope

Array = NDArray[np.float64]


# -- H14 -------------------------------------------------------------------------------------
NOISELESS: dict[str, tuple[Pair, float, int, int]] = {
    "leading eigenvector, sphere": (spiked(500), 0.03, 500, 8),
    "Frechet mean, SPD(4)": (matrices(500), 0.003, 250, 10),
}
"""(problem and data, step size, m, epochs)."""


def epoch_parts(name: str, reduced: Array, plain: Array) -> list[Part]:
    """Excess risks by seed and epoch, of RSVRG and of RSGD: the rate, and both ends."""
    early = np.log10(reduced[:, 1:-2])
    factors = (early[:, -1] - early[:, 0]) / (early.shape[1] - 1)
    last = np.log10(np.maximum(reduced[:, -1], 1e-16))
    return [
        Part(f"{name}: log10 of RSVRG's factor an epoch", factors, most=math.log10(0.5)),
        Part(f"{name}: log10 of RSVRG's last excess risk", last, most=-10.0),
        Part(f"{name}: log10 of RSGD's", np.log10(plain[:, -1]), least=-3.0),
    ]


def check_h14(seeds: Sequence[int] = range(10)) -> Finding:
    """Without noise and clipping."""
    parts = []
    for name, (pair, step_size, inner, epochs) in NOISELESS.items():
        rsgd = {"kind": "rsgd", "step_size": step_size, "local_steps": inner, "minibatch": ONE}
        reduced, plain = (
            solve(centrally(pair, training, epochs), tuple(seeds)).excess
            for training in (rsvrg(step_size, inner), rsgd)
        )
        parts += epoch_parts(name, reduced, plain)
    return Finding.judged(
        "without noise RSVRG converges linearly in epochs; RSGD with constant steps plateaus",
        parts,
        {},
        seeds,
    )


# -- H15 -------------------------------------------------------------------------------------
def strongly_convex(num_examples: int, dimension: int, clip: float, seeds: Sequence[int]) -> Curve:
    """A mean on the sphere at epsilon = 0.5: m and the step size do not depend on n (Theorem 6)."""
    privacy = example_level(0.5, 1.0, clip)
    training = rsvrg(0.005, 100, epochs=10)
    return solve(centrally(cloud(num_examples, dimension), training, 1, privacy), seeds)


SIZES = (1000, 3000, 10_000)
DIMENSIONS = (5, 20, 80)
Risks = Sequence[Sequence[float]]
"""Of every seed, at each size or dimension."""


def risk_parts(by_clip: Mapping[float, Risks], by_dimension: Risks) -> list[Part]:
    """Log-log slopes of the excess risk in n, by correction clip at C0 = 1, and in d - 1."""
    parts = [
        Part(
            f"{'' if clip == 1 else 'ours: '}slope of the excess risk in n, C0 = 1, C1 = {clip:g}",
            [log_slope(SIZES, row) for row in rows],
            most=-1.8,
        )
        for clip, rows in by_clip.items()
    ]
    free = [d - 1 for d in DIMENSIONS]
    slopes = [log_slope(free, row) for row in by_dimension]
    return [*parts, Part("ours: slope of the excess risk in d, C1 = 1e-05", slopes, most=1.2)]


def check_h15(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorems 6 and 8: the excess risk is of order d / (n epsilon)^2."""

    def risks(pairs: Sequence[tuple[int, int]], clip: float) -> Risks:
        columns = [strongly_convex(n, d, clip, seeds).excess[:, -1].tolist() for n, d in pairs]
        return list(zip(*columns, strict=True))

    by_clip = {clip: risks([(n, 10) for n in SIZES], clip) for clip in (1.0, 1e-3, 1e-5)}
    by_dimension = risks([(10_000, d) for d in DIMENSIONS], 1e-5)
    return Finding.judged(
        "the excess risk falls as d / (n epsilon)^2 (Theorems 6 and 8: clips C0 = C1 = L0)",
        risk_parts(by_clip, by_dimension),
        {
            "mean excess risk at n = 1000, 3000, 10000 (C0 = 1)": {
                f"C1={clip:g}": np.mean(rows, axis=0).tolist() for clip, rows in by_clip.items()
            },
            "mean excess risk at d = 5, 20, 80": np.mean(by_dimension, axis=0).tolist(),
        },
        seeds,
        remark="C1 = C0 is the theorems' case. Where C1 << C0 the full gradient sets the noise. "
        "With C1 = C0 the noise that one example in n needs is near 4 C1 whatever n: Claim 5's "
        "closed form would make it smaller, and is no guarantee there (H12).",
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


EPSILONS = (16.0, 64.0)
RUNS = 8
"""Of one seed, whose mean stands for an expectation."""


def gradient_part(squares: Risks) -> Part:
    """Log-log slope of the squared gradient norm in epsilon."""
    slopes = [log_slope(EPSILONS, row) for row in squares]
    return Part("slope of |grad F|^2 in n epsilon, C0 = C1 = 1", slopes, most=-1.0)


def check_h16(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 7: the squared gradient norm is of order 1 / (n epsilon)."""

    def measured(clip: float, seed: int) -> list[tuple[float, float]]:
        runs = range(RUNS * seed, RUNS * (seed + 1))
        return [nonconvex(epsilon, clip, runs) for epsilon in EPSILONS]

    found = [measured(1.0, seed) for seed in seeds]
    rows = {"C1=1": found[0], "C1=0.0001": measured(1e-4, seeds[0])}
    return Finding.judged(
        "E|grad F|^2 at Output II falls as 1 / (n epsilon) with Theorem 7's step, m and S",
        [gradient_part([[square for square, _ in row] for row in found])],
        {
            "n = 30, epsilon = 16, 64, first seed: |grad F|^2 and the constant of (16)": {
                key: [value for pair in row for value in pair] for key, row in rows.items()
            }
        },
        seeds,
        remark="An upper bound, at epsilons that protect nobody. C1 = C0 is the theorem's case: "
        "noise drives the iterates away from the start, and S grows with n epsilon. It falls "
        "where C1 << C0.",
    )

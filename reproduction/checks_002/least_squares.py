"""7 to 12, 16 and 20: distributed parameter estimation, by exact moments and by draws."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from manifed.schedules import Constant, Polynomial
from reproduction.checks_002.settings import (
    COVARIANCE,
    NODES,
    RING,
    START,
    STREAM,
    TARGET,
    Moments,
    errors,
    fixed,
    moments,
    releases,
    schedules,
    second_moments,
)
from reproduction.decor_reference import Array
from reproduction.endless import Releases, epsilon_of_rho
from reproduction.findings import Finding, Part, log_slope
from reproduction.time_varying_reference import NAMES, Setting, last_models, run

GOLDEN = {
    1: {0: (19.5, 19.5), 1: (232.0, 47.9583), 10: (6.48347, 3.51925), 100: (0.294837, 0.225777),
        500: (0.140322, 0.104206), 1000: (0.114266, 0.0868225), 2000: (0.0949058, 0.0742022),
        10_000: (0.0633302, 0.052855), 20_000: (0.0535171, 0.0457887)},
    2: {0: (19.5, 19.5), 1: (234.0, 47.9583), 10: (4.92748, 2.78814), 100: (0.0838396, 0.043603),
        500: (0.0196535, 0.00893015), 1000: (0.0117148, 0.0056601),
        2000: (0.00705943, 0.00365364), 10_000: (0.00222479, 0.0013444),
        20_000: (0.00136536, 0.000877372)},
}  # fmt: skip
"""Spec 002 §5.1: E of the mean squared error, and of the squared error of the mean."""
LONG = 20_000
SHORT = 2000


def of_example(number: int, most: int) -> dict[int, Moments]:
    """Exact moments of an example's algorithm."""
    marks = tuple(k for k in GOLDEN[number] if k <= most)
    return dict(moments(NAMES[number], schedules(number), marks))


def off_table(number: int, most: int) -> float:
    """The largest relative difference to the table."""
    found = of_example(number, most)
    return max(
        abs(a / b - 1)
        for k, one in found.items()
        for a, b in zip((one.mse, one.mean), GOLDEN[number][k], strict=True)
    )


def drawn(setting: Setting, seeds: int, rounds: int, seed: int) -> Array:
    """Mean squared errors of so many runs after all rounds."""
    start = np.broadcast_to(START, (seeds, NODES, len(START)))
    return errors(last_models(run(setting, STREAM, start, rounds, np.random.default_rng(seed))))


def converging(number: int, seed: int) -> dict[int, float]:
    """Mean squared errors of one run after 100 and 2000 iterations, and at the start."""
    setting = Setting(NAMES[number], schedules(number), RING)
    rounds = run(setting, STREAM, np.tile(START, (1, NODES, 1)), SHORT, np.random.default_rng(seed))
    marks = {one.k + 1: float(errors(one.models)[0]) for one in rounds if one.k + 1 in (100, SHORT)}
    return {0: float(((START - TARGET) ** 2).sum()), **marks}


def converging_parts(each: Sequence[Mapping[int, float]], rate: float) -> list[Part]:
    """The error keeps falling, at a proved rate, to below a hundredth of the start's."""
    return [
        Part(
            "slope of the error from k = 100 to 2000",
            [log_slope([101, SHORT + 1], [one[100], one[SHORT]]) for one in each],
            most=rate,
        ),
        Part(
            "error at k = 2000 over that of the start",
            [one[SHORT] / one[0] for one in each],
            most=0.01,
        ),
    ]


def _figure_1(number: int, rate: float, seeds: Sequence[int]) -> Finding:
    return Finding.judged(
        f"Figure 1({'ab'[number - 1]}): Algorithm {number} converges",
        converging_parts([converging(number, seed) for seed in seeds], rate),
        {
            "[E MSE, E |mean - x*|^2]": {
                k: [m.mse, m.mean] for k, m in of_example(number, LONG).items()
            },
            "largest difference to the table": off_table(number, LONG),
        },
        seeds,
        remark="The error first grows to 230: one sample, |u|^2 near 12, alpha_0 = 0.5.",
    )


def rises(values: Iterable[float]) -> bool:
    """Whether each value is above the one before it."""
    return all(a < b for a, b in itertools.pairwise(values))


def check_7(seeds: Sequence[int] = range(10)) -> Finding:
    """Figure 1(a)."""
    return _figure_1(1, 0.0, seeds)


def check_8(seeds: Sequence[int] = range(10)) -> Finding:
    """Figure 1(b), with Theorem 7's rate."""
    return _figure_1(2, -0.1, seeds)


def check_9() -> Finding:
    """Theorem 3: the noise grows and the error falls."""
    found = of_example(1, 10_000)
    row = {k: found[k].mse for k in (100, 1000, 10_000)}
    return Finding(
        "Algorithm 1 converges under growing noise, eta = 0.05",
        rises(reversed(row.values())),
        row,
    )


def by_eta(number: int, etas: Iterable[float]) -> dict[float, list[float]]:
    """Mean squared errors after 1000 and 2000 iterations."""
    marks = (1000, SHORT)
    found = {e: moments(NAMES[number], schedules(number, eta=e), marks) for e in etas}
    return {eta: [row[k].mse for k in marks] for eta, row in found.items()}


def check_10() -> Finding:
    """Theorem 4: more noise is slower."""
    expected = {0.0: 0.0461, 0.05: 0.0949, 0.1: 0.196, 0.2: 0.842, 0.3: 3.64}
    rows = by_eta(1, expected)
    last = {eta: end for eta, (_, end) in rows.items()}
    is_falling = {eta: end < middle for eta, (middle, end) in rows.items()}
    return Finding(
        "Theorem 4: a larger eta is slower; none converges from beta - alpha/2 = .15 on",
        all(abs(last[eta] / v - 1) < 5e-3 for eta, v in expected.items())
        and rises(last.values())
        and all(falls == (eta < 0.15) for eta, falls in is_falling.items()),
        {"MSE at k = 2000": last, "still falling": is_falling},
    )


def check_11() -> Finding:
    """Theorem 7's rate bounds what is measured."""
    rows = by_eta(2, (0.0, 0.05, 0.1, 0.15))
    last = {eta: end for eta, (_, end) in rows.items()}
    slopes = {eta: log_slope([1001, SHORT + 1], row) for eta, row in rows.items()}
    bound = {eta: -min(0.5 - 2 * eta, 0.3 - 2 * eta) for eta in rows}
    return Finding(
        "Theorem 7: O(k^-min(beta - 2 eta, alpha - beta - 2 eta))",
        rises(last.values()) and all(slopes[eta] <= bound[eta] for eta in rows),
        {"MSE at k = 2000": last, "slopes from 1000 to 2000": slopes, "bound": bound},
        remark="A bound, and a loose one: with one Hessian the sharp exponent is alpha - 2 eta.",
    )


def check_12() -> Finding:
    """The leading constants on quadratics."""
    trace = float(np.trace(np.linalg.inv(COVARIANCE)))
    rows = {}
    holds = True
    for number in (1, 2):
        found = of_example(number, LONG)
        table = schedules(number)
        ratios = {}
        for k in (SHORT, LONG):
            alpha = table.step_size(k)
            beta = table.mixing(k)
            sigma = table.noise_scale(k)
            lead = beta**2 / alpha if number == 1 else alpha
            ratios[k] = found[k].mean / (lead * sigma**2 * trace / NODES)
        rows[f"Algorithm {number}"] = ratios
        holds &= 1 < ratios[LONG] < ratios[SHORT] < 1.15
    return Finding(
        "E|mean - x*|^2 over its leading term goes to 1 (beyond the paper)",
        holds,
        rows,
    )


def check_16() -> Finding:
    """Figures 3 and 4: the shape, against stand-ins for [42], [43] and [44]."""
    marks = (100, 500, 1000, SHORT)
    step = Polynomial(scale=0.5, exponent=-0.9)
    runs = {
        "[42]-like: one sample, constant noise": second_moments(
            "output", fixed(step, 1.0, 1.0, SHORT), marks
        ),
        "Algorithm 1": of_example(1, SHORT),
        "[43, 44]-like: 10 samples, constant step and noise": second_moments(
            "gradient", fixed(Constant(value=0.05), 10.0, 1.0, SHORT), marks
        ),
        "Algorithm 2": of_example(2, SHORT),
    }
    accuracy = {name: {k: found[k].mse for k in marks} for name, found in runs.items()}
    dola, first, plain, second = accuracy.values()
    privacy = {
        "[42]-like": float((0.2 * step.values(np.arange(SHORT, dtype=np.float64))).sum()),
        "[43, 44]-like": 0.2 / 10 * SHORT,
        "Algorithm 1": releases(1).series(SHORT).partial,
        "Algorithm 2": releases(2).series(SHORT).partial,
    }
    return Finding(
        "Figures 3, 4: only growing samples give convergence and a finite total",
        dola[SHORT] > dola[100]
        and abs(plain[SHORT] / plain[100] - 1) < 0.05
        and first[SHORT] < dola[SHORT]
        and second[SHORT] < plain[SHORT] / 5
        and privacy["[43, 44]-like"] > 10 * privacy["Algorithm 2"]
        and privacy["[42]-like"] > privacy["Algorithm 1"],
        {"MSE": accuracy, "Laplace epsilon of 2000 iterations at C = 0.2": privacy},
        remark="The paper gives no constants for its rivals; these are stand-ins. With steps that "
        "fall as k^-0.9 the first one's price grows as k^0.1 alone.",
    )


def apart_part(distances: Sequence[float]) -> Part:
    """Median L1 distances between two examples' gradients."""
    return Part("median distance of two gradients at the start (L1)", distances, most=0.2)


def distance(seed: int) -> float:
    """The median over 10 000 pairs of examples."""
    (grads,) = STREAM.each(START[None], 20_000, np.random.default_rng(seed))
    return float(np.median(np.abs(grads[::2] - grads[1::2]).sum(-1)))


def check_20(seeds: Sequence[int] = range(10)) -> Finding:
    """A clip that enforces C, per sample to C / 2 in L1."""
    rows = {}
    for number in (1, 2):
        small, large = (
            float(
                drawn(
                    Setting(NAMES[number], schedules(number), RING, "rigorous", sensitivity),
                    rows_of,
                    rounds,
                    1,
                ).mean()
            )
            for sensitivity, rounds, rows_of in ((0.2, 500, 1), (20.0, 300, 4))
        )
        rows[f"Algorithm {number}"] = {"C = .2, k = 500": small, "C = 20, k = 300": large}
    return Finding.judged(
        "C = 0.2 is how far two examples' gradients lie apart (L1)",
        [apart_part([distance(seed) for seed in seeds])],
        rows,
        seeds,
        remark="The clip that makes C = 0.2 true leaves nothing to learn; C = 20 learns, "
        "at a hundred times the price.",
    )


def check_b1() -> Finding:
    """Beyond the paper: Gaussian noise of the same variance needs half the growth."""
    rows = {}
    for noise, gamma in (("laplace", 1.2), ("gaussian", 1.2), ("gaussian", 0.8),
                         ("gaussian", 0.6), ("gaussian", 0.3)):  # fmt: skip
        is_pure = noise == "laplace"
        table = schedules(2, gamma=gamma, b=1.0 if is_pure else 2**0.5)
        priced = Releases(algorithm="gradient", schedules=table, sensitivity=0.2, noise=noise)
        total = priced.series(10**5).total
        if not is_pure and math.isfinite(total):
            total = epsilon_of_rho(total, 1e-5)
        rows[f"{noise}, gamma {gamma}"] = {
            "MSE at k = 2000": moments("gradient", schedules(2, gamma=gamma), (SHORT,))[SHORT].mse,
            "samples until then": table.samples(SHORT),
            "epsilon of all rounds": total,
        }
    mse, samples, spent = (
        [rows[name][key] for name in ("gaussian, gamma 0.6", "laplace, gamma 1.2")]
        for key in rows["laplace, gamma 1.2"]
    )
    return Finding(
        "Algorithm 2 with Gaussian noise: 2 (gamma + eta) > 1 suffices (delta 1e-5)",
        mse[0] < 1.01 * mse[1]
        and samples[0] < samples[1] / 50
        and spent[0] < 1.2 * spent[1]
        and math.isinf(rows["gaussian, gamma 0.3"]["epsilon of all rounds"]),
        rows,
        remark="C = 0.2 for both, in L2 and in L1: of the same gradients the L2 bound is smaller.",
    )

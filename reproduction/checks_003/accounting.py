"""H9 to H13: the constants, Figure 2, Claim 5's regime and the count of full gradients."""

import math

from scipy import optimize

from reproduction.findings import Finding, log_slope
from reproduction.published_rsvrg import Schedule
from reproduction.rsvrg_prices import (
    calibrated_stddev,
    certain_epsilon,
    least_epsilon,
    moments_epsilon,
    tight_epsilon,
)

DELTA = 1e-6
AUTODP = {
    (0.05, 1): (0.5991, 0.2861), (0.05, 5): (0.6274, 0.3108), (0.05, 10): (0.6291, 0.3298),
    (0.05, 25): (0.6341, 0.3669), (0.05, 50): (0.6425, 0.4070), (0.05, 100): (0.6591, 0.4670),
    (0.1, 1): (0.1226, 0.0638), (0.1, 10): (0.1257, 0.0827), (0.1, 50): (0.1392, 0.1187),
    (0.1, 100): (0.1560, 0.1470),
}  # fmt: skip
"""(alpha = 1/2, best alpha) by autodp 0.2.3.1."""


def figure_2(epochs: int) -> Schedule:
    """Section 6.2's sizes."""
    return Schedule(
        num_examples=10**5,
        inner_steps=10**4,
        epochs=epochs,
        l2_norm_clip=0.1,
        correction_l2_norm_clip=0.01,
    )


def pixels(first: float, second: float, inner_steps: int = 690) -> Schedule:
    """MNIST's zeros: n = 6903, m = n/10, S = 10."""
    return Schedule(
        num_examples=6903,
        inner_steps=inner_steps,
        epochs=10,
        l2_norm_clip=first,
        correction_l2_norm_clip=second,
    )


def check_h9() -> Finding:
    """The best split of eq. (3)."""
    found = optimize.minimize_scalar(
        lambda share: 2 / share + 28 / (1 - share), bounds=(0.01, 0.99), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    schedule = Schedule(num_examples=100, inner_steps=10, epochs=1)
    numbers = {
        "alpha*, numeric and closed form": [float(found.x), schedule.least_share()],
        "minimum of 2/alpha + 28/(1-alpha)": float(found.fun),
        "gain over alpha = 1/2 in K": 60 / float(found.fun),
        "with the cited lemma's 56: alpha*, minimum": [
            schedule.least_share(56), schedule.bracket(schedule.least_share(56), 56)
        ],
    }  # fmt: skip
    holds = abs(found.x - (math.sqrt(14) - 1) / 13) < 1e-6 and abs(found.fun - 44.967) < 1e-3
    return Finding(
        "alpha* = (sqrt(14) - 1)/13 minimises eq. (3)",
        holds,
        numbers,
        remark="For C0 = C1 only; Figure 2 has C0 = 10 C1, where alpha* = 0.728 by the formula and "
        "0.18 to 0.23 by the accountant.",
    )


def check_h10() -> Finding:
    """Figure 2 by the moments accountant, both counts."""
    rows = {}
    errors = []
    for stddev in (0.05, 0.1):
        for epochs in (1, 5, 10, 25, 50, 100):
            schedule = figure_2(epochs)
            equal = moments_epsilon(schedule.releases(stddev, share=0.5), DELTA)
            best, share = least_epsilon(schedule, stddev, DELTA)
            wrong, _ = least_epsilon(schedule, stddev, DELTA, counting="every-epoch")
            rows[f"sigma {stddev} S {epochs}"] = [equal, best, share, equal / best, wrong]
            if (stddev, epochs) in AUTODP:
                pairs = zip((equal, best), AUTODP[stddev, epochs], strict=True)
                errors += [abs(ours / theirs - 1) for ours, theirs in pairs]
    printed = (rows[f"sigma 0.05 S {epochs}"] for epochs in (1, 5, 10, 25, 50, 100))
    claimed = [0.64, 0.47, 1.6]
    together = any([round(r[0], 2), round(r[1], 2), round(r[3], 1)] == claimed for r in printed)
    s50 = rows["sigma 0.05 S 50"]
    mixed = [s50[0], rows["sigma 0.05 S 100"][1], s50[3]]
    apart = [round(mixed[0], 2), round(mixed[1], 2), round(mixed[2], 1)] == claimed
    return Finding(
        "at sigma = 0.05 optimising alpha brings epsilon from 0.64 to 0.47, a 1.6x improvement",
        together,
        {
            "alpha=1/2, best, alpha, ratio, best if charged S times": rows,
            "largest deviation from autodp's grid": max(errors),
            "0.64 (S = 50), 0.47 (S = 100), 1.6x (S = 50)": mixed,
        },
        in_regime=apart and max(errors) < 0.02,
        remark="Right one by one (delta = 1e-6, m S count), but from two abscissae: S = 50 goes "
        "from 0.64 to 0.41 (1.58x), S = 100 from 0.66 to 0.47 (1.41x).",
    )


def check_h11() -> Finding:
    """The gain of Figure 2 under tight accounting."""
    rows = {}
    for stddev, epochs, share in ((0.05, 100, 0.7), (0.1, 100, 0.8)):
        schedule = figure_2(epochs)
        equal, best = (
            tight_epsilon(schedule.releases(stddev, share=alpha), DELTA) for alpha in (0.5, share)
        )
        rows[f"sigma {stddev} S {epochs}"] = [equal, best, equal / best]
    gain = max(row[2] for row in rows.values())
    return Finding(
        "optimising alpha improves epsilon by about 1.6x",
        gain > 1.5,
        {"loss distributions: alpha=1/2, alpha=0.7 or 0.8, ratio": rows},
        remark="The 1.4x to 2.1x of Figure 2 are looseness of the Renyi bound for subsets at noise "
        "multipliers near 1; tightly accounted, epsilon is 2 to 3 times smaller at any alpha.",
    )


def rates(first: float, second: float, epsilon: float) -> dict[str, float]:
    """Exponents of the calibrated sigma in m S (at fixed n) and in 1/epsilon."""

    def sigma(scale: int, target: float) -> float:
        return calibrated_stddev(pixels(first, second, 690 * scale), target, DELTA)[0]

    return {
        "m S": log_slope([1, 4, 16], [sigma(s, epsilon) for s in (1, 4, 16)]),
        "1/epsilon": log_slope([1, 0.5, 0.25], [sigma(1, epsilon * f) for f in (1, 2, 4)]),
    }


def check_h12() -> Finding:
    """Claim 5: sigma ~ sqrt(m S log(1/delta)) / (n epsilon)."""
    exponents = {f"C0=1 C1={c1}": rates(1.0, c1, 0.1) for c1 in (1.0, 0.01)}
    closed = {}
    for n, target in ((10704, 0.1), (10704, 0.3), (1180, 0.5)):
        schedule = Schedule(num_examples=n, inner_steps=n // 10, epochs=10)
        stddev = schedule.claimed_stddev(target, DELTA)
        alone = schedule.releases(stddev, share=1e-12)[1:]
        closed[f"n {n} target {target}"] = [
            stddev, schedule.order_limit(stddev), schedule.needed_order(target, DELTA),
            tight_epsilon(alone, DELTA, is_optimistic=True),
            tight_epsilon(schedule.releases(stddev), DELTA),
        ]  # fmt: skip
    violated = closed["n 10704 target 0.3"][3] > 0.3
    in_regime = abs(exponents["C0=1 C1=0.01"]["m S"] - 0.5) < 0.05
    return Finding(
        "Algorithm 11 is (epsilon, delta)-DP with sigma^2 of order m S log(1/delta) C^2/(n eps)^2",
        not violated,
        {
            "exponents of the calibrated sigma (1/2 and 1 claimed)": exponents,
            "closed form: sigma, lambda limit, lambda needed, epsilon at least, about": closed,
        },
        in_regime=in_regime,
        remark="Regime: C1 << C0, or sigma_2 >> 4 C1 (n above 1e4 to 3e5). At the paper's n and "
        "C0 = C1 the closed form misses its target by up to 16x: never calibrate with it.",
    )


def check_h13() -> Finding:
    """What charging the full gradient once an epoch does to the printed algorithm."""
    rows = {}
    for first, second in ((1.0, 1.0), (1.0, 0.1), (1.0, 0.01)):
        schedule = pixels(first, second)
        sound, _ = calibrated_stddev(schedule, 0.1, DELTA)
        short, _ = calibrated_stddev(schedule, 0.1, DELTA, counting="every-epoch")
        rows[f"C0={first:g} C1={second:g}"] = [
            sound, short, sound / short, certain_epsilon(schedule, short, DELTA)
        ]  # fmt: skip
    worst = rows["C0=1 C1=0.01"]
    upper = tight_epsilon(pixels(1.0, 0.01).releases(worst[1], share=0.94), DELTA)
    return Finding(
        "the public code's accountant (full gradient charged S times) gives the stated epsilon 0.1",
        worst[3] <= 0.1,
        {
            "sigma at m S, sigma at S, ratio, epsilon at least": rows,
            "C0=1 C1=0.01, epsilon at S-count noise: at least, about": [worst[3], upper],
        },
        in_regime=rows["C0=1 C1=1"][3] <= 0.1,
        remark="Regime: C1 = C0, where the looseness of the Renyi bound hides it. With C1 = C0/100 "
        "the noise is 9 times too small and epsilon 9 times the target.",
    )

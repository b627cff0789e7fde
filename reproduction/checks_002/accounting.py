"""1 to 6, 13 to 15, 19 and 21: sensitivities, totals and conditions."""

import itertools
import math
from collections.abc import Iterable

import numpy as np

from manifed.schedules import Constant
from reproduction.checks_002.settings import RING, releases, schedules
from reproduction.conditions import (
    ProblemConstants,
    assumption_4,
    assumption_5,
    corollary_1,
    corollary_2,
    corollary_3,
)
from reproduction.endless import Releases, printed_sum
from reproduction.findings import Finding, log_slope

TABLE = {
    1: (0.100000000, 0.100000000), 2: (0.084875193, 0.067012302), 3: (0.072224021, 0.062922994),
    4: (0.062248847, 0.056505355), 5: (0.054314217, 0.050398821), 10: (0.030432655, 0.029464250),
    100: (0.000837862, 0.000827894), 1000: (0.000015542, 0.000015442),
    2000: (0.000005558, 0.000005533),
}  # fmt: skip
"""Spec 002 §3.8: Delta_k by the recursion and by eq. (4), Example 1."""
FIGURE_2 = {
    "output": {0.9: (1.6353, 1.3908, 1.1936, 0.9002, 0.6970),
               1.1: (1.1441, 1.0027, 0.8834, 0.6955, 0.5566),
               1.4: (0.9018, 0.8059, 0.7224, 0.5856, 0.4800),
               2.0: (0.7178, 0.6483, 0.5869, 0.4845, 0.4035)},
    "gradient": {1.1: (1.5633, 1.2348, 1.0097, 0.8507), 1.2: (1.0208, 0.8612, 0.7450, 0.6581),
                 1.4: (0.6028, 0.5499, 0.5075, 0.4728), 2.0: (0.3290, 0.3201, 0.3120, 0.3047)},
}  # fmt: skip
"""Partial sums by gamma, for eta = 0, .05, .1, .2, .3 (output, K = 20000), 0, .05, .1, .15."""
ETAS = {"output": (0.0, 0.05, 0.1, 0.2, 0.3), "gradient": (0.0, 0.05, 0.1, 0.15)}


def falls(values: Iterable[float]) -> bool:
    """Whether each value is below the one before it."""
    return all(b < a for a, b in itertools.pairwise(values))


def partials(of: Releases, powers: Iterable[int]) -> list[float]:
    """Epsilon after so many powers of ten of rounds."""
    return [of.series(10**n).partial for n in powers]


def check_1() -> Finding:
    """Lemma 1 leaves out the newest sample, C alpha_{k-1} / gamma_{k-1}."""
    example = releases(1)
    s = example.schedules
    k = np.arange(2000, dtype=np.float64)
    found = example.sensitivities(2000)
    newest = example.sensitivity * s.step_size.values(k) / s.sizes(k)
    products = [1.0]
    for t in range(1, 10):  # eq. (4) at k = 10, term by term
        products = [p * (1 - s.mixing(t)) for p in products] + [1.0]
    printed_10 = float(sum(p * f for p, f in zip(products[:-1], newest[:9], strict=True)))
    rows = {k: [float(found[k - 1]), float(found[k - 1] - newest[k - 1] * (k > 1))] for k in TABLE}
    off = np.abs(np.array([*rows.values()]) - [*TABLE.values()]).max()
    return Finding(
        "Lemma 1: eq. (4) bounds how far one sample a round moves what is sent",
        not newest[1:].any(),
        {
            "Delta_k [recursion (8), eq. (4)]": rows,
            "largest difference to the table": float(off),
            "eq. (4) at k = 10 term by term, off by": abs(printed_10 - rows[10][1]),
        },
        remark="Eq. (4) is less than its own proof's recursion by C alpha_{k-1} / gamma_{k-1}.",
    )


def check_2() -> Finding:
    """Theorem 2 (iii): on both sides of the boundary."""
    rows = {}
    holds = True
    for gamma in (0.55, 0.65, 0.75, 1.1):
        of = releases(1, gamma=gamma)
        margin = 0.9 + gamma - 0.6 + 0.05 - 1
        parts = partials(of, (4, 5, 6))
        first, second = np.diff(parts)
        slope = math.log10(second / first)
        total = of.series(10**5).total
        rows[f"gamma {gamma}, margin {margin:.2f}"] = {
            "eps(10^4), eps(10^5)": parts[:2],
            "growth exponent of the increments": slope,
            "total": total,
        }
        holds &= abs(slope + margin) < 0.1 and math.isfinite(total) == (margin > 1e-12)
    deltas = releases(1).sensitivities(10**5)
    slope = log_slope([10**4, 10**5], [deltas[10**4 - 1], deltas[-1]])
    return Finding(
        "Theorem 2 (iii): finite if alpha + gamma - beta + eta > 1",
        holds and abs(slope + 1.4) < 0.03,
        {
            **rows,
            "slope of log Delta_k": slope,
            "Delta_k / (.2 (k+1)^-1.4), k = 1000, 2000": [
                deltas[k - 1] / (0.2 * (k + 1) ** -1.4) for k in (1000, 2000)
            ],
        },
    )


def check_3() -> Finding:
    """Theorem 2 (i) and (ii), beta = 1."""
    rows = {}
    holds = True
    for case, gamma, least in (("(i)", 0.5, 0.6), ("(ii)", 1.2, 0.5)):
        for eta in (least - 0.1, least + 0.1):
            of = releases(1, beta=1.0, gamma=gamma, eta=eta)
            few, many = partials(of, (4, 5))
            total = of.series(10**5).total
            rows[f"{case} gamma {gamma}, eta {eta:.1f}"] = {
                "eps(10^4)": few,
                "eps(10^5)": many,
                "total": total,
            }
            holds &= math.isfinite(total) == (eta > least)
    return Finding("Theorem 2 (i), (ii): beta = 1, a1 = .5", holds, rows)


def check_4() -> Finding:
    """Theorem 5: on both sides of the boundary."""
    rows = {}
    holds = True
    for gamma in (0.8, 0.9, 0.95, 1.2):
        of = releases(2, gamma=gamma)
        total = of.series(10**5).total
        rows[f"gamma {gamma}, eta 0.1"] = {"eps(10^3..5)": partials(of, (3, 4, 5)), "total": total}
        holds &= math.isfinite(total) == (gamma > 0.9)
    golden = {100: 0.388907, 1000: 0.471665, 2000: 0.487399, 10**4: 0.513492, 10**6: 0.544988}
    sums = {k: printed_sum(releases(2), k).partial for k in golden}
    return Finding(
        "Theorem 5: finite if gamma + eta > 1",
        holds and all(abs(sums[k] - v) < 1e-6 for k, v in golden.items()),
        {
            **rows,
            "Example 2, k = 1..K as printed": sums,
            "what the sum from k = 1 leaves out": 0.2,
        },
    )


def check_5() -> Finding:
    """The totals in the text."""
    rows = {}
    holds = True
    for number, text, corrected, printed in (
        (1, 0.864, 1.0080, 0.9584),
        (2, 0.488, 0.7555, 0.5555),
    ):
        found = releases(number).series(10**6)
        own = printed_sum(releases(number), 10**6).total
        rows[f"Example {number}"] = {
            "in the text": text,
            "its formula": own,
            "all that is released": found.total,
            "at least": found.total_low,
        }
        holds &= abs(own - text) < 1e-3 and abs(found.total - text) < 1e-3
        assert abs(found.total - corrected) < 5e-4
        assert abs(own - printed) < 5e-4
    return Finding(
        "total epsilon 0.864 (Example 1) and 0.488 (Example 2)",
        holds,
        rows,
        remark="0.488 is the formula's sum cut at k = 2010 to 2111; no cut explains both.",
    )


def check_6() -> Finding:
    """Figure 2."""
    rows = {}
    holds = True
    off = 0.0
    for algorithm, grid in FIGURE_2.items():
        number, rounds = (1, 20_000) if algorithm == "output" else (2, 10**6)
        table = [
            [releases(number, gamma=g, eta=eta).series(rounds).partial for eta in ETAS[algorithm]]
            for g in grid
        ]
        rows |= {f"{algorithm}, gamma {g}": row for g, row in zip(grid, table, strict=True)}
        holds &= all(map(falls, (*table, *zip(*table, strict=True))))
        off = max(off, float(np.abs(np.array(table) - [*grid.values()]).max()))
    return Finding(
        "Figure 2: epsilon falls in eta and in gamma",
        holds and off < 1e-4,
        {**rows, "largest difference to the table": off},
    )


def check_13() -> Finding:
    """Which schedules of the paper meet its own theorems."""
    ring = ProblemConstants(1.0, math.sqrt(96), float(np.linalg.svd(RING)[1][1]), 6)
    named = {
        "Remark 8a": corollary_1(schedules(1, alpha=1.0, beta=0.9, gamma=1.06, eta=0.35)),
        "Remark 8b": corollary_1(schedules(1, alpha=0.9, beta=0.8, gamma=1.8, eta=0.2)),
        "Remark 11": corollary_2(schedules(2, alpha=1.0, beta=0.6, gamma=1.1, eta=0.1)),
        "Example 1, Corollary 1": corollary_1(schedules(1)),
        "Example 1, Assumption 4": assumption_4(schedules(1), ring),
        "Example 2, Corollary 2": corollary_2(schedules(2)),
        "Example 2, Assumption 5": assumption_5(schedules(2), ring),
    }
    rows = {
        name: {"holds": one.holds, "fails": [c.text for c in one.failing], "margin": one.margin}
        for name, one in named.items()
    }
    remarks = all(rows[f"Remark {r}"]["holds"] for r in ("8a", "8b", "11"))
    return Finding(
        "the paper's schedules meet its conditions",
        all(one.holds for one in named.values()),
        rows,
        in_regime=remarks,
        remark="The remarks do (8a on the boundary, where Theorem 4's rate is k^0); "
        "Example 1 meets neither Corollary 1 nor Assumption 4, Example 2 not Assumption 5.",
    )


def check_14() -> Finding:
    """Without growth."""
    rows = {}
    holds = True
    for name, number, expected in (("gradient", 2, 0.9), ("output", 1, 0.65)):
        of = releases(number, gamma=0.0)
        sums = partials(of, (3, 4, 5))
        slope = math.log10(sums[2] / sums[1])
        rows[name] = {"eps(10^3..5)": sums, "exponent": slope, "expected": expected}
        holds &= abs(slope - expected) < 0.03 and of.series(1000).total == math.inf
    return Finding(
        "growth of the samples is what makes the total finite",
        holds,
        rows,
    )


def check_15() -> Finding:
    """Remark 4: how the total scales."""
    base = releases(2)
    total = base.series(10**5).total
    twice = base.model_copy(update={"sensitivity": 0.4}).series(10**5).total / total
    noise = releases(2, b=2.0).series(10**5).total / total
    more = {a3: releases(2, a3=a3).series(10**5).total * a3 for a3 in (1.0, 10.0, 1e3, 1e5)}
    holds = abs(twice - 2) < 1e-9 and abs(noise - 0.5) < 1e-9
    holds &= abs(more[1e5] / more[1e3] - 1) < 1e-3
    return Finding(
        "Remark 4: epsilon is linear in C, inverse in b, about inverse in a3",
        holds,
        {"C twice": twice, "b twice": noise, "epsilon a3 for a3 = 1, 10, 10^3, 10^5": more},
    )


def check_19() -> Finding:
    """A finite data set."""
    size = 12_000
    capped = schedules(2).model_copy(update={"sample_size": Constant(value=size)})
    of = Releases(algorithm="gradient", schedules=capped, sensitivity=0.2)
    k = np.arange(10**6, dtype=np.float64)
    grown = np.minimum(schedules(2).sizes(k), size)
    whole = np.cumsum(0.2 / grown / capped.noise_scale.values(k))
    sums = {n: float(whole[10**n - 1]) for n in (4, 5, 6)}
    slope = math.log10((sums[6] - sums[5]) / (sums[5] - sums[4]))
    total = of.series(1000).total
    return Finding(
        "Remark 12: a finite sample space only caps gamma_k (N = 12000)",
        total != math.inf and slope < 0,
        {
            **{
                f"K = 10^{n}": {
                    "eps(K), gamma_k capped at N": spent,
                    "(C/N) K^(1-eta) / (1-eta)": 0.2 / size * (10**n) ** 0.9 / 0.9,
                }
                for n, spent in sums.items()
            },
            "exponent of the increments": slope,
            "total": total,
        },
        remark="Convergence, perhaps; the total epsilon is infinite again.",
    )


def check_21() -> Finding:
    """Corollary 3."""
    rows = {}
    costs = True
    for accuracy, expected in ((0.05, 3.5), (0.01, 2.196)):
        _, exponent, privacy = corollary_3(accuracy)
        rows[f"accuracy {accuracy}"] = {
            "exponent of the cost": exponent, "gamma + eta - 1": privacy.margin,
        }  # fmt: skip
        costs &= abs(exponent - expected) < 1e-3
    finite = corollary_3(0.05)[2].holds
    return Finding(
        "Corollary 3: a sample cost near epsilon^-2 at a finite total epsilon",
        costs and finite,
        rows,
        in_regime=costs,
        remark="The cost is right; with these exponents the total epsilon is infinite.",
    )

"""Checks 1 to 3: Theorem 4.2 as printed (Table 1), its monotonicity, and its two repairs.

What the theorem says is unsound at record level (spec 000 §11); reproducing it is not endorsing it.
"""

import csv
import itertools
from collections.abc import Mapping
from pathlib import Path

from manifed.privacy.accountant import Claim
from reproduction.findings import Finding, verdict_of

LOCAL = (0.15, 1e-4)
SLACK = 1e-3
TABLE_1 = Path(__file__).with_name("table_1.csv")


def table_1() -> list[dict[str, float]]:
    """The 48 printed pairs."""
    with TABLE_1.open(encoding="utf-8") as file:
        return [{key: float(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def printed(num_clients: float, cohort_size: float, num_rounds: float, local_epsilon: float = 0.15):
    """Theorem 4.2 at Table 1's delta and slack."""
    claim = Claim(local_epsilon, LOCAL[1], int(num_clients), int(cohort_size), SLACK)
    return claim.after(int(num_rounds))


def check_1() -> Finding:
    """96 numbers of Table 1 within 0.5 %."""
    deviations = []
    for row in table_1():
        found = printed(row["num_clients"], row["cohort_size"], row["num_rounds"])
        deviations.append(abs(found[0] / row["epsilon"] - 1))
        deviations.append(abs(found[1] / row["delta"] - 1))
    worst = max(deviations)
    return Finding(
        "1",
        "Table 1 follows from Theorem 4.2 (96 numbers, 0.5 %)",
        verdict_of(len(deviations) == 96 and worst <= 5e-3),
        {"numbers": len(deviations), "largest_relative_deviation": worst},
        remark="the formula is reproduced; as a guarantee it is unsound at record level",
    )


def check_2() -> Finding:
    """The theorem's epsilon' grows with T, s and epsilon; at rho = 1 a round costs s epsilon."""
    rounds = [printed(100, 5, t)[0] for t in (50, 100, 200, 300, 400, 500)]
    cohorts = [printed(100, s, 200)[0] for s in (1, 2, 5, 10)]
    locals_ = [printed(100, 5, 200, e)[0] for e in (0.05, 0.1, 0.15, 0.3)]
    grows = all(a < b for line in (rounds, cohorts, locals_) for a, b in itertools.pairwise(line))
    whole = printed(10, 10, 1)[0]
    below_basic = all(
        row["epsilon"] < row["num_rounds"] * _one_round(row) * (1 + 5e-3) for row in table_1()
    )
    return Finding(
        "2",
        "epsilon' grows with T, s, epsilon; advanced <= basic in Table 1; rho = 1 gives s epsilon",
        verdict_of(grows and below_basic and abs(whole / (10 * LOCAL[0]) - 1) < 1e-9),
        {"by_rounds": rounds, "by_cohort": cohorts, "by_local_epsilon": locals_, "rho_1": whole},
    )


def _one_round(row: dict[str, float]) -> float:
    """epsilon-tilde: one round, where basic composition is the smaller branch."""
    return printed(row["num_clients"], row["cohort_size"], 1)[0]


def check_3() -> Finding:
    """Parallel composition across clients never exceeds the printed bound; equal iff s = 1."""
    pairs = {
        (n, s, t): Claim(*LOCAL, n, s, SLACK).compared(t)
        for n, s, t in (
            (int(row["num_clients"]), int(row["cohort_size"]), int(row["num_rounds"]))
            for row in table_1()
        )
    }
    ordered = all(_is_ordered(s, prices) for (_, s, _), prices in pairs.items())
    example = pairs[300, 10, 500]
    first = pairs[100, 1, 50]
    last = pairs[100, 1, 500]
    return Finding(
        "3",
        "parallel composition across clients is never worse, equal iff s = 1",
        verdict_of(ordered),
        {
            "300_10_500": {who: price["epsilon"] for who, price in example.items()},
            "100_1_50": {who: price["epsilon"] for who, price in first.items()},
            "100_1_500": {who: price["epsilon"] for who, price in last.items()},
        },
        remark="published and parallel are unsound at record level; external and server hold",
    )


def _is_ordered(cohort_size: int, prices: Mapping[str, Mapping[str, float]]) -> bool:
    parallel = prices["parallel"]["epsilon"]
    published = prices["published"]["epsilon"]
    is_equal = abs(parallel / published - 1) < 1e-9
    return parallel <= published * (1 + 1e-12) and is_equal == (cohort_size == 1)

"""Checks 1 to 3: Theorem 4.2 as printed (Table 1), its monotonicity, and its two repairs.

What the theorem says is unsound at record level; reproducing it is not endorsing it.
"""

import csv
import itertools
from pathlib import Path

from manifed.privacy.epsilon_bounds import Claim
from reproduction.findings import Finding
from reproduction.printed_theorem import compared

LOCAL = (0.15, 1e-4)
SLACK = 1e-3
TABLE_1 = Path(__file__).with_name("table_1.csv")


def table_1() -> list[dict[str, float]]:
    """The 48 printed pairs."""
    with TABLE_1.open(encoding="utf-8") as file:
        return [{key: float(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def printed(
    num_clients: float, cohort_size: float, num_rounds: float, local_epsilon: float = LOCAL[0]
) -> tuple[float, float]:
    """Theorem 4.2 at Table 1's delta and slack."""
    claim = Claim(local_epsilon, LOCAL[1], int(num_clients), int(cohort_size), SLACK)
    return claim.after(int(num_rounds))


def check_1() -> Finding:
    """96 numbers of Table 1 within 0.5 %."""
    deviations = [
        abs(value / row[name] - 1)
        for row in table_1()
        for name, value in zip(
            ("epsilon", "delta"),
            printed(row["num_clients"], row["cohort_size"], row["num_rounds"]),
            strict=True,
        )
    ]
    worst = max(deviations)
    return Finding(
        "Table 1 follows from Theorem 4.2 (96 numbers, 0.5 %)",
        len(deviations) == 96 and worst <= 5e-3,
        {"numbers": len(deviations), "largest_relative_deviation": worst},
        remark="the formula is reproduced; as a guarantee it is unsound at record level",
    )


def check_2() -> Finding:
    """The theorem's epsilon' grows with T, s and epsilon; at rho = 1 a round costs s epsilon.

    Basic composition takes the epsilon-tilde of one round, where it is the smaller branch.
    """
    numbers = {
        "by_rounds": [printed(100, 5, t)[0] for t in (50, 100, 200, 300, 400, 500)],
        "by_cohort": [printed(100, s, 200)[0] for s in (1, 2, 5, 10)],
        "by_local_epsilon": [printed(100, 5, 200, e)[0] for e in (0.05, 0.1, 0.15, 0.3)],
    }
    grows = all(a < b for line in numbers.values() for a, b in itertools.pairwise(line))
    whole = printed(10, 10, 1)[0]
    below_basic = all(
        row["epsilon"]
        < row["num_rounds"] * printed(row["num_clients"], row["cohort_size"], 1)[0] * (1 + 5e-3)
        for row in table_1()
    )
    return Finding(
        "epsilon' grows with T, s, epsilon; advanced <= basic in Table 1; rho = 1 gives s epsilon",
        grows and below_basic and abs(whole / (10 * LOCAL[0]) - 1) < 1e-9,
        numbers | {"rho_1": whole},
    )


def check_3() -> Finding:
    """Parallel composition across clients never exceeds the printed bound; equal iff s = 1."""
    prices = {}
    ordered = True
    for row in table_1():
        n, s, t = (int(row[key]) for key in ("num_clients", "cohort_size", "num_rounds"))
        views = compared(Claim(*LOCAL, n, s, SLACK), t)
        prices[f"{n}_{s}_{t}"] = {who: price["epsilon"] for who, price in views.items()}
        ratio = views["parallel"]["epsilon"] / views["published"]["epsilon"]
        ordered &= ratio <= 1 + 1e-12 and (abs(ratio - 1) < 1e-9) == (s == 1)
    return Finding(
        "parallel composition across clients is never worse, equal iff s = 1",
        ordered,
        {key: prices[key] for key in ("300_10_500", "100_1_50", "100_1_500")},
        remark="published and parallel are unsound at record level; external and server hold",
    )

"""How often the intervals of `manifed.intervals` hold the value of the population.

python benchmarks/coverage.py [--out benchmarks/results]

The population is a data set that scikit-learn ships, in public units. A draw takes that many rows
from it with replacement, which three sites hold, releases the moments with noise at each site or
with that of a secure sum, and asks for every statistic. Each number of a statistic has a share of
draws whose interval holds its value. A row of the table has the least of these shares, their mean
and the largest. Between 94 % and 96 % counts as 95 %. Persons are three rows each, neighbours in
the first column, and are drawn whole. Draws are made without clients: the mean of t over
multinomial counts, plus normals of `manifed.plan.mean_noise`.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, table
from manifed.intervals import (
    components,
    covariance,
    estimates,
    plan_of,
    reach_of,
    ridge,
    standardisation,
)
from manifed.plan import mean_noise
from manifed.problems.examples import Examples, grouped
from manifed.problems.moments import Moments

COLUMNS = {
    "breast cancer": (datasets.load_breast_cancer, (0, 1, 4, 8, 9)),
    "diabetes": (datasets.load_diabetes, (0, 2, 3, 6, 8)),
    "wine": (datasets.load_wine, (0, 1, 2, 8, 11)),
}
AT_ONCE = 250
"""Draws that are computed together."""
ROWS_OF_PERSON = 3
TRUSTS: dict[str, dict[str, object]] = {
    "each site": {},
    "secure sum": {"trust": {"kind": "secure-sum"}},
    "each site, persons": {"unit": "person"},
}
STATISTICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda mean, second: mean,
    "covariance": lambda mean, second: covariance(mean, second)[torch.triu(torch.ones(5, 5)) > 0],
    "standardisation": standardisation,
    "first component": components,
    "ridge, alpha 0.1": partial(ridge, alpha=0.1),
}


def population(name: str) -> Tensor:
    """Rows (n, 5) in deviations from the mean, as a public table of units would give them."""
    load, columns = COLUMNS[name]
    data: Any = load()
    rows = data.data[:, columns]
    return torch.from_numpy((rows - rows.mean(0)) / rows.std(0) + 0.3)


def held(
    rows: Tensor, sizes: tuple[int, ...], privacy: dict[str, object], draws: int, seed: int
) -> dict[str, Tensor]:
    """The share of intervals that hold the population's value, for each number of a statistic."""
    row_norm = 4.0
    of_person = ROWS_OF_PERSON if "unit" in privacy else 0
    plan = plan_of(sizes, rows.shape[1], row_norm, privacy, of_person)
    noise = mean_noise(plan.setting, sizes)
    problem = Moments(row_norm=row_norm)
    examples = Examples({"z": rows}, {"z": 1})
    if of_person:
        persons = torch.empty(len(rows), dtype=torch.long)
        persons[rows[:, 0].argsort()] = torch.arange(len(rows)) // of_person
        examples = grouped(examples, persons, of_person)
    values = problem.statistics(examples)
    truth = values.mean(0)
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    exact = {
        name: estimates(truth, 10**15, 0.0, row_norm, f)[0].flatten()
        for name, f in STATISTICS.items()
    }
    for _ in range(draws // AT_ONCE):
        counts = rng.multinomial(total, np.full(len(values), 1 / len(values)), AT_ONCE)
        released = torch.from_numpy(counts / total) @ values
        released = released + noise * torch.randn(
            released.shape, generator=generator, dtype=torch.float64
        )
        for name, f in STATISTICS.items():
            made = estimates(released, total, noise, row_norm, f)
            estimate, *squares = (one.reshape(AT_ONCE, -1) for one in made)
            reach = reach_of(*squares, level=0.95)
            found[name].append(((estimate - exact[name]).abs() <= reach).double())
    return {name: torch.cat(each).mean(0) for name, each in found.items()}


def main() -> None:
    """Prints the table."""
    page = Page(__doc__, "coverage.md", draws=10_000, rows=1000)
    given = page.parser.parse_args()
    page.say(f"# How often intervals hold the value\n\n{circumstances()}\n")
    lines = []
    for name, trust, epsilon in product(COLUMNS, TRUSTS, (1.0, 4.0)):
        privacy = {"epsilon": epsilon, "delta": 1e-5, **TRUSTS[trust]}
        shares = held(population(name), (given.rows,) * 3, privacy, given.draws, 0)
        for statistic, share in shares.items():
            cells = [f"{one:.1%}" for one in (share.min(), share.mean(), share.max())]
            lines.append([name, trust, f"{epsilon:g}", statistic, *cells])
    page.say(table(["data", "trust", "epsilon", "statistic", "least", "mean", "largest"], lines))
    page.save(given, lines)


if __name__ == "__main__":
    main()

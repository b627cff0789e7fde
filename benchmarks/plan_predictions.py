"""What `manifed plan` predicts of each method beside what runs of it measure, a problem kind each.

    python -m benchmarks.plan_predictions [--epsilon 0.5 2] [--seeds 3] [--out benchmarks/results]

Ten clients, noise at each, everybody in every round, (epsilon, delta) over the whole run. For every
method that the plan offers: the predicted relative gap (f(x) - f*) / |f*|, the mean that seeds
0, 1, ... measure with its resolved config, and predicted / measured. A method whose runs fail has
no measured gap.

A problem and epsilon that was measured is a file below --cells, and is measured again only when the
plan is another one.
"""

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.choosing import gap_of
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import table
from benchmarks.leaderboard.tasks import COMPLETION, LOW_RANK, mean_on, private_table
from manifed.durable import write_atomically
from manifed.errors import BudgetExhausted, RoundFailed
from manifed.experiment import planner
from manifed.experiment.load import parse

FACTOR = 2.0
"""Of a prediction that is good enough."""


@dataclass(frozen=True)
class Case:
    """A problem on data that its kind is made for, with a public clip."""

    title: str
    problem: dict[str, Any]
    data: dict[str, Any]
    l2_norm_clip: float
    delta: float = 1e-4

    def table(self, epsilon: float) -> dict[str, Any]:
        """The config, left to the planner."""
        found = private_table(
            "predicted", self.problem, self.data, self.l2_norm_clip, epsilon, self.delta, 0, 10
        )
        found["federation"]["num_rounds"] = 100
        return found | {"training": {"kind": "auto"}}


_SPD = {"kind": "spd-lognormal", "num_examples": 1000, "dimension": 5, "condition": 4}
CASES = (
    Case("one component, digits", {"kind": "principal-eigenvector"}, {"kind": "digits"}, 1.0),
    Case(
        "two components, digits", {"kind": "kpca", "num_components": 2, "scaling": "mean"},
        {"kind": "digits"}, 1.0,
    ),
    Case(
        "matrix completion, rank 2 of 30",
        COMPLETION,
        LOW_RANK, 1.0,
    ),
    Case(
        "log-Euclidean mean, 5 x 5",
        mean_on("spd-log-euclidean"), _SPD, 6.0,
    ),
    Case(
        "affine-invariant mean, 5 x 5", mean_on("spd"),
        _SPD, 6.0,
    ),
    Case(
        "hyperbolic mean, d = 10", mean_on("lorentz"),
        {"kind": "reproduction.recipes:HyperbolicCloud", "num_examples": 1000,
         "dimension": 10, "spread": 0.3}, 3.0,
    ),
    Case(
        "spherical mean, d = 10", {"kind": "frechet-mean", "manifold": "sphere"},
        {"kind": "reproduction.recipes:SphereCloud", "num_examples": 1000,
         "dimension": 10, "spread": 0.3}, 3.0,
    ),
    Case(
        "class means, three classes, 4 x 4",
        {"kind": "nearest-mean", "manifold": "spd", "num_classes": 3},
        {"kind": "reproduction.recipes:SPDClasses"}, 4.0,
    ),
    Case(
        "least squares, 500 rows in R^10", {"kind": "least-squares"},
        {"kind": "synthetic-least-squares", "rows": 500, "dimension": 10, "noise_stddev": 0.5},
        30.0,
    ),
    Case(
        "logistic regression, made up", {"kind": "logistic"},
        {"kind": "reproduction.recipes:OneHotLogistic", "num_examples": 4000}, 3.0,
    ),
)  # fmt: skip


def rows_of(case: Case, epsilon: float, seeds: int, cells: Path) -> list[dict[str, Any]]:
    """Method, predicted gap and measured gaps of all that the plan offers, best first."""
    asked = case.table(epsilon)
    plans = [
        {"method": o.name, "predicted": o.gap, "table": planner.with_option(asked, o)}
        for o in planner.planned(asked, parse)
    ]
    said = json.dumps([plans, seeds], sort_keys=True)
    spec = hashlib.sha256(said.encode()).hexdigest()
    path = cells / f"{hashlib.sha256(case.title.encode()).hexdigest()[:12]}-{epsilon:g}.json"
    if path.is_file() and (kept := json.loads(path.read_text()))["spec"] == spec:
        return kept["rows"]
    rows = [
        {
            "case": case.title,
            "epsilon": epsilon,
            "method": plan["method"],
            "predicted": plan["predicted"],
            "gaps": _gaps(plan["table"], seeds),
        }
        for plan in plans
    ]
    write_atomically(path, json.dumps({"spec": spec, "rows": rows}, indent=1).encode())
    return rows


def _gaps(made: dict[str, Any], seeds: int) -> list[float]:
    """Of every seed; empty where a run fails."""
    federation = made["federation"]
    try:
        return [
            gap_of(parse({**made, "federation": {**federation, "seed": s}})) for s in range(seeds)
        ]
    except (RoundFailed, BudgetExhausted):
        return []


def ratio_of(row: dict[str, Any]) -> float | None:
    """Predicted over measured, where both are there."""
    if row["predicted"] is None or not row["gaps"]:
        return None
    return row["predicted"] / statistics.mean(row["gaps"])


def within(rows: Sequence[dict[str, Any]]) -> str:
    """How many of them are good enough, in words."""
    ratios = [ratio for row in rows if (ratio := ratio_of(row)) is not None]
    good = sum(1 / FACTOR <= ratio <= FACTOR for ratio in ratios)
    return f"{good} of {len(ratios)}"


def text_of(rows: list[dict[str, Any]]) -> str:
    """The tables."""
    parts = [
        "# What a plan predicts, and what runs measure",
        "",
        f"`{' '.join(['python -m benchmarks.plan_predictions', *sys.argv[1:]])}`",
        "",
        "Relative gap (f(x) - f*) / |f*|; measured is the mean over seeds. Methods in the order of "
        "the plan: the first is what `auto` takes. Bold: off by more than a factor of "
        f"{FACTOR:g}. Within it: {within(rows)} methods in all, "
        f"{within(_firsts(rows))} of those that a plan puts first.",
        "",
        table(["problem", "epsilon", "first method", "all methods"], _summary(rows)),
        "",
    ]
    cells = [
        [row["case"], f"{row['epsilon']:g}", row["method"], _number(row["predicted"]),
         _number(statistics.mean(row["gaps"]) if row["gaps"] else None), _shown(ratio_of(row))]
        for row in rows
    ]  # fmt: skip
    head = ["problem", "epsilon", "method", "predicted", "measured", "predicted / measured"]
    return "\n".join([*parts, table(head, cells)])


def _firsts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    seen = {}
    for row in rows:
        seen.setdefault((row["case"], row["epsilon"]), row)
    return list(seen.values())


def _summary(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    found = []
    for first in _firsts(rows):
        title = first["case"]
        epsilon = first["epsilon"]
        mine = [row for row in rows if (row["case"], row["epsilon"]) == (title, epsilon)]
        best = f"{first['method']}: {_shown(ratio_of(first))}"
        found.append([title, f"{epsilon:g}", best, within(mine)])
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _shown(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.2f}" if 1 / FACTOR <= ratio <= FACTOR else f"**{ratio:.2g}**"


def main() -> None:
    """Measure what is not there yet, and write the page."""
    page = Page(__doc__, "plan_predictions.md", seeds=3, cells=Path("runs/plan_predictions"))
    page.parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 2.0])
    page.parser.add_argument("--limit", type=float, metavar="SECONDS", help="of processor time")
    given = page.parser.parse_args()
    torch.set_num_threads(1)
    given.cells.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in CASES:
        for epsilon in given.epsilon:
            rows += rows_of(case, epsilon, given.seeds, given.cells)
            print(*_summary(rows)[-1], flush=True)
            if given.limit and time.process_time() > given.limit:
                print("the time is up; the same command goes on from here", flush=True)
                return
    page.say(text_of(rows))
    page.save(given, rows)


if __name__ == "__main__":
    main()

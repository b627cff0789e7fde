"""What a plan loses by a wrong guess: of how far off a mean is, and of how long rows are.

    python -m benchmarks.start_guesses [--means] [--out benchmarks/results] [--seeds 2] [--json]

Made-up matrices at several distances from the start I, all with clip C = 4: for each guess of that
distance over C, and for all of them together (the plan's own), what is left of the start's gap
(f(x) - f*) / (f(x0) - f*), and the factor on the best of the guesses. Then logistic regression at
several clips, by the guess of how long a row is over C. Planned by `manifed plan` with the guess in
place of its own.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.common.stopwatch import table
from benchmarks.leaderboard.cells import levels, run
from benchmarks.leaderboard.tasks import Task
from manifed.experiment import guesses
from manifed.experiment import load as config_of

CLIP, GUESSES, EPSILONS = (
    4.0,
    ((0.25,), (0.5,), (0.75,), (1.0,), (0.25, 0.5, 0.75, 1.0)),
    (0.5, 1.0, 2.0),
)
ROWS, CLIPS = (
    (1.0, 2.0, 4.0),
    (("synthetic-logistic", (0.5, 1.0, 2.0, 4.0)), ("breast-cancer", (1.0, 3.0, 6.0))),
)
SIZES, CONDITIONS = ((6, 1000), (4, 600)), (2.0, 6.0, 30.0, 300.0, 3000.0)


def task_of(dimension: int, count: int, condition: float) -> Task:
    """Matrices around one whose eigenvalues are spread over that condition number."""
    data = {
        "kind": "spd-lognormal", "num_examples": count, "dimension": dimension,
        "condition": condition, "spread": 0.25,
    }  # fmt: skip
    problem = {"kind": "frechet-mean", "manifold": "spd", "start": {"kind": "origin"}}
    return Task(f"{dimension}-{condition:g}", "SPD mean", problem, data, CLIP, ())


def rows_of(kind: str, clip: float) -> Task:
    """Logistic regression at that clip; the rows of made-up data are 3.7 long."""
    data: dict[str, Any] = {"kind": kind}
    if kind == "synthetic-logistic":
        data["num_examples"] = 8000
    return Task(f"{kind}-{clip:g}", "logistic", {"kind": "logistic"}, data, clip, ())


def share_of(task: Task, epsilon: float, name: str, guess: Any, seeds: int) -> float:
    """Mean share of the start's gap that is left when a plan takes that guess."""
    made = task.table(epsilon, 0)
    made["training"] = {"kind": "auto"}
    made["federation"]["num_rounds"] = 100
    with patch.object(guesses, name, guess):
        config = config_of.parse(made)
    found = list[float]()
    for seed in range(seeds):
        federation = config.federation.model_copy(update={"seed": seed})
        found.append(run(task, config.model_copy(update={"federation": federation}))["share"])
    return statistics.mean(found)


def measured(seeds: int) -> list[dict[str, Any]]:
    """A row for every size, distance and epsilon."""
    rows = list[dict[str, Any]]()
    for dimension, count in SIZES:
        for condition in CONDITIONS:
            task = task_of(dimension, count, condition)
            lowest, start = levels(task, 0)
            for epsilon in EPSILONS:
                shares = [share_of(task, epsilon, "_STARTS_OF", g, seeds) for g in GUESSES]
                away = math.sqrt(start - lowest) / CLIP
                rows.append(
                    {"matrices": f"{count} of {dimension} x {dimension}", "away": away,
                     "condition": condition, "epsilon": epsilon, "shares": shares}
                )  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def by_rows(seeds: int) -> list[dict[str, Any]]:
    """A row for every data set, clip and epsilon."""
    found = list[dict[str, Any]]()
    for kind, clips in CLIPS:
        for clip in clips:
            for epsilon in (0.5, 2.0):
                task = rows_of(kind, clip)
                shares = [share_of(task, epsilon, "_ROWS_OF", guess, seeds) for guess in ROWS]
                found.append({"data": kind, "clip": clip, "epsilon": epsilon, "shares": shares})
                print(found[-1], flush=True)
    return found


def rows_table(logistic: list[dict[str, Any]]) -> list[str]:
    """Lines of the table of logistic regression; none where it was not measured."""
    if not logistic:
        return []
    told = [
        [r["data"], f"{r['clip']:g}", f"{r['epsilon']:g}", *(f"{s:.3g}" for s in r["shares"])]
        for r in logistic
    ]
    worst = [max(r["shares"][i] / min(r["shares"]) for r in logistic) for i in range(len(ROWS))]
    told.append(["worst factor", "", "", *(f"{factor:.3g}" for factor in worst)])
    head = ["data", "clip C", "epsilon", *(f"{guess:g} C" for guess in ROWS)]
    said = "Logistic regression, share that is left, by the guessed length of a row:"
    return [said, "", table(head, told), ""]


def text_of(rows: list[dict[str, Any]], logistic: list[dict[str, Any]]) -> str:
    """All rows, and the worst factors by distance."""
    head = [*(f"{guess:g} C" for guess, *more in GUESSES if not more), "all, as planned"]
    each = [
        [r["matrices"], f"{r['away']:.2f} C", f"{r['epsilon']:g}"]
        + [f"{s:.3g}" for s in r["shares"]]
        for r in rows
    ]  # fmt: skip
    worst = list[list[str]]()
    for condition in CONDITIONS:
        mine = [r for r in rows if r["condition"] == condition]
        away = sorted(r["away"] for r in mine)
        factors = [
            max(r["shares"][i] / min(r["shares"]) for r in mine) for i in range(len(GUESSES))
        ]
        worst.append([f"{away[0]:.2f} C to {away[-1]:.2f} C", *(f"{f:.3g}" for f in factors)])
    return "\n".join(
        ["# Guesses that may be wrong", "", "`python -m benchmarks.start_guesses`", "",
         "Worst factor on the best of the guesses, by the distance of the start:", "",
         table(["start at", *head], worst), "", "Share of the start's gap that is left:", "",
         table(["matrices", "start at", "epsilon", *head], each), "",
         *rows_table(logistic)]
    )  # fmt: skip


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--means", action="store_true", help="leave logistic regression out")
    parser.add_argument("--out", type=Path, help="folder for start_guesses.md")
    parser.add_argument("--json", action="store_true", help="the rows as the last line")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(given.seeds)
    logistic = [] if given.means else by_rows(given.seeds)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "start_guesses.md").write_text(text_of(rows, logistic), encoding="utf-8")
    if given.json:
        print(json.dumps(rows + logistic))


if __name__ == "__main__":
    main()

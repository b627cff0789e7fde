"""What held-out tasks share: records of csv files with loose bounds of their user.

Each task is a table of its own in csv files, which are read through data.kind = "file". Ranges hold
for every possible record, as a user writes them who knows the columns and has not seen the rows.
The tasks are in published_tables.py. Six others, whose records were made up, were held out until
26 November 2026 (commit b9f4ce0e has them); plans were changed with their results in sight.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.leaderboard.tasks import DELTA, LEAST_SQUARES, MOST_UPLOADS, Table, Task

Rows = np.ndarray[Any, Any]


@dataclass(frozen=True)
class HeldOut(Task):
    """A task whose records are written into a csv file for each client."""

    make: Callable[[np.random.Generator, int], Rows] = field(
        default=lambda rng, count: np.zeros((count, 1)), repr=False
    )
    """The rows of so many records."""
    columns: tuple[str, ...] = ()
    count: int = 3000
    """Records in all."""
    skew: float = 1.0
    """How many times as many records the largest client has as the smallest."""

    def table(self, epsilon: float, seed: int, clients: int = 10) -> Table:
        """The config, with the method left to the planner."""
        paths, sizes = written(self.name, clients)
        return {
            "name": self.name,
            "problem": dict(self.problem),
            "data": {"kind": "file", **self.data, "paths": list(paths)},
            "federation": {
                "num_clients": clients, "num_rounds": MOST_UPLOADS, "seed": seed,
                "num_examples": list(sizes),
            },
            "training": {"kind": "auto"},
            "privacy": {
                "kind": "example-level", "l2_norm_clip": self.bound,
                "noise": {"kind": "target", "epsilon": epsilon, "delta": DELTA},
            },
            "evaluation": {"is_enabled": False},
        }  # fmt: skip


@lru_cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="held-out-"))


@lru_cache
def written(name: str, clients: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Writes the files of a task, those of larger clients first; returns their paths and sizes."""
    task = _TASKS[name]
    rng = np.random.default_rng(sum(task.name.encode()))
    weights = np.geomspace(task.skew, 1.0, clients)
    sizes = np.maximum(20, (task.count * weights / weights.sum()).astype(int))
    rows = task.make(rng, int(sizes.sum()))
    if task.skew > 1:  # clients differ in what they see, too
        rows = rows[np.argsort(rows[:, 0] + rng.normal(0, rows[:, 0].std(), len(rows)))]
    paths = list[str]()
    for i, part in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
        path = _folder() / f"{task.name}-{clients}-{i}.csv"
        head = ",".join(task.columns)
        np.savetxt(path, part, fmt="%.9g", delimiter=",", header=head, comments="")
        paths.append(str(path))
    return tuple(paths), tuple(map(int, sizes))


_TASKS = dict[str, HeldOut]()


def listed(name: str, *given: Any, columns: list[str], **more: Any) -> HeldOut:
    """A task that `written` finds by its name, of the other arguments of a `HeldOut`."""
    return _TASKS.setdefault(name, HeldOut(name, *given, columns=tuple(columns), **more))


def regression(
    name: str, title: str, spans: list[list[float]], top: float, bound: float, **more: Any
) -> HeldOut:
    """Least squares of the last column, from 0 to ``top``, on the others in their ranges."""
    *features, label = more["columns"]
    data = {
        "examples": "regression", "columns": features, "range": spans, "rescale_to": [-1, 1],
        "label": label, "label_range": [0, top], "has_intercept": True, "outside": "clip",
    }  # fmt: skip
    return listed(name, title, LEAST_SQUARES, data, bound, **more)


def classification(
    name: str, title: str, spans: list[list[float]], bound: float, **more: Any
) -> HeldOut:
    """Logistic regression of the last column, 0 or 1, on the others in their ranges."""
    *features, label = more["columns"]
    data = {
        "examples": "classification", "columns": features, "range": spans, "rescale_to": [-1, 1],
        "label": label, "classes": [0, 1], "has_intercept": True, "outside": "clip",
    }  # fmt: skip
    return listed(name, title, {"kind": "logistic"}, data, bound, **more)


def component(
    name: str, title: str, span: list[float], longest: float, bound: float, **more: Any
) -> HeldOut:
    """The first principal component of rows that are at most so long after rescaling."""
    data = {
        "examples": "rows", "columns": more["columns"], "range": span, "rescale_to": [-1, 1],
        "row_norm": longest, "outside": "clip",
    }  # fmt: skip
    return listed(name, title, {"kind": "principal-eigenvector"}, data, bound, **more)


def mean(name: str, title: str, manifold: str, data: Table, bound: float, **more: Any) -> HeldOut:
    """The Fréchet mean of points of a manifold, whose columns are read as ``data`` says."""
    problem = {"kind": "frechet-mean", "manifold": manifold, "start": {"kind": "origin"}}
    read = {"columns": more["columns"], **data, "outside": "project"}
    return listed(name, title, problem, read, bound, **more)

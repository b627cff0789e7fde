"""Tasks that nobody looked at while the planner was built, with loose bounds of their user.

Each is a table of its own in csv files, which are read through data.kind = "file". Ranges hold for
every possible record, and are about ten times what is typical. Six were made up here and first run
on 26 November 2026: python -m benchmarks.leaderboard --held-out. Plans changed with them in sight,
so published_tables.py has six others. Each set was written before it was first run.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.leaderboard.tasks import DELTA, LEAST_SQUARES, MOST_UPLOADS, Table, Task

Rows = np.ndarray[Any, Any]


@dataclass(frozen=True)
class HeldOut(Task):
    """A task whose records are made up, and written into a csv file for each client."""

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


# -- records -------------------------------------------------------------------------------------
def _rents(rng: np.random.Generator, count: int) -> Rows:
    """Size, age, distance, rooms, and a rent that is skewed."""
    size = rng.lognormal(4.1, 0.4, count)
    age = rng.gamma(2.0, 15.0, count)
    distance = rng.exponential(6.0, count)
    rooms = np.maximum(1, np.round(size / 25 + rng.normal(0, 0.7, count)))
    rent = (8 * size + 40 * rooms - 2 * age - 9 * distance) * rng.lognormal(0, 0.3, count)
    table = np.stack([size, age, distance, rooms, rent], 1)
    return np.clip(table, 0, [1000, 500, 200, 40, 10000])


def _pressures(rng: np.random.Generator, count: int) -> Rows:
    """Six laboratory values, correlated, and a pressure with normal residuals."""
    hidden = rng.standard_normal((count, 2))
    values = hidden @ rng.standard_normal((2, 6)) + 0.5 * rng.standard_normal((count, 6))
    pressure = 120 + values @ np.array([6.0, -4, 3, 2, -1, 5]) + rng.normal(0, 8, count)
    return np.clip(np.column_stack([values, pressure]), [-20] * 6 + [0], [20] * 6 + [400])


def _readmissions(rng: np.random.Generator, count: int) -> Rows:
    """Stay, age, earlier stays, drugs, a score, and whether a patient came back (one in six)."""
    stay = rng.lognormal(1.2, 0.7, count)
    age = rng.normal(62, 15, count)
    earlier = rng.poisson(1.1, count)
    drugs = rng.poisson(6, count)
    score = rng.gamma(2.0, 1.0, count)
    logit = -3.6 + 0.08 * stay + 0.015 * age + 0.5 * earlier + 0.05 * drugs + 0.2 * (score - 2)
    back = rng.uniform(size=count) < 1 / (1 + np.exp(-logit))
    table = np.stack([stay, age, earlier, drugs, score, back], 1)
    return np.clip(table, 0, [365, 120, 50, 100, 50, 1])


def _metabolites(rng: np.random.Generator, count: int) -> Rows:
    """Twenty concentrations that vary along few directions."""
    loadings = rng.standard_normal((20, 20)) * np.arange(1, 21.0)[:, None] ** -1.2
    return np.clip(rng.standard_normal((count, 20)) @ loadings, -30, 30)


def _covariances(rng: np.random.Generator, count: int) -> Rows:
    """Covariance matrices of four channels around a common one, as sixteen numbers."""
    root = np.linalg.cholesky(np.diag([0.5, 1.0, 2.0, 4.0]) + 0.3)
    x = rng.standard_normal((count, 40, 4)) * rng.lognormal(0, 0.3, (count, 1, 4)) @ root.T
    return (np.einsum("nti,ntj->nij", x, x) / 40 + 0.01 * np.eye(4)).reshape(count, 16)


def _places(rng: np.random.Generator, count: int) -> Rows:
    """Points of a tree in the Poincaré disk: a branch, a depth, and a place beside them."""
    angle = rng.choice([0.3, 1.1, 2.9, 4.4], count, p=[0.4, 0.3, 0.2, 0.1])
    angle = angle + rng.normal(0, 0.4, count)
    radius = np.tanh(rng.gamma(3.0, 0.25, count))
    radius = np.minimum(radius, 0.9999)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)


def regression(columns: list[str], spans: list[list[float]], label: str, top: float) -> Table:
    """A ``data`` table of a regression: columns in their ranges, labels from 0 to ``top``."""
    return {
        "examples": "regression", "columns": columns, "range": spans, "rescale_to": [-1, 1],
        "label": label, "label_range": [0, top], "has_intercept": True, "outside": "clip",
    }  # fmt: skip


_TASKS = dict[str, HeldOut]()


def listed(
    name: str, title: str, make: Any, columns: list[str], problem: Mapping[str, Any],
    data: Table, bound: float, **more: Any,
) -> HeldOut:  # fmt: skip
    """A task that `written` finds by its name."""
    task = HeldOut(name, title, problem, data, bound, make=make, columns=tuple(columns), **more)
    return _TASKS.setdefault(name, task)


_ORIGIN = {"kind": "origin"}
_LABS = [f"lab{i}" for i in range(6)]
_MIX = [f"m{i}" for i in range(20)]
_CELLS = [f"c{i}{j}" for i in range(4) for j in range(4)]
TASKS = (
    listed(
        "rents", "least squares of skewed rents", _rents,
        ["size", "age", "distance", "rooms", "rent"], LEAST_SQUARES,
        regression(
            ["size", "age", "distance", "rooms"], [[0, 1000], [0, 500], [0, 200], [0, 40]],
            "rent", 10000,
        ),
        22400.0, skew=5.0,
    ),
    listed(
        "pressures", "least squares of correlated laboratory values", _pressures,
        [*_LABS, "pressure"], LEAST_SQUARES,
        regression(_LABS, [[-20, 20]] * 6, "pressure", 400), 1060.0,
    ),
    listed(
        "readmissions", "logistic regression, one in six", _readmissions,
        ["stay", "age", "earlier", "drugs", "score", "back"], {"kind": "logistic"},
        {
            "examples": "classification", "columns": ["stay", "age", "earlier", "drugs", "score"],
            "range": [[0, 365], [0, 120], [0, 50], [0, 100], [0, 50]], "rescale_to": [-1, 1],
            "label": "back", "classes": [0, 1], "has_intercept": True, "outside": "clip",
        },
        2.45, count=10000,
    ),
    listed(
        "metabolites", "first principal component, rows a tenth as long as allowed", _metabolites,
        _MIX, {"kind": "principal-eigenvector"},
        {
            "examples": "rows", "columns": _MIX, "range": [-30, 30], "rescale_to": [-1, 1],
            "row_norm": 1.0, "outside": "clip",
        },
        1.0, skew=4.0,
    ),
    listed(
        "channels", "Fréchet mean of covariance matrices", _covariances, _CELLS,
        {"kind": "frechet-mean", "manifold": "spd", "start": _ORIGIN},
        {
            "examples": "spd-matrices", "columns": _CELLS, "shape": [4, 4],
            "range": [1e-3, 1e3], "outside": "project",
        },
        28.0, count=1500,
    ),
    listed(
        "places", "hyperbolic mean of places in a tree", _places, ["x", "y"],
        {"kind": "frechet-mean", "manifold": "lorentz", "start": _ORIGIN},
        {"examples": "hyperbolic-points", "columns": ["x", "y"], "row_norm": 6.0,
         "outside": "project"},
        24.0, count=2000,
    ),
)  # fmt: skip
CLIENTS = {
    "rents": 10, "pressures": 4, "readmissions": 50, "metabolites": 10, "channels": 10,
    "places": 4,
}  # fmt: skip

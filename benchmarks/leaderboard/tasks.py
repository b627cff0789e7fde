"""The tasks: a problem, its data, and a public bound of a gradient, as loose as a user writes it.

Example level, add-or-remove, (epsilon, 1e-5) for every client over the whole run against the
server, which sees noised uploads alone; at most 100 uploads. Nothing of a task is fitted to its
data but the bound, which holds for every possible record of that kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DELTA = 1e-5
MOST_UPLOADS = 100
"""Of one client, over the run."""
_OWN = "benchmarks.leaderboard.own_data"
Table = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What is solved."""

    name: str
    title: str
    problem: Mapping[str, Any]
    data: Mapping[str, Any]
    bound: float
    """``privacy.l2_norm_clip`` of ours: no gradient is longer. Rivals choose their own clip."""
    maps: str = "exact"
    has_seeded_data: bool = False
    """Whether every seed draws its own data."""
    auto: Mapping[str, Any] | None = None
    """More keys of ``training``, beside kind = "auto"."""
    clients: int = field(default=10, repr=False)
    """Number of clients of a task's first cells. ``repr``, by which finished cells are known,
    leaves it out, since every cell names its own number."""

    def table(self, epsilon: float, seed: int, clients: int = 10) -> Table:
        """The config, with the method left to the planner."""
        data = dict(self.data)
        if is_made_up := "num_clients" in data:  # 5000 records in all
            data["num_clients"] = clients
            data["columns" if "columns" in data else "rows"] = 5000 // clients
        return {
            "name": self.name,
            "problem": dict(self.problem),
            "data": data,
            "federation": {
                "num_clients": clients, "num_rounds": MOST_UPLOADS, "seed": seed,
                "partition": {"kind": "natural" if is_made_up else "equal"},
            },
            "training": {"kind": "auto", **(self.auto or {})},
            "privacy": {
                "kind": "example-level", "l2_norm_clip": self.bound,
                "noise": {"kind": "target", "epsilon": epsilon, "delta": DELTA},
            },
            "evaluation": {"is_enabled": False},
        }  # fmt: skip


def _mean_on(manifold: str) -> Table:
    return {"kind": "frechet-mean", "manifold": manifold, "start": {"kind": "origin"}}


LEAST_SQUARES = {"kind": "least-squares", "start": {"kind": "origin"}}
_REGRESSION = {"kind": "synthetic-least-squares", "num_clients": 10, "rows": 500, "dimension": 10}
TASKS = (
    Task(
        "pca-digits-1", "first principal component, digits", {"kind": "principal-eigenvector"},
        {"kind": "digits"}, 1.0,
    ),
    Task(
        "pca-digits-2", "two principal components, digits",
        {"kind": "kpca", "num_components": 2, "scaling": "mean"}, {"kind": "digits"}, 1.0,
        maps="retraction",
    ),
    Task(
        "least-squares", "least squares, symmetric residuals", LEAST_SQUARES,
        {**_REGRESSION, "noise_stddev": 0.5}, 100.0, has_seeded_data=True,
    ),
    Task(
        "least-squares-said", "the same, with residuals = \"symmetric\"", LEAST_SQUARES,
        {**_REGRESSION, "noise_stddev": 0.5}, 100.0, has_seeded_data=True,
        auto={"residuals": "symmetric"},
    ),
    Task(
        "least-squares-skewed", "least squares, exponential residuals", LEAST_SQUARES,
        {**_REGRESSION, "kind": f"{_OWN}:SkewedRegression"}, 100.0, has_seeded_data=True,
    ),
    Task(
        "diabetes", "least squares, diabetes (442 rows)", LEAST_SQUARES,
        {"kind": f"{_OWN}:Diabetes"}, 6.7,
    ),
    Task(
        "logistic-a9a", "logistic regression, a9a", {"kind": "logistic"}, {"kind": "a9a"}, 3.9,
    ),
    Task(
        "logistic-breast-cancer", "logistic regression, breast cancer", {"kind": "logistic"},
        {"kind": "breast-cancer"}, 5.0,
    ),
    Task(
        "hyperbolic-mean", "hyperbolic mean, WordNet mammals", _mean_on("lorentz"),
        {"kind": "reproduction.mammals:WordnetMammals", "is_graph_public": True}, 6.0,
    ),
    Task(
        "spd-mean-emg", "SPD Fréchet mean, EMG, affine-invariant", _mean_on("spd"),
        {"kind": f"{_OWN}:Emg"}, 20.0,
    ),
    Task(
        "completion-low-rank", "matrix completion, made-up columns (rank 2 of 30)",
        {"kind": "reproduction.matrix_completion:MatrixCompletion", "rank": 2, "scaling": "mean"},
        {
            "kind": "reproduction.recipes:LowRank", "num_clients": 10, "columns": 500,
            "dimension": 30, "noise_stddev": 0.01,
        },
        200.0, maps="retraction", has_seeded_data=True,
    ),
)  # fmt: skip

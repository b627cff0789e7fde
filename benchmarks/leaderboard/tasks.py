"""The tasks: a problem, its data, a public clip norm, and the step sizes that tuning tries.

Ten clients with equal shards, example level, add-or-remove, (epsilon, 1e-5) for every client over
the whole run against the server, which sees noised uploads alone. Clip norms are round numbers, the
same for all methods; nothing else of a task depends on its data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DELTA = 1e-5
CLIENTS = 10
MOST_UPLOADS = 100
"""Of one client, over the run: the upload budget of every method."""
_OWN = "benchmarks.leaderboard.own_data"
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What is solved."""

    name: str
    title: str
    problem: Table
    data: Table
    l2_norm_clip: float
    steps: tuple[float, ...]
    maps: str = "exact"
    average: str = "geodesic"
    is_projected: bool = False
    """Whether projected federated learning has its projection there."""
    one_shot: str | None = None
    in_gate: bool = False

    def table(self, epsilon: float, seed: int, clients: int = CLIENTS) -> dict[str, Any]:
        """The config without its method."""
        return private_table(
            self.name, self.problem, self.data, self.l2_norm_clip, epsilon, DELTA, seed, clients
        )


def private_table(
    name: str,
    problem: Table,
    data: Table,
    l2_norm_clip: float,
    epsilon: float,
    delta: float,
    seed: int,
    clients: int,
) -> dict[str, Any]:
    """A config without its method: equal shards, noise for the whole run."""
    return {
        "name": name,
        "problem": dict(problem),
        "data": dict(data),
        "federation": {
            "num_clients": clients,
            "num_rounds": 1,
            "seed": seed,
            "partition": {"kind": "equal"},
        },
        "privacy": {
            "kind": "example-level",
            "l2_norm_clip": l2_norm_clip,
            "noise": {"kind": "target", "epsilon": epsilon, "delta": delta},
        },
        "evaluation": {"is_enabled": False},
    }


def mean_on(manifold: str) -> Table:
    """A Fréchet mean whose run starts at the origin."""
    return {"kind": "frechet-mean", "manifold": manifold, "start": {"kind": "origin"}}


def _pca(data: str, k: int, *, in_gate: bool = False) -> Task:
    problem = {"kind": "kpca", "num_components": k, "scaling": "mean"}
    if k == 1:
        problem = {"kind": "principal-eigenvector"}
    steps = (0.1, 0.25, 0.5, 1.0)
    return Task(
        f"pca-{data}-{k}",
        f"private PCA, {data}, k = {k}",
        problem,
        {"kind": data},
        1.0,
        steps if k == 1 else tuple(2 * s for s in steps),
        maps="exact" if k == 1 else "retraction",
        average="projector",
        is_projected=True,
        one_shot="second-moment",
        in_gate=in_gate,
    )


COMPLETION = {
    "kind": "reproduction.matrix_completion:MatrixCompletion",
    "rank": 2,
    "scaling": "mean",
}
LOW_RANK = {
    "kind": "reproduction.recipes:LowRank",
    "num_clients": 10,
    "columns": 500,
    "dimension": 30,
    "noise_stddev": 0.01,
}
_MEAN = (0.05, 0.12, 0.25, 0.5)
_EMG = {"kind": f"{_OWN}:Emg"}
TASKS = (
    _pca("digits", 1, in_gate=True),
    Task(
        "spd-mean-emg", "SPD Fréchet mean, EMG, affine-invariant",
        mean_on("spd"), _EMG, 4.0, _MEAN,
        in_gate=True,
    ),
    Task(
        "spd-classes-emg", "SPD classification, EMG, five signs",
        {"kind": "nearest-mean", "manifold": "spd", "num_classes": 5}, {**_EMG, "has_labels": True},
        4.0, tuple(5 * step for step in _MEAN), in_gate=True,
    ),
    Task(
        "hyperbolic-mean", "hyperbolic mean, WordNet mammals",
        mean_on("lorentz"),
        {"kind": "reproduction.mammals:WordnetMammals", "is_graph_public": True}, 4.0, _MEAN,
        in_gate=True,
    ),
    Task(
        "completion-low-rank", "matrix completion, made-up columns (rank 2 of 30)",
        COMPLETION,
        LOW_RANK,
        1.0, (0.1, 0.3, 1.0, 3.0), maps="retraction", average="projector", is_projected=True,
        in_gate=True,
    ),
    Task(
        "logistic-a9a", "logistic regression, a9a", {"kind": "logistic"}, {"kind": "a9a"}, 1.0,
        (0.5, 1.5, 5.0, 15.0), is_projected=True, in_gate=True,
    ),
    _pca("digits", 2), _pca("digits", 5), _pca("mnist", 1), _pca("mnist", 2), _pca("mnist", 5),
    Task(
        "spd-mean-emg-log", "SPD mean, EMG, log-Euclidean",
        mean_on("spd-log-euclidean"),
        _EMG, 4.0, _MEAN, one_shot="log-euclidean",
    ),
    Task(
        "spd-mean-connectomes", "SPD Fréchet mean, connectomes (86 patients)",
        mean_on("spd"),
        {"kind": f"{_OWN}:Connectomes"}, 4.0, _MEAN,
    ),
    Task(
        "completion-movielens", "matrix completion, MovieLens-100k, 50 movies, rank 2",
        COMPLETION,
        {"kind": f"{_OWN}:MovieLens"}, 1.0, (0.1, 0.3, 1.0, 3.0), maps="retraction",
        average="projector", is_projected=True,
    ),
    Task(
        "logistic-breast-cancer", "logistic regression, breast cancer", {"kind": "logistic"},
        {"kind": "breast-cancer"}, 1.0, (0.5, 1.5, 5.0, 15.0), is_projected=True,
    ),
)  # fmt: skip

"""The methods: what each tries on tuning seeds. Not measured, and why, stands in `LEFT_OUT`.

Plain descent tries a grid of steps and rounds. Every other iterative method starts from the grid's
two best places and tries its own parameter there, so that no method is judged far from where it
works, and no table takes days.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.leaderboard.tasks import MOST_UPLOADS, Task

CORRELATED = "manifed_extras.correlated:CorrelatedRSGD"
ROUNDS = (4, 16)
LONG = 28
"""Of plain descent; and of what gains by a long stay near the optimum."""
LEFT_OUT = {
    "DP-RFedProj (arXiv 2604.22494)": "its text could not be had; `projected` is our private "
    "version of projected federated learning",
    "k-DP-PCA (arXiv 2508.10879)": "a central algorithm over a stream that a trusted curator "
    "reads; no local version is published, and only a part of the text could be had",
    "rfedsvrg, decor, gossip": "other trust or two uploads a round",
    "noisy-gram": "serves least squares, which is no task here",
    "Fashion-MNIST": "read where Debian's dataset-fashion-mnist is installed; it was not",
}


@dataclass(frozen=True)
class Setting:
    """A method with all its numbers, as tables of a config."""

    training: dict[str, Any]
    rounds: int
    strategy: dict[str, Any] | None = None

    def into(self, table: dict[str, Any]) -> dict[str, Any]:
        """The config that runs it."""
        federation = {**table["federation"], "num_rounds": self.rounds}
        more = {} if self.strategy is None else {"strategy": self.strategy}
        return {**table, "federation": federation, "training": self.training, **more}


Family = Callable[[Task, Sequence[Setting]], Iterator[Setting]]


def _descent(task: Task, step: float, rounds: int, **more: Any) -> Setting:
    full = {"kind": "full"}
    training = {"kind": "rsgd", "step_size": step, "minibatch": full, **_maps(task), **more}
    return Setting(training, min(max(rounds, 1), MOST_UPLOADS))


def _maps(task: Task) -> dict[str, str]:
    return {} if task.maps == "exact" else {"maps": task.maps}


def plain(task: Task, _: Sequence[Setting]) -> Iterator[Setting]:
    """Federated Riemannian gradient descent."""
    for step in task.steps:
        for rounds in ROUNDS:
            yield _descent(task, step, rounds)


def _at(task: Task, best: Sequence[Setting], scale: float, **more: Any) -> Iterator[Setting]:
    """The best places of plain descent, with the step ``scale`` times as long."""
    for place in best:
        step = float(f"{scale * place.training['step_size']:.3g}")
        yield _descent(task, step, place.rounds, **more)


def momentum(task: Task, best: Sequence[Setting]) -> Iterator[Setting]:
    """Heavy ball on the server."""
    for one in _at(task, best, 0.5):
        yield replace(one, strategy={"momentum": 0.5})


def _tail(task: Task, rounds: int, **more: float) -> dict[str, Any]:
    return {"average": {"kind": task.average, "from_round": max(2, rounds // 4), **more}}


def averaged(task: Task, _: Sequence[Setting]) -> Iterator[Setting]:
    """A tail average of the released iterates, on a grid of its own."""
    for step in task.steps:
        yield replace(_descent(task, step, LONG), strategy=_tail(task, LONG))


def scheduled(task: Task, best: Sequence[Setting]) -> Iterator[Setting]:
    """Noise that falls with the rounds, without and with an average by inverse variances."""
    for ratio in (0.8, 0.93):
        falling = {"kind": "geometric", "scale": 1.0, "ratio": ratio}
        for one in _at(task, best, 1.0, kind="scheduled-rsgd", noise_multipliers=falling):
            yield one
            yield replace(one, strategy=_tail(task, one.rounds, noise_ratio=ratio))


def correlated(task: Task, best: Sequence[Setting]) -> Iterator[Setting]:
    """Noise correlated over rounds, without and with an average."""
    more = {"kind": CORRELATED, "correlation": {"kind": "banded-inverse", "bands": 4}}
    yield from _at(task, best, 1.0, **more)
    for step in task.steps:
        yield replace(_descent(task, step, LONG, **more), strategy=_tail(task, LONG))


def local_steps(task: Task, best: Sequence[Setting]) -> Iterator[Setting]:
    """RFedAvg: three local steps, together as long as one, or in a third of the rounds."""
    yield from _at(task, best, 1 / 3, local_steps=3)
    for place in best:
        yield _descent(task, place.training["step_size"], place.rounds // 3, local_steps=3)


def _like_local_steps(kind: str, **more: Any) -> Family:
    def family(task: Task, best: Sequence[Setting]) -> Iterator[Setting]:
        for one in local_steps(task, best):
            yield replace(one, training={**one.training, "kind": kind, **more})

    return family


def projected(task: Task, best: Sequence[Setting]) -> Iterator[Setting]:
    """Projected federated learning: Euclidean steps, projected."""
    if not task.is_projected:
        return
    for one in _at(task, best, 1.0):
        kept = {k: v for k, v in one.training.items() if k != "maps"}
        yield replace(one, training={**kept, "kind": "projected", "tube_radius": 1e9})


def poisson(task: Task, best: Sequence[Setting]) -> Iterator[Setting]:
    """A third of the examples in every step, amplified."""
    del task
    for one in best:
        yield replace(
            one, training={**one.training, "minibatch": {"kind": "poisson", "batch_size": 50}}
        )


def variance_reduced(task: Task, best: Sequence[Setting]) -> Iterator[Setting]:
    """DP-RSVRG: one noised reference and one correction a round."""
    if task.maps != "exact":
        return
    for one in best:
        yield replace(
            one,
            training={
                "kind": "rsvrg", "step_size": one.training["step_size"] / 2, "inner_steps": 1,
                "minibatch": {"kind": "poisson", "batch_size": 50},
            },
        )  # fmt: skip


def one_shot(task: Task, _: Sequence[Setting]) -> Iterator[Setting]:
    """One noised statistic."""
    if task.one_shot is not None:
        yield Setting({"kind": task.one_shot}, 1)


METHODS: dict[str, Family] = {
    "rsgd": plain,
    "rsgd, momentum": momentum,
    "rsgd, averaged": averaged,
    "rsgd, falling noise": scheduled,
    "rsgd, correlated noise": correlated,
    "rsgd, poisson": poisson,
    "rfedavg": local_steps,
    "rfedprox": _like_local_steps("rfedprox", penalty_weight=0.1),
    "rfedags": _like_local_steps("rfedags"),
    "projected": projected,
    "rsvrg": variance_reduced,
    "one-shot": one_shot,
}
AUTO = "auto"
CENTRAL = "central curator"
"""The planner's choice, not tuned; and the best of the others at one client that holds all data."""

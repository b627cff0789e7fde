"""One experiment run to its targets: rounds, uploads, bytes and seconds until |grad f| is small."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from app.assembly import client_side, initial_point, load_shards, plan_of
from app.engines.cohort import CohortGrid
from app.evaluation import client_shares
from configs.load import parse
from configs.schema import Experiment
from strategies.conversation import Conversation
from strategies.plan import RoundReport
from strategies.replies import RoundFailed

logging.getLogger("flwr").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Finish:
    """What it took to reach a target."""

    rounds: int
    uploads: int
    bytes_both_ways: int
    seconds: float
    """CPU seconds."""


@dataclass(frozen=True)
class Result:
    """One run: every gradient norm from round 0 on, seconds a round, and each target's price."""

    step_size: float
    server_step_size: float
    gradient_norms: tuple[float, ...]
    seconds_per_round: float
    reached: Mapping[float, Finish]
    model: Tensor
    failure: str = ""

    @property
    def final(self) -> float:
        """The last gradient norm; infinite when the run broke."""
        return math.inf if self.failure else self.gradient_norms[-1]

    def uploads(self, target: float) -> float:
        """Matrices a client sent until |grad f| <= target; infinite when never."""
        return self.reached[target].uploads if target in self.reached else math.inf


class NoCharge:
    """The treasurer of runs without privacy."""

    def charge(self, server_round: int, attempt: int, partitions: tuple[int, ...]) -> None:
        """Nothing is released."""


class _Stop(Exception):
    """All targets are met."""


class _Watch:
    """Times rounds (CPU seconds of this process), not their evaluation."""

    def __init__(self, config: Experiment, targets: Sequence[float], *, stops: bool) -> None:
        self.found, self.plan = load_shards(config), plan_of(config)
        self.targets, self.stops = targets, stops
        self.shares = client_shares(self.found.sizes, config.strategy.weights)
        self.norms: list[float] = []
        self.reached: dict[float, Finish] = {}
        self.seconds, self.bytes, self.began = 0.0, 0, 0.0
        self.model = initial_point(config)

    def look(self, x: Tensor) -> None:
        self.model = x
        norm = self.found.problem.gradient_norm(x, self.found.examples, self.shares)
        self.norms.append(float(norm))

    def __call__(self, report: RoundReport) -> None:
        self.seconds += time.process_time() - self.began
        self.bytes += report.bytes_up + report.bytes_down
        self.look(self.plan.half.model(report.state, self.plan.manifold))
        sent = report.server_round * self.plan.matrices_up
        for target in self.targets:
            if self.norms[-1] <= target and target not in self.reached:
                self.reached[target] = Finish(report.server_round, sent, self.bytes, self.seconds)
        if self.stops and len(self.reached) == len(self.targets):
            raise _Stop
        self.began = time.process_time()


def run(
    table: Mapping[str, Any],
    targets: Sequence[float] = (),
    *,
    stops: bool = False,
    start: Callable[[Experiment], Tensor] = initial_point,
) -> Result:
    """The experiment of ``table`` on the cohort engine; ``stops`` once every target is met.

    A run whose round fails (a step size that throws a client off the manifold's charts) is returned
    with what it had reached and the ``failure``.
    """
    config = parse(dict(table))
    watch = _Watch(config, targets, stops=stops)
    grid = CohortGrid(client_side(config), device="cpu", memory_budget_mb=1024)
    x, failure = start(config), ""
    watch.look(x)
    talk = Conversation(watch.plan, watch.plan.half.initial(x), NoCharge(), watch)
    watch.began = time.process_time()
    try:
        talk.start(grid, num_rounds=config.federation.num_rounds)  # type: ignore[arg-type]
    except _Stop:
        pass
    except RoundFailed as error:
        failure = str(error)
    rounds = max(len(watch.norms) - 1, 1)
    return Result(
        config.training.step_size,
        config.strategy.server_step_size,
        tuple(watch.norms),
        watch.seconds / rounds,
        watch.reached,
        watch.model,
        failure,
    )

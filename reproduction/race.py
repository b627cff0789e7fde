"""One experiment run to its targets: rounds, uploads, bytes and seconds until |grad f| is small."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.common.serde import recorddict_to_proto
from torch import Tensor

from benchmarks.common.quiet import flower_says_only
from manifed.algorithms.payloads import Payload
from manifed.errors import RoundFailed
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.evaluation import client_shares
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.federation.cohorts import Cohort
from manifed.federation.header import Header
from manifed.federation.plan import RoundReport
from manifed.federation.rounds import run_rounds
from manifed.federation.stacked import StackedTransport
from manifed.flower.records import pack


@dataclass(frozen=True)
class Finish:
    """What it took to reach a target."""

    rounds: int
    uploads: int
    wire_bytes: int
    """Of all clients' messages as Flower serialises their content: headers and NumPy's too."""
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


def wire_bytes(config: Experiment, x: Tensor) -> int:
    """Bytes of all messages of one client in a round, both ways, for ambient points like ``x``."""

    def message(phase: str, kind: type[Payload], origin: str | None = None) -> int:
        header = Header("0" * 64, 1, 0, phase, 1, 1)
        payload = kind(*[x] * len(kind.names()))
        return recorddict_to_proto(pack(header, payload, noise_origin=origin)).ByteSize()

    return sum(
        message(p.name, p.down) + message(p.name, p.up, "seed") for p in config.training.phases
    )


class _Stop(Exception):
    """All targets are met, or nothing more is to be expected."""


class _Watch:
    """Times rounds (CPU seconds of this process), not their evaluation."""

    def __init__(
        self, config: Experiment, targets: Sequence[float], *, stops: bool, patience: int | None
    ) -> None:
        self.found, self.plan = load_shards(config), plan_of(config)
        self.targets, self.stops, self.patience = targets, stops, patience
        self.shares = client_shares(self.found.sizes, config.server_update.weights)
        self.norms: list[float] = []
        self.reached: dict[float, Finish] = {}
        self.seconds, self.bytes, self.wire, self.began = 0.0, 0, 0, 0.0
        self.model = initial_point(config)
        self.messages = wire_bytes(config, self.model)

    def look(self, x: Tensor) -> None:
        self.model = x
        norm = self.found.problem.gradient_norm(x, self.found.examples, self.shares)
        self.norms.append(float(norm))

    def is_stuck(self) -> bool:
        """No gradient norm of the last ``patience`` rounds is 1 % below all before them."""
        if self.patience is None or len(self.norms) <= self.patience:
            return False
        return min(self.norms[-self.patience :]) > 0.99 * min(self.norms[: -self.patience])

    def __call__(self, report: RoundReport) -> None:
        self.seconds += time.process_time() - self.began
        self.bytes += report.bytes_up + report.bytes_down
        self.wire += self.messages * len(report.participants)
        self.look(self.plan.server_update.model(report.state, self.plan.manifold))
        sent = report.server_round * self.plan.matrices_up
        for target in self.targets:
            if self.norms[-1] <= target and target not in self.reached:
                self.reached[target] = Finish(
                    report.server_round, sent, self.bytes, self.wire, self.seconds
                )
        is_done = self.stops and len(self.reached) == len(self.targets)
        if is_done or self.is_stuck():
            raise _Stop
        self.began = time.process_time()


def run(
    table: Mapping[str, Any] | Experiment,
    targets: Sequence[float] = (),
    *,
    stops: bool = False,
    patience: int | None = None,
    start: Callable[[Experiment], Tensor] = initial_point,
    cohort: Cohort | None = None,
) -> Result:
    """The experiment of ``table`` on the cohort engine; ``stops`` once every target is met.

    It also ends after ``patience`` rounds in which the gradient norm has not fallen by 1 %. An
    `Experiment` and a ``cohort`` run unchecked, also where the config would be refused.
    A run whose round fails (a step size that throws a client off the manifold's charts) is returned
    with what it had reached and the ``failure``.
    """
    config = table if isinstance(table, Experiment) else parse(dict(table))
    watch = _Watch(config, targets, stops=stops, patience=patience)
    stacked = StackedTransport(client_side(config), device="cpu", memory_budget_mb=1024)
    x, failure = start(config), ""
    watch.look(x)
    plan = watch.plan if cohort is None else replace(watch.plan, cohort=cohort)
    state, last = plan.server_update.initial(x), config.federation.num_rounds
    watch.began = time.process_time()
    try:
        with flower_says_only(logging.ERROR):
            for report in run_rounds(plan, state, stacked, num_rounds=last):
                watch(report)
    except _Stop:
        pass
    except RoundFailed as error:
        failure = str(error)
    rounds = max(len(watch.norms) - 1, 1)
    return Result(
        config.training.step_size,
        config.server_update.server_step_size,
        tuple(watch.norms),
        watch.seconds / rounds,
        watch.reached,
        watch.model,
        failure,
    )

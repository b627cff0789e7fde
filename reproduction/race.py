"""One experiment run to its targets: rounds and uploads until |grad f| is small, and seconds."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from benchmarks.common.quiet import flower_says_only
from manifed.errors import RoundFailed
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.evaluation import client_shares
from manifed.experiment.schema import Experiment
from manifed.federation.cohorts import Cohort
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from reproduction.trials import curve


@dataclass(frozen=True)
class Result:
    """One run: every gradient norm from round 0 on, CPU seconds a round, and the last model."""

    step_size: float
    server_step_size: float
    gradient_norms: tuple[float, ...]
    seconds_per_round: float
    reached: Mapping[float, tuple[int, int]]
    """Rounds until each target that was reached, and matrices that one client sent until then."""
    model: Tensor
    has_failed: bool = False

    @property
    def final(self) -> float:
        """The last gradient norm; infinite when the run broke."""
        return math.inf if self.has_failed else self.gradient_norms[-1]

    def uploads(self, target: float) -> float:
        """Matrices a client sent until |grad f| <= target; infinite when never."""
        return self.reached[target][1] if target in self.reached else math.inf


def run(
    config: Experiment,
    targets: Sequence[float] = (),
    *,
    stops: bool = False,
    patience: int | None = None,
    start: Callable[[Experiment], Tensor] = initial_point,
    cohort: Cohort | None = None,
) -> Result:
    """An experiment on the cohort engine; ``stops`` once every target is met.

    It also ends after ``patience`` rounds in which the gradient norm has not fallen by 1 %. A
    ``cohort`` takes the place of the config's unchecked.
    A run whose round fails (a step size that throws a client off the manifold's charts) is returned
    with what it had reached, as one that ``has_failed``. The seconds are those of the rounds,
    without their evaluation.
    """
    found = load_shards(config)
    plan = plan_of(config)
    x = start(config)
    plan = plan if cohort is None else replace(plan, cohort=cohort)
    shares = client_shares(found.sizes, config.server_update.weighting)
    stacked = StackTransport(client_side(config), at_once=None, memory_budget_mb=1024)
    state = plan.server_update.start(x)
    last = config.federation.num_rounds
    rounds = run_rounds(plan, state, stacked, num_rounds=last)
    norms = [float(found.problem.gradient_norm(x, found.examples, shares))]
    reached = {}
    seconds = 0.0
    has_failed = False
    with flower_says_only(logging.ERROR):
        while not (stops and len(reached) == len(targets)) and not _is_stuck(norms, patience):
            began = time.process_time()
            try:
                report = next(rounds, None)
            except RoundFailed:
                has_failed = True
                break
            if report is None:
                break
            seconds += time.process_time() - began
            x = plan.server_update.model(report.state, plan.manifold)
            norms.append(float(found.problem.gradient_norm(x, found.examples, shares)))
            here = report.server_round, report.server_round * plan.matrices_up
            reached = {t: here for t in targets if norms[-1] <= t} | reached
    return Result(
        config.training.step_size,
        config.server_update.server_step_size,
        tuple(norms),
        seconds / max(len(norms) - 1, 1),
        reached,
        x,
        has_failed,
    )


def raced(
    stem: str,
    algorithms: Sequence[str],
    targets: Sequence[float] = (),
    *,
    stops: bool = False,
    patience: int | None = None,
    **changes: Any,
) -> dict[str, Result]:
    """`run` of the curves STEM + ALGORITHM, changed as `curve` does, by algorithm."""
    return {
        a: run(curve(stem + a, **changes), targets, stops=stops, patience=patience)
        for a in algorithms
    }


def _is_stuck(norms: Sequence[float], patience: int | None) -> bool:
    """No gradient norm of the last ``patience`` rounds is 1 % below all before them."""
    if patience is None or len(norms) <= patience:
        return False
    return min(norms[-patience:]) > 0.99 * min(norms[:-patience])

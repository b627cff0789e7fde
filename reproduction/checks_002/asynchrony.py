"""B2: clocks and sample sizes of one's own (beyond the paper), on the paper's task."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manifed.privacy.series import Releases
from reproduction.asynchronous_samples import Clocks, run, spent
from reproduction.checks_002.settings import NODES, RING, START, STREAM, errors, schedules
from reproduction.findings import Finding, verdict_of
from reproduction.time_varying_reference import NAMES, Setting

SENSITIVITY, TICKS, SEEDS = 0.2, 2000, 10
EQUAL, MIXED, ONE_SLOW = (1,) * NODES, (1, 2, 4, 1, 2, 4), (1, 1, 1, 1, 1, 8)


@dataclass(frozen=True)
class Outcome:
    """After all ticks."""

    done: list[int]
    mse: float
    epsilon: list[float]


def outcome(
    number: int, periods: Sequence[int], max_staleness: int, *, ticks: int = TICKS,
    seeds: int = SEEDS,
) -> Outcome:  # fmt: skip
    """Example 1 or 2; a node that is p times slower takes p times the samples in an iteration."""
    tables = tuple(schedules(number, a3=float(p)) for p in periods)
    setting = Setting(NAMES[number], tables[0], RING)
    start = np.broadcast_to(START, (seeds, NODES, len(START)))
    clocks = Clocks(tuple(periods), max_staleness)
    found = run(setting, tables, clocks, STREAM, start, ticks, np.random.default_rng(0))
    last = deque(found, maxlen=1)[0]
    priced = tuple(
        Releases(algorithm=setting.algorithm, schedules=table, sensitivity=SENSITIVITY)
        for table in tables
    )
    return Outcome(
        last.done.tolist(), float(errors(last.models).mean()), spent(priced, last.done).tolist()
    )


def check_b2() -> Finding:
    """Clocks of one's own."""
    rows, found = {}, {}
    for number in (1, 2):
        for name, periods, stale in (
            ("equal clocks", EQUAL, 0), ("periods 1, 2, 4, in step", MIXED, 0),
            ("periods 1, 2, 4, at most 4 ahead", MIXED, 4),
            ("periods 1, 2, 4, at most 2000 ahead", MIXED, TICKS),
            ("one node 8 times slower, in step", ONE_SLOW, 0),
            ("one node 8 times slower, at most 2000 ahead", ONE_SLOW, TICKS),
        ):  # fmt: skip
            one = outcome(number, periods, stale)
            found[number, periods, stale] = one
            rows[f"Algorithm {number}, {name}"] = {
                "iterations": one.done, "MSE": one.mse,
                "epsilon": [min(one.epsilon), max(one.epsilon)],
            }  # fmt: skip
    own = all(max(one.epsilon) < 1.01 for one in found.values())
    ahead = {
        f"Algorithm {number}": found[number, ONE_SLOW, TICKS].mse / found[number, ONE_SLOW, 0].mse
        for number in (1, 2)
    }
    return Finding(
        "002-B2", "nodes with clocks and sample sizes of their own converge, each at its own price",
        verdict_of(as_printed=own and all(one.mse < 0.01 * 19.5 for one in found.values())),
        {"after 2000 ticks, C = 0.2": rows, "MSE not waiting for a slow node over waiting": ahead},
        (0,),
        remark="Not to wait for a slow node helps Algorithm 2 and not Algorithm 1. All nodes have "
        "one minimiser here. Where they do not, a node that steps more often weighs more.",
    )  # fmt: skip

"""Is `auto` within a factor of the best method, in every cell where some method works?

Per cell, the best is the method with the least mean share of the start's gap over the reported
seeds, central ceilings aside; choosing it by the seeds that it is judged on favours it. Seeds are
paired: the same data, shards and start. The ratio is that of mean shares, auto over best, and its
95 % interval is Fieller's, from the paired seeds: the set of r for which the mean of
auto_s - r best_s is not told from zero by a t-test.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.leaderboard.methods import AUTO, CENTRAL

FACTOR = 1.2
WORKS = 0.5
UNKNOWN = "not measured"


@dataclass(frozen=True)
class Row:
    """One cell of the gate."""

    task: str
    epsilon: float
    best: str
    best_share: float
    auto_share: float | None
    """None: the planner refuses the task."""
    low: float
    high: float
    """The paired interval of the ratio auto / best."""
    why: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether some method gets below half of the start."""
        return self.best_share < WORKS

    @property
    def ratio(self) -> float:
        """Of mean shares."""
        return math.inf if self.auto_share is None else self.auto_share / self.best_share

    @property
    def verdict(self) -> str:
        """Whether the whole interval is "within" the factor, or beyond it ("loses"), or "open"."""
        if not self.is_counted:
            return "not counted"
        if self.why == UNKNOWN:
            return UNKNOWN
        if self.high <= FACTOR:
            return "within"
        return "loses" if self.low > FACTOR else "open"


def interval(auto: Sequence[float], best: Sequence[float]) -> tuple[float, float]:
    """Fieller's 95 % interval of mean(auto) / mean(best), paired; infinite where it is unbounded.

    Raises:
        ValueError: for fewer than two seeds, or unequal numbers of them.
    """
    a = np.asarray(auto, dtype=float)
    b = np.asarray(best, dtype=float)
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"Expected at least two paired seeds, got {len(a)} and {len(b)}")
    if np.array_equal(a, b):
        return 1.0, 1.0
    t = float(stats.t.ppf(0.975, len(a) - 1)) ** 2 / len(a)
    (va, cov), (_, vb) = np.cov(a, b)
    square = b.mean() ** 2 - t * vb
    half = a.mean() * b.mean() - t * cov
    rest = a.mean() ** 2 - t * va
    inside = half**2 - square * rest
    if square <= 0 or inside < 0:
        return -math.inf, math.inf
    return float((half - math.sqrt(inside)) / square), float((half + math.sqrt(inside)) / square)


def row_of(task: str, epsilon: float, cells: Mapping[str, Mapping[str, Any]]) -> Row | None:
    """The row of one task and epsilon from its cells by method; None: nothing was measured."""
    means = {
        method: float(np.mean(cell["shares"]))
        for method, cell in cells.items()
        if "shares" in cell and method != CENTRAL
    }
    if not means:
        return None
    best = min(means, key=means.__getitem__)
    share = means[best]
    auto = cells.get(AUTO, {})
    if "shares" not in auto:
        why = auto.get("refused", UNKNOWN)
        return Row(task, epsilon, best, share, None, math.inf, math.inf, why)
    low, high = interval(auto["shares"], cells[best]["shares"])
    return Row(task, epsilon, best, share, means[AUTO], low, high)

"""Empirical lower bounds on epsilon: how well are two neighbouring datasets told apart?

(epsilon, delta)-DP bounds every test: TPR <= exp(epsilon) FPR + delta, and with the two datasets
swapped. So scores of many independent runs on both give a lower bound on any honest epsilon. A
claim is a curve: it holds at every delta. Threshold, side and delta are chosen on the first third
of the runs and judged on the rest, with Clopper-Pearson intervals; the bound holds with the stated
confidence, whatever the attack.

Jagielski, Ullman, Oprea: Auditing differentially private machine learning (2020); Nasr et al.:
Tight auditing of differentially private machine learning (2023).

>>> bound = lower_bound(wins=900, losses=10, trials=1000, delta=0.0, confidence=0.95)
>>> round(bound, 2)
3.87
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = NDArray[np.float64]
DELTAS: Final = (1e-5, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Where a claim is compared: the larger ones need the fewest runs."""
LEAST_CLAIM: Final = 0.1
"""At a delta where less is claimed, a ratio of two small numbers says nothing."""
WEAK: Final = 0.5
"""An audit that proves a smaller share of the claim is weak: it would miss a fault of that size."""


@dataclass(frozen=True)
class Verdict:
    """What an audit found: the attack's rates and the bound they prove."""

    epsilon_lower_bound: float
    claimed_epsilon: float
    delta: float
    true_positives: int
    false_positives: int
    trials: int
    confidence: float

    @property
    def power(self) -> float:
        """Proved over claimed: 1 is a tight audit, 0 one that saw nothing."""
        return self.epsilon_lower_bound / self.claimed_epsilon

    @property
    def is_violated(self) -> bool:
        """Whether the claim is proved wrong, at the verdict's confidence."""
        return self.epsilon_lower_bound > self.claimed_epsilon

    @property
    def is_weak(self) -> bool:
        """Whether so little is proved that a fault of a factor of two would be missed."""
        return self.power < WEAK


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """One-sided bounds (lower, upper), each at ``confidence``, of a binomial probability."""
    low, high = _rates(np.asarray([successes]), trials, confidence)
    return float(low[0]), float(high[0])


def lower_bound(*, wins: int, losses: int, trials: int, delta: float, confidence: float) -> float:
    """log((TPR - delta) / FPR) from its confidence bounds; 0 when nothing is proved.

    Each of the two rates is bounded at confidence 1 - (1 - confidence) / 2, so both hold at once.
    """
    each = 1.0 - (1.0 - confidence) / 2.0
    rate, _ = clopper_pearson(wins, trials, each)
    _, false_rate = clopper_pearson(losses, trials, each)
    if rate <= delta:
        return 0.0
    return max(0.0, math.log((rate - delta) / false_rate))


def audit(
    present: Scores,
    absent: Scores,
    *,
    claim: Callable[[float], float],
    deltas: Sequence[float] = DELTAS,
    confidence: float = 0.95,
) -> Verdict:
    """The largest share of ``claim`` that these scores prove.

    Guarantees: under any mechanism that is (claim(delta), delta)-DP at every delta,
    P[bound > claimed_epsilon] <= 1 - confidence, for scores that are independent between runs.

    Raises:
        ValueError: for fewer than 30 runs on a dataset, more on one than on the other, or a claim
            below LEAST_CLAIM at every delta.
    """
    if len(present) != len(absent) or len(present) < 30:
        raise ValueError(
            f"Expected at least 30 runs on each dataset and as many on both, got {len(present)} "
            f"and {len(absent)}"
        )
    claims = {delta: claim(delta) for delta in deltas}
    claims = {delta: e for delta, e in claims.items() if LEAST_CLAIM <= e < math.inf}
    if not claims:
        raise ValueError(
            f"Expected a finite claim of epsilon >= {LEAST_CLAIM} at a delta of {tuple(deltas)}, "
            "got none; attack more rounds at once"
        )
    third = len(present) // 3
    threshold, side, delta = _best_test(present[:third], absent[:third], claims, confidence)
    judged = _oriented(present[third:], absent[third:], side)
    wins, losses = (int((scores > threshold).sum()) for scores in judged)
    trials = len(present) - third
    bound = lower_bound(wins=wins, losses=losses, trials=trials, delta=delta, confidence=confidence)
    return Verdict(bound, claims[delta], delta, wins, losses, trials, confidence)


def _oriented(present: Scores, absent: Scores, side: int) -> tuple[Scores, Scores]:
    """(positives, negatives) of one of four tests: either dataset, above or below a threshold."""
    sign = 1.0 if side < 2 else -1.0
    one, other = (present, absent) if side % 2 == 0 else (absent, present)
    return sign * one, sign * other


def _best_test(
    present: Scores, absent: Scores, claims: dict[float, float], confidence: float
) -> tuple[float, int, float]:
    """(threshold, side, delta) of the test with the largest share proved."""
    found: list[tuple[float, float, int, float]] = []
    each = 1.0 - (1.0 - confidence) / 2.0
    for side in range(4):
        positive, negative = _oriented(present, absent, side)
        pooled = np.sort(np.concatenate([positive, negative]))
        picks = pooled[np.linspace(0, len(pooled) - 2, 400).astype(int)]
        candidates = np.unique(np.append(picks, negative.max()))
        wins, losses = (
            len(scores) - np.searchsorted(np.sort(scores), candidates, side="right")
            for scores in (positive, negative)
        )
        rates, false_rates = (
            _rates(wins, len(positive), each)[0],
            _rates(losses, len(negative), each)[1],
        )
        for delta, epsilon in claims.items():
            bounds = np.log(np.maximum(rates - delta, 1e-300) / false_rates)
            best = int(np.argmax(bounds))
            found.append((bounds[best] / epsilon, float(candidates[best]), side, delta))
    return max(found)[1:]


def _rates(successes: NDArray[Any], trials: int, confidence: float) -> tuple[Scores, Scores]:
    """Clopper-Pearson's (lower, upper), shape of ``successes``."""
    alpha = 1.0 - confidence
    with np.errstate(invalid="ignore"):
        low = stats.beta.ppf(alpha, successes, trials - successes + 1)
        high = stats.beta.ppf(1.0 - alpha, successes + 1, trials - successes)
    return np.where(successes == 0, 0.0, low), np.where(successes == trials, 1.0, high)

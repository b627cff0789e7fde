"""Empirical lower bounds on epsilon: how well can an attacker tell two neighbouring worlds apart?

(epsilon, delta)-DP bounds every test: TPR <= exp(epsilon) FPR + delta, and with the worlds swapped.
So scores of many independent runs in both worlds give a lower bound on any honest epsilon. The
threshold is chosen on the first half of the runs and judged on the second, with Clopper-Pearson
intervals; the bound holds with the stated confidence, whatever the attack.

Jagielski, Ullman, Oprea: Auditing differentially private machine learning (2020); Nasr et al.:
Tight auditing of differentially private machine learning (2023).

>>> bound = lower_bound(wins=900, losses=10, trials=1000, delta=0.0, confidence=0.95)
>>> round(bound, 2)
3.87
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """What an audit found: the attack's rates and the bound they prove."""

    epsilon_lower_bound: float
    true_positives: int
    false_positives: int
    trials: int
    confidence: float


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """One-sided bounds (lower, upper), each at ``confidence``, of a binomial probability."""
    alpha = 1.0 - confidence
    low = float(stats.beta.ppf(alpha, successes, trials - successes + 1)) if successes else 0.0
    high = (
        float(stats.beta.ppf(1.0 - alpha, successes + 1, trials - successes))
        if successes < trials
        else 1.0
    )
    return low, high


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


def audit(present: Scores, absent: Scores, *, delta: float, confidence: float = 0.95) -> Verdict:
    """The bound that these scores prove; large scores speak for the example's presence.

    Guarantees: under any (epsilon, delta)-DP mechanism P[bound > epsilon] <= 1 - confidence, for
    scores that are independent between runs.

    Raises:
        ValueError: for fewer than 20 runs, or worlds of unequal size.
    """
    if len(present) != len(absent) or len(present) < 20:
        raise ValueError(
            f"Expected at least 20 runs in each world and as many in both, got {len(present)} "
            f"and {len(absent)}"
        )
    half = len(present) // 2
    threshold = _best_threshold(present[:half], absent[:half], delta, confidence)
    wins = int((present[half:] > threshold).sum())
    losses = int((absent[half:] > threshold).sum())
    trials = len(present) - half
    bound = lower_bound(wins=wins, losses=losses, trials=trials, delta=delta, confidence=confidence)
    return Verdict(bound, wins, losses, trials, confidence)


def _best_threshold(present: Scores, absent: Scores, delta: float, confidence: float) -> float:
    """The threshold, out of 200 quantiles of both worlds, with the largest bound on this half."""
    pooled = np.sort(np.concatenate([present, absent]))
    picks = pooled[np.linspace(0, len(pooled) - 2, 200).astype(int)]
    extremes = [float(np.max(absent)), float(np.median(pooled))]
    candidates = np.unique(np.concatenate([picks, extremes]))
    bounds = [
        lower_bound(
            wins=int((present > t).sum()),
            losses=int((absent > t).sum()),
            trials=len(present),
            delta=delta,
            confidence=confidence,
        )
        for t in candidates
    ]
    return float(candidates[int(np.argmax(bounds))])

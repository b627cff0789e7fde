"""Empirical lower bounds on epsilon: how well are two neighbouring datasets told apart?

(epsilon, delta)-DP bounds every test: TPR <= exp(epsilon) FPR + delta, and with the two datasets
swapped. So scores of many independent runs on both give a lower bound on any honest epsilon. A
claim is a curve: it holds at every delta. Threshold, side and delta are chosen on the first third
of the runs and judged on the rest, with Clopper-Pearson intervals; the bound holds with the stated
confidence, whatever the attack.

Jagielski, Ullman, Oprea: Auditing differentially private machine learning (2020); Nasr et al.:
Tight auditing of differentially private machine learning (2023).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from torch import Tensor

from manifed.errors import ConfigError

Scores = NDArray[np.float64]
_DELTAS: Final = (1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Where a claim is compared: the larger ones need the fewest runs."""
_LEAST_CLAIM: Final = 0.1
"""At a delta where less is claimed, a ratio of two small numbers says nothing."""
_WEAK: Final = 0.5
"""An audit that proves a smaller share of the claim is weak: it would miss a fault of that size."""


@dataclass(frozen=True)
class Verdict:
    """What the scores of an attack prove about one claim."""

    epsilon_lower_bound: float
    claimed_epsilon: float
    delta: float

    @property
    def power(self) -> float:
        """Proved over claimed: 1 is a tight audit, 0 one that saw nothing."""
        return self.epsilon_lower_bound / self.claimed_epsilon

    @property
    def is_violated(self) -> bool:
        """Whether the claim is proved wrong, at the audit's confidence."""
        return self.epsilon_lower_bound > self.claimed_epsilon

    @property
    def is_weak(self) -> bool:
        """Whether so little is proved that a fault of a factor of two would be missed."""
        return self.power < _WEAK


def clopper_pearson(
    successes: ArrayLike, trials: int, confidence: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """One-sided bounds (lower, upper), each at ``confidence``, of binomial probabilities."""
    count = np.asarray(successes)
    alpha = 1.0 - confidence
    with np.errstate(invalid="ignore"):
        low = stats.beta.ppf(alpha, count, trials - count + 1)
        high = stats.beta.ppf(1.0 - alpha, count + 1, trials - count)
    return np.where(count == 0, 0.0, low), np.where(count == trials, 1.0, high)


def audit(
    present: Scores,
    absent: Scores,
    *,
    claim: Callable[[float], float],
    confidence: float = 0.95,
) -> Verdict:
    """The largest share of ``claim`` that these scores prove.

    Guarantees: under any mechanism that is (claim(delta), delta)-DP at every delta,
    P[bound > claimed_epsilon] <= 1 - confidence, for scores that are independent between runs.

    Raises:
        ConfigError: for a claim below LEAST_CLAIM at every delta.
    """
    claims = [(delta, claim(delta)) for delta in _DELTAS]
    claims = [(delta, e) for delta, e in claims if _LEAST_CLAIM <= e < math.inf]
    if not claims:
        raise ConfigError(
            f"Expected a finite claim of epsilon >= {_LEAST_CLAIM} at a delta of {_DELTAS}, got "
            "none; attack more rounds at once"
        )
    third, (delta, epsilon) = len(present) // 3, np.array(claims).T[..., None]
    tests = list[tuple[float, int, float, float, float]]()
    # either dataset as the positive one, above or below a threshold
    sides = [(s * a, s * b) for s in (1.0, -1.0) for a, b in ((present, absent), (absent, present))]
    for side, (positive, negative) in enumerate(sides):
        seen = positive[:third], negative[:third]
        pooled = np.sort(np.concatenate(seen))
        picks = pooled[np.linspace(0, len(pooled) - 2, 400).astype(int)]
        thresholds = np.unique(np.append(picks, seen[1].max()))
        shares = _proved(seen, thresholds, delta, confidence) / epsilon
        row, best = np.unravel_index(shares.argmax(), shares.shape)
        tests.append((shares[row, best], side, float(thresholds[best]), *claims[int(row)]))
    _, side, threshold, at, claimed = max(tests)
    judged = sides[side][0][third:], sides[side][1][third:]
    return Verdict(max(0.0, float(_proved(judged, threshold, at, confidence))), claimed, at)


def _proved(
    scores: tuple[Scores, Scores], thresholds: ArrayLike, delta: ArrayLike, confidence: float
) -> NDArray[Any]:
    """log((TPR - delta) / FPR) from bounds of how many of each lie above a threshold.

    Below 0 nothing is proved. Each of the two rates of (positives, negatives) is bounded at
    confidence 1 - (1 - confidence) / 2, so both bounds hold at once.
    """
    trials = len(scores[0])
    each = 1.0 - (1.0 - confidence) / 2.0
    wins, losses = (
        trials - np.searchsorted(np.sort(one), thresholds, side="right") for one in scores
    )
    rate = clopper_pearson(wins, trials, each)[0]
    false_rate = clopper_pearson(losses, trials, each)[1]
    return np.log(np.maximum(rate - delta, 1e-300) / false_rate)


_CONFIDENCE = 0.95


class Attack(ABC):
    """Many independent runs of a mechanism on one of two neighbouring datasets."""

    @property
    def at_once(self) -> int:
        """Runs that one call of `run` makes, at most."""
        return 1

    @abstractmethod
    def claim(self, delta: float) -> float:
        """Epsilon that is charged for one run."""

    @abstractmethod
    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """One score a trial, (trials,); the noise addresses of a trial follow from its number."""

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """One score a run, with the canary or without; no two runs share a noise address."""
        first = 0 if is_present else trials
        starts = range(first, first + trials, self.at_once)
        batches = [tuple(range(i, min(i + self.at_once, first + trials))) for i in starts]
        return torch.cat([self.run(one, is_present=is_present) for one in batches]).numpy()


@dataclass(frozen=True)
class Audited:
    """A mechanism under attack, and what is claimed for it."""

    name: str
    attack: Attack
    trials: int
    """Runs on each dataset."""
    how: str
    """The attack in words."""
    claim: Callable[[float], float] | None = None
    """Epsilon by delta; None: the attack's own, what is charged."""


@dataclass(frozen=True)
class Finding:
    """One audited mechanism, and what its attack proved."""

    audited: Audited
    verdict: Verdict

    def plain(self) -> dict[str, Any]:
        """The result as data for JSON."""
        found = self.verdict
        judged = {"power": found.power, "is_violated": found.is_violated, "is_weak": found.is_weak}
        audited = {"name": self.audited.name, "trials": self.audited.trials}
        return audited | {"attack": self.audited.how} | asdict(found) | judged

    def line(self) -> str:
        """The result as a line of a table."""
        found = self.verdict
        mark = "VIOLATED" if found.is_violated else "weak" if found.is_weak else "holds"
        return (
            f"{self.audited.name:26s} claimed {found.claimed_epsilon:7.3f}  attack proves "
            f"{found.epsilon_lower_bound:7.3f}  power {found.power:5.2f}  "
            f"at delta {found.delta:<7g} {mark}"
        )


def find(audited: Audited, confidence: float = _CONFIDENCE) -> Finding:
    """Attack one mechanism."""
    scores = [audited.attack.scores(audited.trials, is_present=p) for p in (True, False)]
    claim = audited.claim or audited.attack.claim
    return Finding(audited, audit(*scores, claim=claim, confidence=confidence))


def find_all(attacks: Sequence[Audited]) -> Iterator[Finding]:
    """What each attack proves, at a confidence such that all hold together at 95 % (Bonferroni)."""
    return (find(one, 1.0 - (1.0 - _CONFIDENCE) / len(attacks)) for one in attacks)


def find_strongest(attacks: Sequence[Audited]) -> tuple[Finding, list[Finding]]:
    """The attack that proves the largest share of the claim, and all of them in order."""
    found = list(find_all(attacks))
    return max(found, key=lambda finding: finding.verdict.power), found

"""Lower bounds on epsilon from how well an attack distinguishes two neighbouring data sets.

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
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from torch import Tensor

from manifed.errors import ConfigError

_Scores = NDArray[np.float64]
_DELTAS = (1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Where a claim is compared: the larger ones need the fewest runs."""
_LEAST_CLAIM = 0.1
"""At a delta where less is claimed, a ratio of two small numbers says nothing."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of an audit: the epsilon that an attack proves, and the claim beside it."""

    epsilon_lower_bound: float
    claimed_epsilon: float
    delta: float
    name: str = ""
    """Of the mechanism under attack."""
    trials: int = 0
    """Runs on each dataset."""
    attack: str = ""
    """The attack in words."""

    @property
    def power(self) -> float:
        """The proved epsilon over the claimed one: 1 is a tight audit, 0 proves nothing."""
        return self.epsilon_lower_bound / self.claimed_epsilon

    @property
    def is_violated(self) -> bool:
        """Whether the claim is proved wrong, at the audit's confidence."""
        return self.epsilon_lower_bound > self.claimed_epsilon

    @property
    def is_weak(self) -> bool:
        """Whether so little is proved that a fault of a factor of two would be missed."""
        return self.power < 0.5

    def plain(self) -> dict[str, Any]:
        """The result as data for JSON."""
        judged = {"power": self.power, "is_violated": self.is_violated, "is_weak": self.is_weak}
        return asdict(self) | judged

    def line(self) -> str:
        """The result as a line of a table."""
        mark = "VIOLATED" if self.is_violated else "weak" if self.is_weak else "holds"
        return (
            f"{self.name:26s} claimed {self.claimed_epsilon:7.3f}  attack proves "
            f"{self.epsilon_lower_bound:7.3f}  power {self.power:5.2f}  at delta {self.delta:<7g} "
            f"{mark}"
        )


def _clopper_pearson(
    successes: ArrayLike, trials: int, confidence: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """One-sided bounds (lower, upper), each at ``confidence``, of binomial probabilities."""
    count = np.asarray(successes)
    low = stats.beta.ppf(1.0 - confidence, count, trials - count + 1)  # nan: of none, or of all
    high = stats.beta.ppf(confidence, count + 1, trials - count)
    return np.nan_to_num(low), np.nan_to_num(high, nan=1.0)


def audit(
    present: _Scores,
    absent: _Scores,
    *,
    claim: Callable[[float], float],
    confidence: float = 0.95,
) -> Verdict:
    """Computes the largest share of ``claim`` that these scores prove.

    Guarantees: under any mechanism that is (claim(delta), delta)-DP at every delta,
    P[bound > claimed_epsilon] <= 1 - confidence, for scores that are independent between runs.

    Raises:
        ConfigError: for a claim below LEAST_CLAIM at every delta.
    """
    claims = [(delta, e) for delta in _DELTAS if _LEAST_CLAIM <= (e := claim(delta)) < math.inf]
    if not claims:
        raise ConfigError(
            f"Expected a finite claim of epsilon >= {_LEAST_CLAIM} at a delta of {_DELTAS}, got "
            "none; attack more rounds at once"
        )
    third, (delta, epsilon) = len(present) // 3, np.array(claims).T[..., None]
    tests = list[tuple[float, int, float, float, float]]()
    # either dataset as the positive one, above or below a threshold
    sides = [(s * a, s * b) for s in (1.0, -1.0) for a, b in ((present, absent), (absent, present))]
    for side, both in enumerate(sides):
        seen = [scores[:third] for scores in both]
        pooled = np.sort(np.concatenate(seen))
        picks = pooled[np.linspace(0, len(pooled) - 2, 400).astype(int)]
        thresholds = np.unique(np.append(picks, seen[1].max()))
        shares = _proved(seen, thresholds, delta, confidence) / epsilon
        row, best = np.unravel_index(shares.argmax(), shares.shape)
        tests.append((shares[row, best], side, float(thresholds[best]), *claims[int(row)]))
    _, side, threshold, at, claimed = max(tests)
    judged = [scores[third:] for scores in sides[side]]
    return Verdict(max(0.0, float(_proved(judged, threshold, at, confidence))), claimed, at)


def _proved(
    scores: Sequence[_Scores], thresholds: ArrayLike, delta: ArrayLike, confidence: float
) -> NDArray[Any]:
    """log((TPR - delta) / FPR) from bounds of how many of each lie above a threshold.

    Below 0 nothing is proved. Each of the two rates of (positives, negatives) is bounded at
    confidence 1 - (1 - confidence) / 2, so both bounds hold at once.
    """
    trials = len(scores[0])
    each = (1.0 + confidence) / 2.0
    wins, losses = (
        trials - np.searchsorted(np.sort(one), thresholds, side="right") for one in scores
    )
    rate = _clopper_pearson(wins, trials, each)[0]
    return np.log(np.maximum(rate - delta, 1e-300) / _clopper_pearson(losses, trials, each)[1])


class Attack(ABC):
    """Interface of an attack: many independent runs of a mechanism on either of two neighbours."""

    @property
    def at_once(self) -> int:
        """The largest number of runs that one call of `run` makes."""
        return 1

    @abstractmethod
    def claim(self, delta: float) -> float:
        """The epsilon that is charged for one run."""

    @abstractmethod
    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """Returns one score a trial, (trials,); a trial's number gives its noise addresses."""

    def scores(self, trials: int, *, is_present: bool) -> _Scores:
        """Returns one score a run, with or without the canary; no two share a noise address."""
        numbers = tuple(range(trials) if is_present else range(trials, 2 * trials))
        batches = [numbers[i : i + self.at_once] for i in range(0, trials, self.at_once)]
        return torch.cat([self.run(one, is_present=is_present) for one in batches]).numpy()


@dataclass(frozen=True)
class Audited:
    """A mechanism under attack with the claim that is made for it."""

    name: str
    attack: Attack
    trials: int
    """Runs on each dataset."""
    how: str
    """The attack in words."""
    claim: Callable[[float], float] | None = None
    """Epsilon by delta; None: the attack's own, what is charged."""


def find(audited: Audited, confidence: float = 0.95) -> Verdict:
    """Attacks one mechanism and returns the verdict."""
    scores = [audited.attack.scores(audited.trials, is_present=p) for p in (True, False)]
    found = audit(*scores, claim=audited.claim or audited.attack.claim, confidence=confidence)
    return replace(found, name=audited.name, trials=audited.trials, attack=audited.how)


def find_all(attacks: Sequence[Audited]) -> Iterator[Verdict]:
    """Attacks several mechanisms at a confidence at which all verdicts hold together (95 %)."""
    return (find(one, 1.0 - 0.05 / len(attacks)) for one in attacks)

"""What an audit is made of: an attack on two neighbouring datasets, and the claim it is held to."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from manifed.audit.bound import Scores, Verdict, audit

CONFIDENCE = 0.95


class Attack(Protocol):
    """Many independent runs of a mechanism on one of two neighbouring datasets."""

    def claim(self, delta: float) -> float:
        """Epsilon that is charged for one run."""
        ...

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """One score a run, with the canary or without; no two runs share a noise address."""
        ...


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
        """As data."""
        found = self.verdict
        judged = {"power": found.power, "is_violated": found.is_violated, "is_weak": found.is_weak}
        audited = {"name": self.audited.name, "trials": self.audited.trials}
        return audited | {"attack": self.audited.how} | asdict(found) | judged

    def line(self) -> str:
        """As a line of a table."""
        found = self.verdict
        mark = "VIOLATED" if found.is_violated else "weak" if found.is_weak else "holds"
        return (
            f"{self.audited.name:26s} claimed {found.claimed_epsilon:7.3f}  attack proves "
            f"{found.epsilon_lower_bound:7.3f}  power {found.power:5.2f}  "
            f"at delta {found.delta:<7g} {mark}"
        )


def clients(trials: int, most: int, *, is_present: bool) -> Iterator[tuple[int, ...]]:
    """The clients that stand for the runs on one dataset, at most ``most`` at a time."""
    offset = 0 if is_present else trials
    for start in range(0, trials, most):
        yield tuple(range(offset + start, offset + min(start + most, trials)))


def find(audited: Audited, confidence: float = CONFIDENCE) -> Finding:
    """Attack one mechanism."""
    scores = [audited.attack.scores(audited.trials, is_present=p) for p in (True, False)]
    claim = audited.claim or audited.attack.claim
    return Finding(audited, audit(*scores, claim=claim, confidence=confidence))


def find_all(attacks: Sequence[Audited]) -> Iterator[Finding]:
    """What each attack proves, at a confidence such that all hold together at 95 % (Bonferroni)."""
    return (find(one, 1.0 - (1.0 - CONFIDENCE) / len(attacks)) for one in attacks)


def find_strongest(attacks: Sequence[Audited]) -> tuple[Finding, list[Finding]]:
    """The attack that proves the largest share of the claim, and all of them in order."""
    found = list(find_all(attacks))
    return max(found, key=lambda finding: finding.verdict.power), found

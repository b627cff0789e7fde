"""What an audit is made of: an attack on two neighbouring datasets, and the claim it is held to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from manifed.privacy.audit import DELTAS, Scores


class Attack(Protocol):
    """Many independent runs of a mechanism on one of two neighbouring datasets."""

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """One score a run, with the canary or without; no two runs share a noise address."""
        ...


@dataclass(frozen=True)
class Audited:
    """A mechanism under attack, and what is claimed for it."""

    name: str
    attack: Attack
    claim: Callable[[float], float]
    """Epsilon by delta."""
    trials: int
    how: str
    """The attack in words."""
    deltas: tuple[float, ...] = DELTAS
    """Where the claim is made."""


def clients(trials: int, most: int, *, is_present: bool) -> Iterator[tuple[int, ...]]:
    """The clients that stand for the runs on one dataset, at most ``most`` at a time."""
    offset = 0 if is_present else trials
    for start in range(0, trials, most):
        yield tuple(range(offset + start, offset + min(start + most, trials)))

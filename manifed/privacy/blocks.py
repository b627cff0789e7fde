"""Rounds that are reserved together though they cost different amounts: each as the dearest.

What a client releases in a round is a list of events. Rounds go into one block while these differ
in noise multipliers alone, and no multiplier is more than 1 % above the least of its kind. The
block is charged the least ones in every round, so that at most 1 % of noise is given away, wherever
a run stops and whoever asks again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from manifed.privacy.charges import Releases
from manifed.privacy.events import Event, GaussianRelease, LaplaceRelease

SPREAD: Final = 1.01
"""The largest noise multiplier of a block, over the least."""


@dataclass(frozen=True)
class Block:
    """The rounds ``first`` to ``last``."""

    first: int
    last: int
    dearest: Mapping[int, tuple[int, ...]]
    """Of clients with so many examples: the round in which each of their events costs most."""

    def charged(self, size: int, releases: Callable[[int], Releases]) -> Releases:
        """What each round is charged, out of what rounds release."""
        if self.first == self.last:
            return releases(self.first)
        rounds = self.dearest[size]
        found = {r: releases(r) for r in set(rounds)}
        return tuple(found[r][i] for i, r in enumerate(rounds))


def blocks(rounds: Iterable[Mapping[int, Releases]], most: int) -> Iterator[Block]:
    """The rounds 1, 2, ..., cut into blocks of at most ``most``, greedily from the left.

    ``rounds`` say what clients release, by their number of examples.
    """
    now: _Growing | None = None
    for r, released in enumerate(rounds, 1):
        if now is None or not now.takes(r, released, most):
            if now is not None:
                yield now.block
            now = _Growing(r, released)
    if now is not None:
        yield now.block


class _Growing:
    """A block that rounds are still added to."""

    def __init__(self, first: int, released: Mapping[int, Releases]) -> None:
        self._first = self._last = first
        self._kinds = {size: tuple(map(_kind, events)) for size, events in released.items()}
        self._least = {size: list(map(_multiplier, events)) for size, events in released.items()}
        self._most = {size: list(found) for size, found in self._least.items()}
        self._dearest = {size: [first] * len(events) for size, events in released.items()}

    @property
    def block(self) -> Block:
        """As it stands."""
        dearest = {size: tuple(rounds) for size, rounds in self._dearest.items()}
        return Block(self._first, self._last, dearest)

    def takes(self, r: int, released: Mapping[int, Releases], most: int) -> bool:
        """Add round r, unless it does not fit."""
        if r - self._first >= most:
            return False
        for size, events in released.items():
            if tuple(map(_kind, events)) != self._kinds[size]:
                return False
            for z, low, high in zip(
                map(_multiplier, events), self._least[size], self._most[size], strict=True
            ):
                if max(z, high) > SPREAD * min(z, low):
                    return False
        for size, events in released.items():
            for i, z in enumerate(map(_multiplier, events)):
                if z < self._least[size][i]:
                    self._least[size][i], self._dearest[size][i] = z, r
                self._most[size][i] = max(self._most[size][i], z)
        self._last = r
        return True


def _multiplier(event: Event) -> float:
    """What may differ inside a block; of an event that may not, a constant."""
    return event.noise_multiplier if isinstance(event, GaussianRelease | LaplaceRelease) else 1.0


def _kind(event: Event) -> object:
    """What must be the same inside a block."""
    if not isinstance(event, GaussianRelease | LaplaceRelease):
        return event
    return (
        event.kind, event.unit, event.neighboring_relation, event.sampling, event.count, event.label
    )  # fmt: skip

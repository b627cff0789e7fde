"""What adds up in an odometer: terms as arrays, participations, cohort draws, attempts."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from manifed.privacy import cohorts
from manifed.privacy.charges import Releases, Terms
from manifed.privacy.cohorts import Members

Coin = tuple[int, ...]
"""One cohort draw: the terms of the attempts that use it, in order."""


@dataclass(frozen=True, eq=False)
class Known:
    """Terms as arrays: every client's update as an index into `Register.updates`, -1 for none."""

    terms: Terms
    update_of: NDArray[np.int32]

    @property
    def has_updates(self) -> bool:
        """Whether clients release anything of their own."""
        return bool(self.terms.updates)

    def check(self, cohort: Members) -> None:
        """Raise ValueError for a client outside the terms."""
        if cohort.size and cohort[-1] >= self.terms.population:
            raise ValueError(
                f"Expected clients < {self.terms.population} in a cohort, got {cohort[-1]}"
            )
        if self.has_updates and (self.update_of[cohort] < 0).any():
            missing = cohort[self.update_of[cohort] < 0][:5].tolist()
            raise ValueError(f"Expected an update for every client of a cohort, none for {missing}")


class Register:
    """The terms that were met, each once, by the number under which tallies keep them."""

    def __init__(self) -> None:
        """Empty."""
        self.known: list[Known] = []
        self.updates: list[Releases] = []
        self.first_round: dict[Coin, int] = {}
        """A round that drew such a coin, for messages."""
        self._index: dict[Terms, int] = {}
        self._update_index: dict[Releases, int] = {}

    def copied(self) -> "Register":
        """One that can be added to alone."""
        other = Register()
        other.known, other.updates = list(self.known), list(self.updates)
        other.first_round = dict(self.first_round)
        other._index, other._update_index = dict(self._index), dict(self._update_index)
        return other

    def number(self, terms: Terms) -> int:
        """The number of the terms.

        Raises:
            ValueError: for a client in two updates or outside the population.
        """
        if (found := self._index.get(terms)) is not None:
            return found
        update_of = np.full(terms.population, -1, dtype=np.int32)
        for update in terms.updates:
            owners = cohorts.members(update.partitions)
            if owners.size and owners[-1] >= terms.population:
                raise ValueError(f"Expected clients < {terms.population}, got {owners[-1]}")
            if owners.size != len(update.partitions) or (update_of[owners] >= 0).any():
                raise ValueError(f"Expected every partition in one update at most, got {owners}")
            if update.releases not in self._update_index:
                self._update_index[update.releases] = len(self.updates)
                self.updates.append(update.releases)
            update_of[owners] = self._update_index[update.releases]
        self._index[terms] = len(self.known)
        self.known.append(Known(terms, update_of))
        return self._index[terms]


@dataclass
class Tally:
    """What adds up: attempts, participations, coins."""

    served: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """Terms -> how often each client may have been asked."""
    attempts: Counter[int] = field(default_factory=Counter)
    """Terms -> attempts of rounds."""
    coins: Counter[Coin] = field(default_factory=Counter)

    def add(self, terms: int, cohort: Members, times: int) -> None:
        """``times`` attempts with this cohort; negative takes them back."""
        self.attempts[terms] += times
        known = self.served.get(terms, np.zeros(0, dtype=np.int64))
        if cohort.size and cohort[-1] >= known.size:
            known = np.concatenate((known, np.zeros(int(cohort[-1]) + 1 - known.size, np.int64)))
        known[cohort] += times
        self.served[terms] = known

    def copied(self) -> "Tally":
        """One that can be added to alone."""
        return Tally(
            {terms: served.copy() for terms, served in self.served.items()},
            Counter(self.attempts),
            Counter(self.coins),
        )

    def by_client(self) -> NDArray[np.int64]:
        """How often each client may have been asked under any terms."""
        size = max((served.size for served in self.served.values()), default=0)
        total = np.zeros(size, dtype=np.int64)
        for served in self.served.values():
            total[: served.size] += served
        return total

    def toss(self, before: Coin, after: Coin, times: int) -> None:
        """Turn ``before`` coins into ``after`` coins; () is no coin."""
        for coin, change in ((before, -times), (after, times)):
            if coin:
                self.coins[coin] += change
                assert self.coins[coin] >= 0
                if not self.coins[coin]:
                    del self.coins[coin]


class Attempts:
    """How often each round was charged, as ranges: short while rounds follow each other."""

    def __init__(self, ranges: Iterable[tuple[int, int, int]] = (), covered: int = 0) -> None:
        """Ranges (first, last, attempts); rounds 1 to ``covered`` are all in them."""
        self._ranges, self.covered = list(ranges), covered

    def note(self, first: int, last: int, attempt: int) -> None:
        """The rounds were charged for this attempt."""
        if last < first:
            return
        if first <= self.covered + 1:
            self.covered = max(self.covered, last)
        if self._ranges and self._ranges[-1][1:] == (first - 1, attempt + 1):
            self._ranges[-1] = (self._ranges[-1][0], last, attempt + 1)
        else:
            self._ranges.append((first, last, attempt + 1))

    def of(self, server_round: int) -> int:
        """How often a round was charged."""
        fitting = (n for first, last, n in self._ranges if first <= server_round <= last)
        return max(fitting, default=0)

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """(first, last, attempts), as they were noted; a later one of the same rounds has more."""
        return tuple(self._ranges)

    @property
    def last(self) -> int:
        """The largest round that was charged; 0 before one was."""
        return max((last for _, last, _ in self._ranges), default=0)

    def copied(self) -> "Attempts":
        """One that can be added to alone."""
        return Attempts(self._ranges, self.covered)


def stretched(ranges: Iterable[tuple[int, int, int]], lengths: Iterable[int]) -> tuple[int, ...]:
    """Attempts of the rounds 1 to l1, l1 + 1 to l1 + l2, ..., from ranges (first, last, attempts).

    Where ranges meet the most attempts count; what lies behind the last length counts with it.
    Trailing zeros are left out.
    """
    ends = np.cumsum(np.fromiter(lengths, dtype=np.int64))
    total = np.zeros(len(ends), dtype=np.int64)
    for first, last, attempts in _apart(ranges):
        start, i = first, min(int(np.searchsorted(ends, first)), len(ends) - 1)
        while start <= last:
            end = last if i == len(ends) - 1 else min(last, int(ends[i]))
            total[i] += attempts * (end - start + 1)
            start, i = end + 1, i + 1
    used = np.flatnonzero(total)
    return tuple(total[: used[-1] + 1].tolist()) if used.size else ()


def _apart(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Disjoint ranges of rounds from 1 on, with the most attempts of any that meet there."""
    given = [(max(1, first), last, n) for first, last, n in ranges if max(1, first) <= last]
    cuts = sorted({first for first, _, _ in given} | {last + 1 for _, last, _ in given})
    found: list[tuple[int, int, int]] = []
    for start, stop in pairwise(cuts):
        meeting = (n for first, last, n in given if first <= start < stop <= last + 1)
        if most := max(meeting, default=0):
            found.append((start, stop - 1, most))
    return found

"""The account of a live run: charges go to the ledger first and then, the same, to the odometer.

What the odometer says is therefore what an audit of the file says. A block of rounds costs one
write: it is reserved for everybody, and the cohorts that were drawn are written with the next
reservation, at `note` or at `settle`. A crash before that counts everybody in every round of the
block.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from manifed.privacy import cohorts
from manifed.privacy.charges import CONSUMED, RESERVED, Consumption, Reservation, Terms
from manifed.privacy.cohorts import Members
from manifed.privacy.ledger import Head, Ledger
from manifed.privacy.odometer import Odometer


class Account:
    """Writes what a run's rounds are charged; ``odometer`` must have taken all of ``ledger``."""

    def __init__(
        self,
        ledger: Ledger,
        odometer: Odometer,
        terms: Terms,
        *,
        block: int = 1,
        last_round: int | None = None,
    ) -> None:
        """``block`` rounds are reserved in one write, none beyond ``last_round``."""
        if block < 1:
            raise ValueError(f"Expected a block of at least 1 round, got {block}")
        self._ledger, self.odometer = ledger, odometer
        self._terms = None if odometer.terms == terms else terms
        self._population, self._block, self._last = terms.population, block, last_round
        self._before: Reservation | None = None
        self._done: list[Members] = []
        """Of the rounds of ``_before`` that were run and not yet written as consumed."""
        self._next = 0
        odometer.declare(terms)

    @classmethod
    def recover(
        cls,
        path: str | Path,
        terms: Terms,
        *,
        resumed_at: int,
        key: bytes | None = None,
        anchors: Iterable[Head] = (),
        block: int = 1,
        last_round: int | None = None,
    ) -> "Account":
        """The account of a run that goes on at round ``resumed_at``; errors as `Ledger.recover`.

        A line that a crash tore is charged as if it had reserved a block for everybody.
        """
        odometer = Odometer()

        def torn() -> dict[str, Any]:
            own = None if odometer.terms == terms else terms
            last = resumed_at + block - 1
            if last_round is not None:
                last = max(resumed_at, min(last, last_round))
            attempt = odometer.attempts(resumed_at)
            everybody = np.arange(terms.population)
            return Reservation(resumed_at, last, attempt, everybody, terms=own).body()

        ledger = Ledger.recover(path, charge=torn, key=key, anchors=anchors, feed=odometer.feed)
        return cls(ledger, odometer, terms, block=block, last_round=last_round)

    @property
    def ledger(self) -> Ledger:
        """Where it writes."""
        return self._ledger

    def attempts(self, server_round: int) -> int:
        """How often a round was charged, not counting reserved rounds that are still to be run."""
        found = self.odometer.attempts(server_round)
        is_ahead = self._before is not None and self._next <= server_round <= self._before.last
        return found - 1 if is_ahead else found

    def charge(
        self,
        server_round: int,
        attempt: int,
        partitions: Iterable[int],
        *,
        cohort_attempt: int | None = None,
    ) -> None:
        """Pay for one attempt of a round; when it returns, a reservation of it is on disk.

        Raises:
            ValueError: for a client outside the terms.
            OSError: as `Ledger.append`.
        """
        cohort = cohorts.members(partitions)
        if self._is_reserved(server_round, attempt, cohort_attempt):
            self._check(cohort)
        else:
            reservation = self._reservation(server_round, attempt, cohort, cohort_attempt)
            self.odometer.after(reservation)  # refuses what could never be read back
            self.odometer.feed(self._ledger.append(RESERVED, reservation.body()))
            self._before, self._done, self._terms = reservation, [], None
        self._done.append(cohort)
        self._next = server_round + 1

    def after(self, server_round: int, attempt: int, partitions: Iterable[int]) -> Odometer:
        """The odometer as `charge` would leave it."""
        if self._is_reserved(server_round, attempt, None):
            return self.odometer
        cohort = cohorts.members(partitions)
        return self.odometer.after(self._reservation(server_round, attempt, cohort, None))

    def note(self) -> None:
        """Write which rounds of the block were run; the others stay reserved."""
        self._consume(is_open=True)

    def settle(self) -> None:
        """Write which rounds were run, at an orderly end; whatever else was reserved is free.

        Nothing is written to a ledger that an earlier failure closed: it counts what is reserved.
        """
        if not self._ledger.is_broken:
            self._consume(is_open=False)

    def _consume(self, *, is_open: bool) -> None:
        if self._before is None or (is_open and not self._done):
            return
        body = self._consumption(is_open=is_open).body()
        self.odometer.feed(self._ledger.append(CONSUMED, body))
        is_left = is_open and self._next <= self._before.last
        self._before, self._done = (self._before if is_left else None), []

    def _consumption(self, *, is_open: bool = False) -> Consumption:
        assert self._before is not None
        is_block = self._before.last > self._before.first
        named = tuple(self._done) if is_block else None
        return Consumption(self._next - 1, named, is_open)

    def _is_reserved(self, server_round: int, attempt: int, cohort_attempt: int | None) -> bool:
        before = self._before
        return (
            before is not None
            and cohort_attempt is None
            and server_round == self._next <= before.last
            and attempt == before.attempt
        )

    def _reservation(
        self, first: int, attempt: int, cohort: Members, cohort_attempt: int | None
    ) -> Reservation:
        last = first if cohort_attempt is not None else self._block_from(first, attempt)
        consumed = None if self._before is None else self._consumption()
        bound = cohort if last == first else np.arange(self._population)
        return Reservation(first, last, attempt, bound, cohort_attempt, consumed, self._terms)

    def _block_from(self, first: int, attempt: int) -> int:
        """The last round of a block: the run's last, or before the first of another attempt."""
        end = first + self._block - 1
        last = first
        while last < end and last != self._last and self.attempts(last + 1) == attempt:
            last += 1
        return last

    def _check(self, cohort: Members) -> None:
        if cohort.size and cohort[-1] >= self._population:
            raise ValueError(f"Expected clients < {self._population}, got {cohort[-1]}")

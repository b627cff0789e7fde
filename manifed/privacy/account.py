"""The account of a live run: charges pass the filter, go to the ledger, and then to the odometer.

What the odometer says is therefore what an audit of the file says. A block of rounds costs one
write: it is reserved for everybody, and the cohorts that were drawn are written with the next
reservation, at `note` or at `settle`. A crash before that counts everybody in every round of the
block.
"""

import logging
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from manifed.errors import BudgetExhausted, ConfigError
from manifed.privacy import cohorts
from manifed.privacy.charges import CONSUMED, RESERVED, Consumption, Reservation, Terms
from manifed.privacy.cohorts import Members
from manifed.privacy.filter import Filter, Schedule
from manifed.privacy.ledger import Head, Ledger, read_key
from manifed.privacy.odometer import NOTE, ORIGINS, Odometer
from manifed.privacy.statement import AfterDropout, Promise

log = logging.getLogger("manifed")
KEY_FILE: Final = "MANIFED_LEDGER_KEY_FILE"
"""The environment variable that names the file of the ledger's key."""


def ledger_key(path: Path | None = None) -> bytes | None:
    """The key in ``path``, or in the file that the environment names; None for no key.

    Raises:
        ConfigError: when the file cannot be read, or holds less than 16 bytes.
    """
    named = path or os.environ.get(KEY_FILE)
    if not named:
        return None
    try:
        return read_key(named)
    except (OSError, ValueError) as error:
        raise ConfigError(f"ledger key ({KEY_FILE} or --ledger-key): {error}") from None


def anchors_of(heads: Iterable[str]) -> tuple[Head, ...]:
    """The ledger heads that a user kept.

    Raises:
        ConfigError: for a text that no run printed.
    """
    try:
        return tuple(Head.parse(head) for head in heads)
    except ValueError as error:
        raise ConfigError(f"ledger head: {error}") from None


class Account:
    """Writes what a run's rounds are charged; ``odometer`` must have taken all of ``ledger``."""

    def __init__(
        self,
        ledger: Ledger,
        odometer: Odometer,
        terms: Terms,
        *,
        allowed: Filter | None = None,
        block: int = 1,
        last_round: int | None = None,
        terms_of: Callable[[int], Terms] | None = None,
        planned: tuple[Terms, ...] = (),
    ) -> None:
        """``block`` rounds are reserved in one write, none beyond ``last_round`` or ``allowed``.

        ``terms_of(round)`` gives the terms where they depend on the round; a block has one.
        ``planned`` are all of them where an outsider is priced for what is planned.
        """
        if block < 1:
            raise ValueError(f"Expected a block of at least 1 round, got {block}")
        self._ledger, self.odometer, self._allowed = ledger, odometer, allowed
        self._is_free = not (terms.updates or terms.aggregate)
        self.noise_origins = odometer.noise_origins
        """Where the keys of all noise came from so far, as the sources said (privacy/noise.py)."""
        self._terms_of = terms_of or (lambda _: terms)
        self._planned, self._written = planned, odometer.terms
        """The terms that the ledger's next reservation need not say."""
        self._population, self._block, self._last = terms.population, block, last_round
        self.after_dropout: AfterDropout | None = None
        """What it costs that masks of some clients are disclosed; None: nothing ever is."""
        self._before: Reservation | None = None
        self._done: list[Members] = []
        """Of the rounds of ``_before`` that were run and not yet written as consumed."""
        self._next = 0
        if terms_of is None or odometer.terms is None:
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
        allowed: Filter | None = None,
        block: int = 1,
        last_round: int | None = None,
        terms_of: Callable[[int], Terms] | None = None,
        planned: tuple[Terms, ...] = (),
    ) -> "Account":
        """The account of a run that goes on at round ``resumed_at``; errors as `Ledger.recover`.

        A line that a crash tore is charged as if it had reserved a block for everybody.
        """
        odometer = Odometer()

        def torn() -> dict[str, Any]:
            mine = terms if terms_of is None else terms_of(resumed_at)
            own = None if odometer.terms == mine else mine
            last = resumed_at + block - 1
            while terms_of is not None and last > resumed_at and terms_of(last) != mine:
                last -= 1
            if last_round is not None:
                last = max(resumed_at, min(last, last_round))
            attempt = odometer.attempts(resumed_at)
            everybody = np.arange(terms.population)
            plan = planned if planned != odometer.planned else None
            return Reservation(resumed_at, last, attempt, everybody, terms=own, planned=plan).body()

        ledger = Ledger.recover(path, charge=torn, key=key, anchors=anchors, feed=odometer.feed)
        return cls(
            ledger,
            odometer,
            terms,
            allowed=allowed,
            block=block,
            last_round=last_round,
            terms_of=terms_of,
            planned=planned,
        )

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

        Where nothing is released there is nothing to pay, and nothing is written.

        Raises:
            BudgetExhausted: when the filter does not pay another draw.
            ValueError: for a client outside the terms.
            OSError: as `Ledger.append`.
        """
        if self._is_free:
            return
        cohort = cohorts.members(partitions)
        if self._is_reserved(server_round, attempt, cohort_attempt):
            self._check(cohort)
        else:
            self._check_budget(server_round, cohort_attempt)
            reservation = self._reservation(server_round, attempt, cohort, cohort_attempt)
            if self._allowed is not None and isinstance(self._allowed.draw, Schedule):
                self._check_schedule(self._allowed, reservation)
            self.odometer.check(reservation)  # what it refuses could never be read back
            if self.after_dropout is not None:
                self._check_spent(self.odometer.after(reservation), server_round)
            self._ledger.append(RESERVED, reservation.body())
            self.odometer.count(reservation)
            self._before, self._done = reservation, []
            self._written = self._terms_of(server_round)
        self._done.append(cohort)
        self._next = server_round + 1

    def charge_more(
        self,
        server_round: int,
        attempt: int,
        partitions: Iterable[int],
        disclosed: tuple[int, ...],
    ) -> None:
        """Pay for masks of some clients that the next exchange of an attempt discloses.

        Raises:
            BudgetExhausted: when the budget does not pay it.
            ValueError: nobody said what that costs.
            OSError: as `Ledger.append`.
        """
        if self._is_free:
            return
        if self.after_dropout is None:
            raise ValueError("Expected a price of disclosed masks, got none")
        terms = self.after_dropout(disclosed)
        consumed = None if self._before is None else self._consumption()
        cohort = cohorts.members(partitions)
        reservation = Reservation(
            server_round, server_round, attempt, cohort, consumed=consumed, terms=terms
        )
        self._check_spent(self.odometer.after(reservation), server_round)
        self._ledger.append(RESERVED, reservation.body())
        self.odometer.count(reservation)
        self._before, self._done = reservation, [cohort]
        self._written, self._next = terms, server_round + 1

    def _check_spent(self, after: Odometer, server_round: int) -> None:
        """Refuse what would pass the budget by what was really charged, whoever was silent."""
        budget = None if self._allowed is None else self._allowed.budget
        if budget is None:
            return
        epsilon = after.epsilon(budget.adversary, budget.delta)
        if epsilon > budget.epsilon:
            raise BudgetExhausted(
                f"{budget.field}: round {server_round}, with the masks that silent nodes left, "
                f"would bring epsilon to {epsilon:.4g} against the {budget.adversary.name} "
                f"adversary, the budget is {budget.epsilon:g}; the model of the last paid round is "
                f"kept, and {budget.remedy}"
            )

    def after(self, server_round: int, attempt: int, partitions: Iterable[int]) -> Odometer:
        """The odometer as `charge` would leave it."""
        if self._is_reserved(server_round, attempt, None):
            return self.odometer
        cohort = cohorts.members(partitions)
        return self.odometer.after(self._reservation(server_round, attempt, cohort, None))

    def note_origins(self, server_round: int, origins: frozenset[str]) -> None:
        """Write down where the noise of a round came from, when that is new."""
        if origins <= self.noise_origins:
            return
        self.noise_origins |= origins
        if not self._is_free:
            body = {ORIGINS: sorted(self.noise_origins), "server_round": server_round}
            self._ledger.append(NOTE, body)

    @property
    def randomness_source(self) -> str:
        """Whether every source that was used had a key of the operating system: "os" or "seed"."""
        return "os" if self.noise_origins == frozenset({"os"}) else "seed"

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
        consumption = self._consumption(is_open=is_open)
        self._ledger.append(CONSUMED, consumption.body())
        self.odometer.consume(consumption)
        is_left = is_open and self._next <= self._before.last
        self._before, self._done = (self._before if is_left else None), []

    def _consumption(self, *, is_open: bool = False) -> Consumption:
        assert self._before is not None
        bound = self._before.cohort
        is_all = all(np.array_equal(cohort, bound) for cohort in self._done)
        named = None if is_all else tuple(self._done)
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
        mine = self._terms_of(first)
        own = None if mine == self._written else mine
        plan = self._planned if self._planned != self.odometer.planned else None
        return Reservation(first, last, attempt, bound, cohort_attempt, consumed, own, plan)

    def _block_from(self, first: int, attempt: int) -> int:
        """The last round of a block: the run's last, or before the first of another attempt."""
        if self._block == 1:
            return first
        end = first + self._block - 1
        last, drawn = first, self._drawn() + 1
        mine = self._terms_of(first)
        while last < end and last != self._last and self.attempts(last + 1) == attempt:
            if self._terms_of(last + 1) != mine:
                break
            if self._allowed is not None and isinstance(self._allowed.draw, Schedule):
                if not self._allowed.draw.lengths:
                    break  # each round is asked for alone
            elif self._allowed is not None and not self._allowed.pays(drawn + last + 1 - first):
                break
            last += 1
        if last > first and not self._is_paid(first, last, attempt):
            return first  # near the end of a budget round by round
        return last

    def _is_paid(self, first: int, last: int, attempt: int) -> bool:
        """Whether the budget pays a block of a schedule whole."""
        allowed = self._allowed
        if allowed is None or not isinstance(allowed.draw, Schedule):
            return True
        everybody, terms = np.arange(self._population), self._terms_of(first)
        consumed = None if self._before is None else self._consumption()
        block = Reservation(first, last, attempt, everybody, consumed=consumed, terms=terms)
        return allowed.pays(allowed.made(self.odometer.after(block)))

    def _check_schedule(self, allowed: Filter, reservation: Reservation) -> None:
        """`_check_budget` where it matters which round is drawn once more."""
        before, after = self.odometer, self.odometer.after(reservation)
        allowed.check_after(after, reservation.first)
        passed = allowed.passed_target(allowed.made(after))
        if passed and not allowed.passes_target(allowed.made(before)):
            log.warning("%s", passed)

    def _check_budget(self, server_round: int, cohort_attempt: int | None) -> None:
        """Refuse the draw that the budget does not pay; say when a target is passed."""
        if self._allowed is None or isinstance(self._allowed.draw, Schedule):
            return
        if cohort_attempt is not None:
            raise ValueError("Expected a fresh cohort under a filter, got one that is used again")
        draws = self._drawn() + 1
        self._allowed.check(draws, server_round)
        passed = self._allowed.passed_target(draws)
        if passed and not self._allowed.passes_target(draws - 1):
            log.warning("%s", passed)

    def _drawn(self) -> int:
        """Cohort draws that count once the open reservation is settled."""
        is_ahead = self._before is not None and self._next <= self._before.last
        left = self._before.last - self._next + 1 if self._before is not None and is_ahead else 0
        return self.odometer.rounds_counted - left

    def _check(self, cohort: Members) -> None:
        if cohort.size and cohort[-1] >= self._population:
            raise ValueError(f"Expected clients < {self._population}, got {cohort[-1]}")


def count_only(
    promise: Promise,
    odometer: Odometer,
    server_round: int,
    attempt: int,
    partitions: Iterable[int],
) -> None:
    """The charge of a run that writes nothing: the filter asked, then counted as spent.

    Raises:
        BudgetExhausted: when the filter does not pay another draw.
    """
    if promise.terms.updates or promise.terms.aggregate:
        cohort = cohorts.members(partitions)
        terms = promise.terms_of(server_round) if promise.schedule else None
        plan = promise.plan if promise.plan != odometer.planned else None
        reservation = Reservation(
            server_round, server_round, attempt, cohort, terms=terms, planned=plan
        )
        promise.filter.check_after(odometer.after(reservation), server_round)
        odometer.reserve(reservation)


def count_more(
    promise: Promise,
    odometer: Odometer,
    server_round: int,
    attempt: int,
    partitions: Iterable[int],
    disclosed: tuple[int, ...],
) -> None:
    """As `Account.charge_more`, counted and written nowhere; no budget is asked.

    Raises:
        ValueError: nobody said what that costs.
    """
    if promise.after_dropout is None:
        raise ValueError("Expected a price of disclosed masks, got none")
    terms, cohort = promise.after_dropout(disclosed), cohorts.members(partitions)
    odometer.reserve(Reservation(server_round, server_round, attempt, cohort, terms=terms))
    odometer.declare(promise.terms)


@contextmanager
def opened(
    path: Path,
    promise: Promise,
    *,
    last_round: int,
    header: Mapping[str, Any],
    block: int = 1,
    resumed_at: int | None = None,
    anchors: Iterable[Head] = (),
) -> Generator[Account, None, None]:
    """Hold the ledger of a run; on a resumed run everything in it counts as spent.

    One line pays for up to ``block`` rounds; where masks may be disclosed, for one.

    A last line that a crash tore is charged as if it had invited everybody. At the end, also after
    an error, it is written which reserved rounds were run.

    Raises:
        ConfigError: for a ledger that was charged under other terms.
        LedgerDamaged: as `Ledger.recover`.
    """
    terms, allowed, key = promise.terms, promise.filter, ledger_key()
    block = 1 if promise.after_dropout is not None else block
    terms_of = promise.terms_of if promise.schedule else None
    if resumed_at is None:
        ledger = Ledger.create(path, header, key=key)
        account = Account(
            ledger,
            Odometer(),
            terms,
            allowed=allowed,
            block=block,
            last_round=last_round,
            terms_of=terms_of,
            planned=promise.plan,
        )
    else:
        account = Account.recover(
            path,
            terms,
            resumed_at=resumed_at,
            key=key,
            anchors=anchors,
            allowed=allowed,
            block=block,
            last_round=last_round,
            terms_of=terms_of,
            planned=promise.plan,
        )
    account.after_dropout = promise.after_dropout
    with account.ledger:
        promise.check_ledger(account.odometer)
        try:
            yield account
        finally:
            account.settle()

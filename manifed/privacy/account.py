"""The account of a live run: a charge is asked of the budget, written to the ledger, then counted.

What the odometer says is therefore what an audit of the file says. A block of rounds costs one
write: it is reserved for everybody, and the cohorts that were drawn are written with the next
reservation, or at `settle`. A crash before that counts everybody in every round of the
block. Without a ledger the same is counted and written nowhere.
"""

import logging
import os
from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from manifed.errors import BudgetExhausted, ConfigError
from manifed.privacy.ledger import Entry, Head, Ledger, Reserves, Settles, checked_key
from manifed.privacy.odometer import ORIGINS, Odometer
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import Members, Terms, encode, members

log = logging.getLogger("manifed")
_KEY_FILE: Final = "MANIFED_LEDGER_KEY_FILE"
"""The environment variable that names the file of the ledger's key."""


def ledger_key(path: Path | None = None) -> bytes | None:
    """The key in ``path``, or in the file that the environment names; None for no key.

    White space around its bytes is no part of it.

    Raises:
        ConfigError: when the file cannot be read, or holds less than 16 bytes.
    """
    named = path or os.environ.get(_KEY_FILE)
    if not named:
        return None
    try:
        return checked_key(Path(named).read_bytes().strip(), f"the key file {named}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"ledger key ({_KEY_FILE} or --ledger-key): {error}") from None


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
    """Charges a run's rounds; ``odometer`` must have taken all of ``ledger``."""

    def __init__(
        self,
        promise: Promise,
        ledger: Ledger | None = None,
        odometer: Odometer | None = None,
        *,
        block: int = 1,
        last_round: int | None = None,
    ) -> None:
        """``block`` rounds are reserved in one write, none beyond ``last_round`` or the budget.

        Where masks may be disclosed, or cohorts are drawn and terms differ by round, a block has
        one round.

        Raises:
            ValueError: for a block of no round.
        """
        if block < 1:
            raise ValueError(f"Expected a block of at least 1 round, got {block}")
        self._promise = promise
        self._ledger = ledger
        self._last = last_round
        is_alone = promise.tariff.is_by_round and not promise.tariff.lengths
        self._block = 1 if is_alone or promise.after_dropout is not None else block
        self.odometer = Odometer() if odometer is None else odometer
        self.noise_origins = self.odometer.noise_origins
        """Where the keys of all noise came from so far, as the sources said (privacy/noise.py)."""
        lines = promise.tariff.lines
        self._is_free = not any(terms.updates or terms.aggregate for terms in lines)
        self._written = self.odometer.terms
        self._population = lines[0].population
        """The terms that the next reservation need not say."""
        self._before: Reserves | None = None
        self._done: list[str] = []
        """Cohorts of the rounds of ``_before`` that were run and not yet written as settled."""
        self._next = 0
        if self._written is None or not promise.tariff.is_by_round:
            self.odometer.declare(lines[0])

    @property
    def ledger(self) -> Ledger:
        """Where it writes."""
        assert self._ledger is not None
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
        disclosed: tuple[int, ...] = (),
    ) -> None:
        """Pay for one attempt of a round; when it returns, a reservation of it is on disk.

        With ``disclosed`` pay for the masks of these clients, which the attempt's next exchange
        discloses. Where nothing is released there is nothing to pay, and nothing is written.

        Raises:
            BudgetExhausted: when the budget does not pay another draw.
            ValueError: for a client outside the terms, or masks that nobody priced.
            OSError: as `Ledger.append`.
        """
        if self._is_free:
            return
        promise = self._promise
        before = self._before
        cohort = members(partitions, self._population)
        is_reserved = before is not None and (
            server_round == self._next <= before.last and attempt == before.attempt
        )
        if disclosed:
            if promise.after_dropout is None:
                raise ValueError("Expected a price of disclosed masks, got none")
            terms = promise.after_dropout(disclosed)
            entry = self._reserving(server_round, server_round, attempt, cohort, terms)
            self._check_spent(self.odometer.after(entry), server_round)
            self.write(entry)
        elif not is_reserved:
            entry = self._entry(server_round, attempt, cohort)
            after = self.odometer.after(entry)
            made = promise.made(after)
            promise.check(made, server_round)
            if promise.after_dropout is not None:
                self._check_spent(after, server_round)
            passed = promise.passed_target(made)
            if passed and not promise.passed_target(promise.made(self.odometer)):
                log.warning("%s", passed)
            self.write(entry)
        self._done.append(encode(cohort))
        self._next = server_round + 1

    def note_origins(self, server_round: int, origins: frozenset[str]) -> None:
        """Write down where the noise of a round came from, when that is new."""
        if origins <= self.noise_origins:
            return
        self.noise_origins |= origins
        if not self._is_free:
            said = {ORIGINS: sorted(self.noise_origins), "server_round": server_round}
            self.write(Entry(said=said))

    @property
    def randomness_source(self) -> str:
        """Whether every source that was used had a key of the operating system: "os" or "seed"."""
        return "os" if self.noise_origins == frozenset({"os"}) else "seed"

    def settle(self) -> None:
        """Write which rounds were run, at an orderly end; whatever else was reserved is free.

        Nothing is written to a ledger that an earlier failure closed: it counts what is reserved.
        """
        if self._before is not None and not (self._ledger and self._ledger.is_broken):
            self.write(Entry(settles=self._settling()))

    def write(self, entry: Entry) -> None:
        """To the ledger, then to the odometer; errors as `Ledger.append`."""
        self.odometer.feed(entry if self._ledger is None else self._ledger.append(entry))
        if entry.reserves is not None or entry.settles is not None:
            self._before = entry.reserves
            self._done = []
            self._written = entry.terms or self._written

    def _settling(self) -> Settles | None:
        """What became of the last reservation."""
        if self._before is None:
            return None
        is_all = all(cohort == self._before.cohort for cohort in self._done)
        named = None if is_all else tuple(self._done)
        return Settles(upto=self._next - 1, cohorts=named)

    def _reserving(
        self, first: int, last: int, attempt: int, cohort: Members, terms: Terms | None = None
    ) -> Entry:
        terms = terms or self._promise.tariff.of(first)
        plan = self._promise.tariff.plan
        return Entry(
            settles=self._settling(),
            terms=None if terms == self._written else terms,
            planned=None if plan == self.odometer.planned else plan,
            reserves=Reserves(first=first, last=last, attempt=attempt, cohort=encode(cohort)),
        )

    def reserving(self, first: int, attempt: int, last: int | None = None) -> Entry:
        """A reservation for everybody, of a whole block or up to ``last``."""
        last = self._end(first, attempt) if last is None else last
        return self._reserving(first, last, attempt, np.arange(self._population))

    def _entry(self, first: int, attempt: int, cohort: Members) -> Entry:
        """A reservation of a round for its cohort, or of a block, while the budget pays it."""
        ends = range(first + 1, self._end(first, attempt) + 1)

        def is_refused(end: int) -> bool:
            after = self.odometer.after(self.reserving(first, attempt, end))
            return not self._promise.pays(self._promise.made(after))

        if paid := bisect_left(ends, x=True, key=is_refused):
            return self.reserving(first, attempt, first + paid)
        return self._reserving(first, first, attempt, cohort)

    def _end(self, first: int, attempt: int) -> int:
        """The last round of a block: the run's, or before other terms or another attempt."""
        terms_of = self._promise.tariff.of
        last = first
        while (
            last < first + self._block - 1
            and last != self._last
            and self.attempts(last + 1) == attempt
            and terms_of(last + 1) == terms_of(first)
        ):
            last += 1
        return last

    def _check_spent(self, after: Odometer, server_round: int) -> None:
        """Refuse what would pass the budget by what was really charged, whoever was silent."""
        budget = self._promise.budget
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

    One line pays for up to ``block`` rounds. A last line that a crash tore is charged as if it had
    reserved a block for everybody. At the end, also after an error, it is written which reserved
    rounds were run.

    Raises:
        ConfigError: as `ledger_key`.
        LedgerDamaged: as `Ledger.recover`.
    """
    odometer = Odometer()
    key = ledger_key()

    def torn() -> Entry:
        """A reservation of the block from the next round on, for everybody."""
        assert resumed_at is not None
        lost = Account(promise, None, odometer.after(), block=block, last_round=last_round)
        return lost.reserving(resumed_at, odometer.attempts(resumed_at))

    if resumed_at is None:
        ledger = Ledger.create(path, header, key=key)
    else:
        ledger = Ledger.recover(path, pays=torn, key=key, anchors=anchors, feed=odometer.feed)
    account = Account(promise, ledger, odometer, block=block, last_round=last_round)
    with ledger:
        try:
            yield account
        finally:
            account.settle()

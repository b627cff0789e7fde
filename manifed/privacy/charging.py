"""The account of a live run: asks the budget for a charge, writes the ledger, then counts.

What the odometer says is therefore what an audit of the file says. A block of rounds costs one
write: it is reserved for everybody, and the cohorts that were drawn are written with the next
reservation, or at `settle`. A crash before that counts everybody in every round of the
block. Without a ledger the same is counted and written nowhere.
"""

import logging
from bisect import bisect_left
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from manifed.fields import Values
from manifed.privacy.ledger import Entry, Ledger, Reserves, Settles, ledger_key
from manifed.privacy.odometer import OFFERED, ORIGINS, Odometer
from manifed.privacy.statement import Promise
from manifed.privacy.tariff import Terms, decode, encode


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

        Where cohorts are drawn and terms differ by round, and where sums are opened, a block has
        one round.
        """
        self._promise = promise
        self._ledger = ledger
        self._last = last_round
        is_alone = promise.tariff.is_by_round and not promise.tariff.lengths
        self._block = 1 if is_alone or promise.realised is not None else block
        self.odometer = Odometer() if odometer is None else odometer
        self._is_free = not any(terms.updates or terms.aggregate for terms in promise.tariff.lines)
        self._population = promise.terms.population
        self._written = self.odometer.terms
        """The terms that the next reservation need not say."""
        self._before: Reserves | None = None
        self._done: list[str] = []
        """Cohorts of the rounds of ``_before`` that were run and not yet written as settled."""
        self._next = 0
        if self._written is None or not promise.tariff.is_by_round:
            self.odometer.declare(promise.terms)

    @property
    def ledger(self) -> Ledger:
        """The ledger that the account writes to."""
        assert self._ledger is not None
        return self._ledger

    def attempts(self, server_round: int) -> int:
        """Returns how often a round was charged, without reservations that are still to be run."""
        found = self.odometer.attempts(server_round)
        is_ahead = self._before is not None and self._next <= server_round <= self._before.last
        return found - 1 if is_ahead else found

    def charge(
        self,
        server_round: int,
        attempt: int,
        partitions: Iterable[int],
        offered: int | None = None,
    ) -> None:
        """Pays for one attempt of a round; when it returns, its reservation is on disk.

        Where sums are opened, that reserves the most that an attempt may cost, and an attempt that
        ends before its sum is opened costs nothing. With ``offered``, of how many clients a sum of
        ``partitions`` could be, it pays for the opening in place of the reservation. Where nothing
        is released there is nothing to pay, and nothing is written.

        Raises:
            BudgetExhausted: when the budget does not pay another draw.
            ValueError: for a client outside the terms.
            OSError: as `Ledger.append`.
        """
        if self._is_free:
            return
        promise = self._promise
        before = self._before
        cohort = encode(partitions, self._population)
        is_reserved = before is not None and (
            server_round == self._next <= before.last and attempt == before.attempt
        )
        if promise.realised is not None and offered is not None:
            members = decode(cohort, self._population)
            terms = promise.realised(server_round, (offered, len(members)))
            planned = promise.tariff.of(server_round).planned_draws  # an outsider pays for all
            terms = terms.model_copy(update={"planned_draws": planned})
            self.write(self.reserving(server_round, server_round, attempt, cohort, terms, offered))
        elif not is_reserved:
            entry = self._entry(server_round, attempt, cohort)
            after = self.odometer.after(entry)
            passed = promise.check(after, server_round)
            if passed and not promise.passed_target(promise.made(self.odometer)):
                logging.getLogger("manifed").warning("%s", passed)
            self.write(entry, after)
        self._next = server_round
        if promise.realised is None or offered is not None:
            self._done.append(cohort)
            self._next += 1

    def note_origins(self, server_round: int, origins: frozenset[str]) -> None:
        """Takes the origins of a round's noise, and writes them when they are new and priced."""
        found = self.odometer.noise_origins | origins
        if found != self.odometer.noise_origins and not self._is_free:
            self.write(Entry(said={ORIGINS: sorted(found), "server_round": server_round}))
        self.odometer.noise_origins = found

    @property
    def randomness_source(self) -> str:
        """Returns "os" if the operating system keyed every source that was used, else "seed"."""
        return "os" if self.odometer.noise_origins == frozenset({"os"}) else "seed"

    def settle(self) -> None:
        """Writes which rounds were run, at an orderly end; other reserved rounds become free.

        Nothing is written to a ledger that an earlier failure closed: it counts what is reserved.
        """
        if self._before is not None and not (self._ledger and self._ledger.is_broken):
            self.write(Entry(settles=self._settling()))

    def write(self, entry: Entry, after: Odometer | None = None) -> None:
        """Appends an entry to the ledger, then to the odometer; errors as `Ledger.append`.

        ``after`` is the odometer that has taken the entry, where its price was asked.
        """
        if self._ledger is not None:
            entry = self._ledger.append(entry)
        self.odometer = after or self.odometer.after(entry)
        if entry.reserves is not None or entry.settles is not None:
            self._before = entry.reserves
            self._done = []
            self._written = entry.terms or self._written

    def _settling(self) -> Settles | None:
        """What became of the last reservation."""
        if self._before is None:
            return None
        named = None if {*self._done} <= {self._before.cohort} else tuple(self._done)
        return Settles(upto=self._next - 1, cohorts=named)

    def reserving(
        self,
        first: int,
        last: int,
        attempt: int,
        cohort: str | None = None,
        terms: Terms | None = None,
        offered: int = 0,
    ) -> Entry:
        """Makes the reservation of these rounds for a cohort (None: for everybody)."""
        terms = terms or self._promise.tariff.of(first)
        plan = self._promise.tariff.plan
        cohort = encode(range(self._population)) if cohort is None else cohort
        return Entry(
            settles=self._settling(),
            terms=None if terms == self._written else terms,
            planned=None if plan == self.odometer.planned else plan,
            reserves=Reserves(first=first, last=last, attempt=attempt, cohort=cohort),
            said={} if self._promise.realised is None else {OFFERED: offered},
        )

    def _entry(self, first: int, attempt: int, cohort: str) -> Entry:
        """A reservation of a round for its cohort, or of a block, while the budget pays it."""
        ends = range(first + 1, self.end(first, attempt) + 1)

        def is_refused(end: int) -> bool:
            after = self.odometer.after(self.reserving(first, end, attempt))
            return not self._promise.pays(self._promise.made(after))

        paid = bisect_left(ends, x=True, key=is_refused)
        return self.reserving(first, first + paid, attempt, None if paid else cohort)

    def end(self, first: int, attempt: int) -> int:
        """Returns a block's last round, before other terms, another attempt or the run's end."""
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


@contextmanager
def opened(
    path: Path,
    promise: Promise,
    *,
    last_round: int,
    header: Values,
    block: int = 1,
    resumed_at: int | None = None,
) -> Generator[Account, None, None]:
    """Opens the account of a run; on a resumed run everything in its ledger counts as spent.

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
        attempt = odometer.attempts(resumed_at)
        return lost.reserving(resumed_at, lost.end(resumed_at, attempt), attempt)

    if resumed_at is None:
        ledger = Ledger.create(path, header, key=key)
    else:
        ledger = Ledger.recover(path, pays=torn, key=key, feed=odometer.feed)
    account = Account(promise, ledger, odometer, block=block, last_round=last_round)
    with ledger:
        try:
            yield account
        finally:
            account.settle()

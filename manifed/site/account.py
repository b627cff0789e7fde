"""What every answer about one data set was charged: over all runs, on disk before the answer.

The data set is named by its folder. The ledger in it has the format of a run's (docs/ledger.md),
with one client, number 0: whoever's data these are. Each line says too which run, config, round,
attempt and phase it pays for, so that no address is answered twice, also after a restart.

The price is that of the adversary who sees every answer: no cohort draw amplifies it, because the
server knows who takes part. Nothing here depends on a record, so a refusal says nothing of any.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from manifed.privacy.account import ledger_key
from manifed.privacy.adversaries import SERVER
from manifed.privacy.chain import HEADER, RECOVERED, Entry
from manifed.privacy.charges import RESERVED, ClientReleases, Releases, Reservation, Terms
from manifed.privacy.composition import NoValidBound
from manifed.privacy.label import label_of
from manifed.privacy.ledger import Head, Ledger, LedgerDamaged
from manifed.privacy.odometer import NOTE, PLACE, Odometer

log = logging.getLogger("manifed")

LEDGER: Final = "ledger.jsonl"
LIMITS: Final = "limits"
NOTHING: Final = Terms(population=1, updates=(ClientReleases(partitions=(0,), releases=()),))
NOBODY: Final = Reservation(0, 0, 0, np.zeros(0, dtype=np.int64), terms=NOTHING)
"""The charge of a torn line: it was never on disk, so what it was for was never computed."""
MOST_ATTEMPTS: Final = 1 << 16
"""As many as the noise has addresses for."""
Position = tuple[int, int, int]
"""Round, attempt and phase; answers only go forward."""


class Refused(RuntimeError):
    """A site does not answer; the text depends on no record."""


@dataclass(frozen=True)
class Limits:
    """What all answers together may cost: epsilon at delta."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise ValueError(
                f"Expected 0 < epsilon < inf and 0 < delta < 1, got {self.epsilon} and {self.delta}"
            )


@dataclass(frozen=True)
class Place:
    """Which answer: of a run, config, round, attempt and phase."""

    run: str
    config_sha256: str
    partition: int
    server_round: int
    attempt: int
    phase: int
    """The number of the exchange in its round."""
    seed: int | None = None
    """Of seeded noise, which is a function of seed, round, attempt and phase; None: a fresh key."""

    @property
    def series(self) -> str:
        """What goes forward only: a run, or, across runs and configs, one seed."""
        return f"run {self.run} {self.config_sha256}" if self.seed is None else f"seed {self.seed}"

    @property
    def position(self) -> Position:
        """Where in its series."""
        return self.server_round, self.attempt, self.phase


class SiteAccount:
    """The ledger of one data set, open and locked; use it as a context manager."""

    def __init__(self, ledger: Ledger, limits: Limits, book: "_Read") -> None:
        """Use `open`."""
        self._ledger, self.limits = ledger, limits
        self._odometer, self._last = book.odometer, book.last
        if book.limits != asdict(limits):
            ledger.append(NOTE, {LIMITS: asdict(limits)})

    @classmethod
    def open(cls, folder: Path, limits: Limits, anchors: Iterable[Head] = ()) -> "SiteAccount":
        """The account of the data set in ``folder``, which may be new.

        Raises:
            LedgerDamaged: as `Ledger.recover`; `LedgerLocked`: another process has it.
            ConfigError, OSError: the ledger's key, or the folder, cannot be read.
        """
        path, key, book = folder / LEDGER, ledger_key(), _Read()
        if path.exists():
            ledger = Ledger.recover(
                path, charge=NOBODY.body, key=key, anchors=anchors, feed=book.feed
            )
        else:
            ledger = Ledger.create(path, {"holder": "site"}, key=key)
        return cls(ledger, limits, book)

    def note(self, what: str) -> None:
        """Write a line that costs nothing; errors as `Ledger.append`."""
        self._ledger.append(NOTE, {"said": what})

    @property
    def spent(self) -> float:
        """Epsilon of all that was charged, at the site's delta."""
        return self._odometer.epsilon(SERVER, self.limits.delta)

    @property
    def label(self) -> str:
        """The word before what was spent (`manifed.privacy.label`), by the seeds of answers."""
        origins, is_charged = self._odometer.noise_origins, self._odometer.rounds_counted > 0
        return label_of("os", origins, is_charged=is_charged)

    @property
    def head(self) -> Head:
        """The last line on disk, an anchor to keep elsewhere."""
        return self._ledger.head

    def charge(self, place: Place, releases: Releases, *, is_first: bool) -> None:
        """Pay for one answer; when it returns, its line is on disk.

        ``releases`` are those of a whole round, paid with the first of its phases.

        Raises:
            Refused: answered before, out of order, beyond the limits, or a disk that refuses;
                nothing was charged.
        """
        self._check_order(place, is_first=is_first)
        said = {PLACE: asdict(place)}
        if not (is_first and releases):
            self._append(NOTE, said)
        else:
            reservation = self._reservation(place, releases)
            self._check_price(reservation)
            self._append(RESERVED, {**reservation.body(), **said})
            self._odometer.reserve(reservation)
            self._odometer.noise_origins |= {"os" if place.seed is None else "seed"}
        self._last[place.series] = place.position

    def _check_order(self, place: Place, *, is_first: bool) -> None:
        if place.attempt >= MOST_ATTEMPTS:
            raise Refused(f"attempt: expected less than {MOST_ATTEMPTS}, got {place.attempt}")
        last = self._last.get(place.series)
        if last is not None and place.position <= last:
            raise Refused(
                f"round, attempt, phase {place.position} of this "
                f"{'run' if place.seed is None else 'seed'} come after {last}, which was answered "
                "or charged; nothing is answered twice, and order goes forward only"
            )
        follows = last is not None and place.position == (*last[:2], last[2] + 1)
        if not is_first and not follows:
            raise Refused(
                f"phase {place.phase} of round {place.server_round}, attempt {place.attempt}: "
                "expected the phases before it first"
            )

    def _reservation(self, place: Place, releases: Releases) -> Reservation:
        terms = Terms(population=1, updates=(ClientReleases(partitions=(0,), releases=releases),))
        own = None if self._odometer.terms == terms else terms
        now, attempt = place.server_round, place.attempt
        return Reservation(now, now, attempt, np.zeros(1, dtype=np.int64), terms=own)

    def _check_price(self, reservation: Reservation) -> None:
        limits = self.limits
        try:
            after = self._odometer.after(reservation).epsilon(SERVER, limits.delta)
        except NoValidBound as refusal:
            raise Refused(f"nothing prices this with what was answered before: {refusal}") from None
        if not after <= limits.epsilon:
            raise Refused(
                f"one answer more would cost epsilon {after:.6g} at delta {limits.delta:g} over "
                f"all runs, this site's limit is {limits.epsilon:g}"
            )

    def _append(self, kind: str, body: Mapping[str, Any]) -> None:
        try:
            self._ledger.append(kind, body)
        except (OSError, LedgerDamaged) as error:
            log.error("The ledger takes nothing more until a restart: %s", error)
            raise Refused("this site's ledger cannot be written") from None

    def __enter__(self) -> "SiteAccount":
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.close()


class _Read:
    """What a ledger says, entry by entry."""

    def __init__(self) -> None:
        self.odometer = Odometer()
        self.last: dict[str, Position] = {}
        self.limits: object = None

    def feed(self, entry: Entry) -> None:
        """Take the next entry; errors as `Odometer.feed`."""
        self.odometer.feed(entry)
        if entry.kind not in (HEADER, RECOVERED) and PLACE in entry.body:
            place = Place(**entry.body[PLACE])
            self.last[place.series] = place.position
        if entry.kind == NOTE and LIMITS in entry.body:
            self.limits = entry.body[LIMITS]

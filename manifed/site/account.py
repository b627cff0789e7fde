"""The account of one data set: every answer, over all runs, is charged on disk before it leaves.

The data set is named by its folder. The ledger in it has the format of a run's (docs/ledger.md),
with one client, number 0: whoever's data these are. Each line says too which run, config, round,
attempt and phase it pays for, so that no address is answered twice, also after a restart.

The price is that of the adversary who sees every answer: no cohort draw amplifies it, because the
server knows who takes part. Of a secure sum it is the floor, against nodes that collude with the
server. Nothing here depends on a record, so a refusal says nothing of any.

An auditor compares it with the server's ledger (`compared`). The server charges a client before it
sends a message; the site charges itself before it answers one. So every answer of the site must
stand in the server's ledger, at the same price. The other way round a message may have been lost,
or refused.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from manifed.errors import ConfigError
from manifed.fields import Document
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import COALITION, Releases, label_of
from manifed.privacy.ledger import Entry, Head, Ledger, LedgerDamaged, Reserves, ledger_key
from manifed.privacy.odometer import LIMITS, PLACE, Odometer
from manifed.privacy.tariff import ClientReleases, Terms, decode

LEDGER = "ledger.jsonl"


class Refused(RuntimeError):
    """Error: a site does not answer; the text depends on no record."""


@dataclass(frozen=True)
class Limits:
    """A site's limit on the cost of all answers together: epsilon at delta."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise ConfigError(
                "--max-epsilon, --delta: expected 0 < epsilon < inf and 0 < delta < 1, got "
                f"{self.epsilon} and {self.delta}"
            )


@dataclass(frozen=True)
class Place:
    """The place of an answer: its run, config, round, attempt and phase."""

    run: str
    config_sha256: str
    partition: int
    server_round: int
    attempt: int
    phase: int
    """The number of the exchange in its round."""
    seed: int | None = None
    """The seed of seeded noise, a function of seed, round, attempt and phase; None: a fresh key."""

    @property
    def series(self) -> str:
        """The key of a series that only goes forward: a run, or a seed across runs and configs."""
        return f"run {self.run} {self.config_sha256}" if self.seed is None else f"seed {self.seed}"

    @property
    def position(self) -> tuple[int, int, int]:
        """The position in the series: round, attempt and phase."""
        return self.server_round, self.attempt, self.phase


class SiteAccount:
    """The ledger of one data set, open and locked; a context manager."""

    def __init__(self, folder: Path, limits: Limits, anchors: Iterable[Head] = ()) -> None:
        """Open the ledger of the data set in ``folder``, which may be new.

        Raises:
            LedgerDamaged: as `Ledger.recover`, also where another process has it.
            ConfigError, OSError: the ledger's key, or the folder, cannot be read.
        """
        self.limits, self._odometer = limits, Odometer()
        self._last: dict[str, tuple[int, int, int]] = {}
        """The newest position of each series."""
        path = folder / LEDGER
        key = ledger_key()
        said = Document()

        def feed(entry: Entry) -> None:
            self._odometer.feed(entry)
            said.update(entry.said)
            if PLACE in entry.said:
                place = Place(**entry.said[PLACE])
                self._last[place.series] = place.position

        if path.exists():  # what a torn line was for was never computed, and costs nothing
            self._ledger = Ledger.recover(path, key=key, anchors=anchors, feed=feed)
        else:
            self._ledger = Ledger.create(path, {"holder": "site"}, key=key)
        if said.get(LIMITS) != asdict(limits):
            self._ledger.append(Entry(said={LIMITS: asdict(limits)}))

    def note(self, what: str) -> None:
        """Writes a line that costs nothing; errors as `Ledger.append`."""
        self._ledger.append(Entry(said={"note": what}))

    @property
    def spent(self) -> float:
        """Returns epsilon of all that was charged, at the site's delta."""
        return self._odometer.epsilon(COALITION, self.limits.delta)

    @property
    def label(self) -> str:
        """The label before what was spent, by the seeds of the answers."""
        return label_of(
            "os", self._odometer.noise_origins, is_charged=self._odometer.rounds_counted > 0
        )

    @property
    def head(self) -> Head:
        """The last line on disk, an anchor to keep elsewhere."""
        return self._ledger.head

    def charge(self, place: Place, releases: Releases) -> None:
        """Pays for one answer; when it returns, its line is on disk.

        ``releases`` are those of a whole round, paid with one of its phases; () with the others.

        Raises:
            Refused: answered before, out of order, beyond the limits, or a disk that refuses;
                nothing was charged.
        """
        if not 0 <= place.attempt < 1 << 16:  # as many as the noise has addresses for
            raise Refused(f"attempt: expected 0 to {(1 << 16) - 1}, got {place.attempt}")
        last = self._last.get(place.series)
        if last is not None and place.position <= last:
            raise Refused(
                f"expected a (round, attempt, phase) of this "
                f"{'run' if place.seed is None else 'seed'} after {last}, got {place.position}; "
                "nothing is answered twice"
            )
        follows = last is not None and place.position == (*last[:2], last[2] + 1)
        if place.phase and not follows:
            raise Refused(
                f"phase {place.phase} of round {place.server_round}, attempt {place.attempt}: "
                "expected the earlier phases of the round first"
            )
        entry = Entry(said={PLACE: asdict(place)})
        if releases:
            terms = Terms(
                population=1, updates=(ClientReleases(partitions=(0,), releases=releases),)
            )
            now = place.server_round
            entry = Entry(
                said=entry.said,
                terms=None if self._odometer.terms == terms else terms,
                reserves=Reserves(first=now, last=now, attempt=place.attempt, cohort="0"),
            )
            try:
                after = self._odometer.after(entry).epsilon(COALITION, self.limits.delta)
            except NoValidBound as refusal:
                raise Refused(
                    f"this answer cannot be priced with the earlier ones: {refusal}"
                ) from None
            if not after <= self.limits.epsilon:
                raise Refused(
                    f"another answer would bring epsilon to {after:.6g} at delta "
                    f"{self.limits.delta:g} over all runs, this site's limit is "
                    f"{self.limits.epsilon:g}"
                )
        try:
            self._odometer.feed(self._ledger.append(entry))
        except (OSError, LedgerDamaged) as error:
            logging.getLogger("manifed").error(
                "The ledger takes nothing more until a restart: %s", error
            )
            raise Refused("this site's ledger cannot be written") from None
        self._last[place.series] = place.position

    def __enter__(self) -> "SiteAccount":
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.close()


# -- audit -----------------------------------------------------------------------------------
_Round = tuple[int, int]
"""A round and its attempt."""


class _Agreement(NamedTuple):
    """What two ledgers say about the rounds of one client."""

    partition: int
    both: list[_Round]
    """Charged alike by both."""
    differing: list[_Round]
    """Charged by both, for other releases."""
    only_site: list[_Round]
    """Answered, and not in the server's ledger."""
    only_server: list[_Round]
    """Asked for, and not answered: lost, refused, or the node was absent."""

    @property
    def is_whole(self) -> bool:
        """Whether the ledgers agree on every round that both saw."""
        return not (self.differing or self.only_site)


def compared(server: Path, site: Path, run: str | None = None) -> _Agreement:
    """Compares a run's ledger with a site's on the rounds that both saw.

    ``run`` is what the SuperLink called the run, where the site answered several of one config.

    Raises:
        LedgerDamaged: as `Ledger.verify`.
        ConfigError: the site answered nothing of this run's config, or as several clients.
    """
    entries = _entries(server)
    configs = {entry.said.get("config_sha256") for entry, _ in entries}
    answered = dict[_Round, list[Releases]]()
    partitions = set[int]()
    for entry, terms in _entries(site):
        if entry.reserves is None or PLACE not in entry.said:
            continue
        place = Place(**entry.said[PLACE])
        if place.config_sha256 in configs and run in (None, place.run):
            partitions.add(place.partition)
            answered.setdefault((place.server_round, place.attempt), []).extend(_releases(terms, 0))
    if len(partitions) != 1:
        raise ConfigError(
            f"{site}: expected answers as one client of the run of {server}, got "
            f"{len(partitions)} clients"
        )
    (partition,) = partitions
    asked = dict[_Round, Releases]()
    for entry, terms in entries:
        paid = entry.reserves
        if paid is None or terms is None or partition not in decode(paid.cohort, terms.population):
            continue
        for releases in _releases(terms, partition):
            for now in range(paid.first, paid.last + 1):  # of a sum the floor: what it cost follows
                asked.setdefault((now, paid.attempt), releases)
    alike = {now for now, said in answered.items() if said == [asked.get(now)]}
    mine = set(answered)
    theirs = set(asked)
    return _Agreement(
        partition,
        sorted(alike),
        sorted(mine & theirs - alike),
        sorted(mine - theirs),
        sorted(theirs - mine),
    )


def _entries(path: Path) -> list[tuple[Entry, Terms | None]]:
    """All entries of a ledger, each with the terms that are in force with it."""
    found = list[tuple[Entry, Terms | None]]()

    def feed(entry: Entry) -> None:
        found.append((entry, entry.terms or (found[-1][1] if found else None)))

    Ledger.verify(path, feed=feed)
    return found


def _releases(terms: Terms | None, client: int) -> Iterator[Releases]:
    updates = () if terms is None else terms.updates
    return (one.releases for one in updates if client in one.partitions)

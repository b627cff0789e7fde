"""What an auditor reads in a site's ledger, and whether it agrees with the server's.

The server charges a client before it sends a message; the site charges itself before it answers
one. So every answer of the site must stand in the server's ledger, at the same price. The other way
round a message may have been lost, or refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manifed.errors import ConfigError
from manifed.privacy.chain import RECOVERED, Entry
from manifed.privacy.charges import AMENDED, RESERVED, Releases, Reservation, Terms
from manifed.privacy.ledger import Ledger
from manifed.privacy.odometer import NOTE, PLACE
from manifed.site.account import LIMITS, Limits, Place

Round = tuple[int, int]
"""A round and its attempt."""


@dataclass(frozen=True)
class Agreement:
    """What two ledgers say about the rounds of one client."""

    partition: int
    both: tuple[Round, ...]
    """Charged alike by both."""
    differing: tuple[Round, ...]
    """Charged by both, for other releases."""
    only_site: tuple[Round, ...]
    """Answered, and not in the server's ledger."""
    only_server: tuple[Round, ...]
    """Asked for, and not answered: lost, refused, or the node was absent."""

    @property
    def is_whole(self) -> bool:
        """Whether the ledgers agree on every round that both saw."""
        return not (self.differing or self.only_site)


def limits_in(path: Path) -> Limits | None:
    """The limits that a site's ledger says were last in force; None in a run's.

    Raises:
        LedgerDamaged: as `Ledger.verify`.
    """
    found: list[Limits] = []

    def feed(entry: Entry) -> None:
        if entry.kind == NOTE and LIMITS in entry.body:
            found[:] = [Limits(**entry.body[LIMITS])]

    Ledger.verify(path, feed=feed)
    return found[-1] if found else None


def compared(server: Path, site: Path, run: str | None = None) -> Agreement:
    """Whether a run's ledger and a site's agree on the rounds that both saw.

    ``run`` is what the SuperLink called the run, where the site answered several of one config.

    Raises:
        LedgerDamaged: as `Ledger.verify`.
        ConfigError: the site answered nothing of this run's config, or as several clients.
    """
    theirs, own = _Run(), _Answers(run)
    Ledger.verify(server, feed=theirs.feed)
    Ledger.verify(site, feed=own.feed)
    mine = {place: paid for place, paid in own.found if place.config_sha256 in theirs.configs}
    partitions = {place.partition for place in mine}
    if len(partitions) != 1:
        raise ConfigError(
            f"{site}: expected answers as one client of the run of {server}, got "
            f"{len(partitions)} clients"
        )
    (partition,) = partitions
    asked = theirs.of(partition)
    paid: dict[Round, list[Releases]] = {}
    for place, releases in mine.items():
        paid.setdefault((place.server_round, place.attempt), []).append(releases)
    alike = {now for now, said in paid.items() if said == [asked.get(now)]}
    return Agreement(
        partition,
        both=tuple(sorted(alike)),
        differing=tuple(sorted(set(paid) & set(asked) - alike)),
        only_site=tuple(sorted(set(paid) - set(asked))),
        only_server=tuple(sorted(set(asked) - set(paid))),
    )


def _reserved(entry: Entry, before: Terms | None) -> tuple[Reservation, Terms] | None:
    """What an entry reserves, and the terms of it; None for one that reserves nothing."""
    body: Any = entry.body["charge"] if entry.kind == RECOVERED else entry.body
    if entry.kind not in (RESERVED, RECOVERED) or "rounds" not in body:
        return None
    reservation = Reservation.of_body(body, before)
    terms = reservation.terms or before
    assert terms is not None
    return reservation, terms


@dataclass
class _Run:
    """A server's ledger, entry by entry: which rounds may have asked whom for what."""

    configs: set[str] = field(default_factory=set[str])
    _terms: Terms | None = None
    _asked: list[tuple[Reservation, Terms]] = field(default_factory=list[tuple[Reservation, Terms]])

    def feed(self, entry: Entry) -> None:
        """Take the next entry."""
        if entry.kind == AMENDED or "config_sha256" in entry.body:
            self.configs.add(str(entry.body["config_sha256"]))
        found = _reserved(entry, self._terms)
        if found is not None:
            self._asked.append(found)
            self._terms = found[1]

    def of(self, partition: int) -> dict[Round, Releases]:
        """What a client was asked to release, by round and attempt."""
        return {
            (now, reservation.attempt): releases
            for reservation, terms in self._asked
            if partition in reservation.cohort
            for releases in _releases(terms, partition)
            for now in range(reservation.first, reservation.last + 1)
        }


@dataclass
class _Answers:
    """A site's ledger, entry by entry: which answers were charged what."""

    run: str | None
    found: list[tuple[Place, Releases]] = field(default_factory=list[tuple[Place, Releases]])
    _terms: Terms | None = None

    def feed(self, entry: Entry) -> None:
        """Take the next entry."""
        found = _reserved(entry, self._terms)
        if found is None:
            return
        self._terms = found[1]
        if PLACE in entry.body:
            place = Place(**entry.body[PLACE])
            if self.run in (None, place.run):
                self.found += [(place, releases) for releases in _releases(self._terms, 0)]


def _releases(terms: Terms, client: int) -> Iterator[Releases]:
    return (one.releases for one in terms.updates if client in one.partitions)

"""The odometer: turns ledger entries into epsilon for each adversary, in live runs and audits.

Feed it every entry of a ledger in order. What *counts* is all that is reserved and not proved
unused. A round costs time and memory in the number of clients, whatever the number of rounds.

Against an adversary who sees cohorts a client pays for each attempt whose cohort it may have been
in; against one who does not, every client pays for every cohort draw that was made or planned, as
a coin (`manifed.privacy.events`).
Guarantee: every epsilon is an upper bound.
"""

from collections import Counter
from collections.abc import Iterator
from copy import copy
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manifed.fields import Document
from manifed.privacy.composition import compose
from manifed.privacy.epsilon_bounds import Coins, external_epsilon
from manifed.privacy.events import ADVERSARIES, OF_MASKS, Adversary, Releases, seen_by, unsampled
from manifed.privacy.ledger import Entry, Reserves, Settles
from manifed.privacy.tariff import Terms, decode

ORIGINS: Final = "noise_origins"
"""What an entry says of where the noise of a run came from."""
OFFERED: Final = "offered"
"""What an entry for a sum says: how many clients could be in it; 0 before that is known."""
PLACE: Final = "place"
"""What an entry of a site's ledger says of the answer it pays for (manifed/site/account.py)."""
LIMITS: Final = "limits"
"""What an entry of a site's ledger says of the limits that are in force from here on."""
_Numbers = NDArray[np.int64]


class _Line(NamedTuple):
    """Terms that were met, and what counts under them."""

    terms: Terms
    update_of: _Numbers
    """Every client's update as an index into `Odometer._updates`."""
    draws: int
    """How many cohorts were drawn."""
    served: _Numbers
    """How often each client may have been in one."""


class Odometer:
    """Adds up what ledger entries charge, and prices it for each adversary."""

    def __init__(self) -> None:
        """Makes an odometer with nothing spent."""
        # No value is ever changed in place: `after` copies the references.
        self._lines: tuple[_Line, ...] = ()
        self._numbers: dict[Terms, int] = {}
        self._updates: tuple[Releases, ...] = ((),)
        self._open: tuple[Reserves, _Numbers, int] | None = None
        """The reservation that may be settled, its cohort and its line."""
        self._now: int | None = None
        self._ranges: tuple[tuple[int, int, int], ...] = ()
        """(first round, last round, attempts) that were charged and are settled or lost."""
        self._tried = 0, 0
        """The last round of a sum, and its attempts, which may have opened and cost nothing."""
        self.planned: tuple[Terms, ...] = ()
        """Planned terms of the newest entry with them; () where all draws have one terms."""
        self.noise_origins: frozenset[str] = frozenset()
        """Where the keys of all noise came from so far, as the sources said (random_numbers.py)."""

    # -- feeding -----------------------------------------------------------------------------
    def feed(self, entry: Entry) -> None:
        """Takes the next entry of a ledger.

        Raises:
            ValueError: for an entry that cannot be counted: clients outside the terms, no terms, or
                a settlement of what is not open.
        """
        if entry.settles is not None:
            self._settle(entry.settles)
        if entry.terms is not None:
            self.declare(entry.terms)
        if entry.planned is not None:
            for terms in entry.planned:
                self._number(terms)
            self.planned = entry.planned
        if entry.reserves is not None:
            self._reserve(entry.reserves)
            if OFFERED in entry.said:
                self._tried = entry.reserves.first, entry.reserves.attempt + 1
        self.noise_origins |= set(map(str, entry.said.get(ORIGINS, ())))
        if PLACE in entry.said:
            self.noise_origins |= {"os" if entry.said[PLACE].get("seed") is None else "seed"}

    def after(self, *entries: Entry) -> "Odometer":
        """Returns an odometer that has taken the entries too; this one does not change."""
        other = copy(self)
        for entry in entries:
            other.feed(entry)
        return other

    def declare(self, terms: Terms) -> None:
        """Sets the terms of the next entries that state no terms."""
        self._now = self._number(terms)

    def _number(self, terms: Terms) -> int:
        """The line of these terms, which may be new."""
        if (found := self._numbers.get(terms)) is not None:
            return found
        if self._lines and (population := self._lines[0].terms.population) != terms.population:
            raise ValueError(f"Expected terms of {population} clients, got {terms.population}")
        update_of = np.zeros(terms.population, dtype=np.int64)
        updates = {update: i for i, update in enumerate(self._updates)}
        for one in terms.updates:
            update_of[list(one.partitions)] = updates.setdefault(one.releases, len(updates))
        self._updates = tuple(updates)
        self._numbers = dict(self._numbers)
        self._numbers[terms] = len(self._lines)
        self._lines = (*self._lines, _Line(terms, update_of, 0, np.zeros_like(update_of)))
        return len(self._lines) - 1

    def _add(self, line: int, cohort: _Numbers, times: int) -> None:
        """Count ``times`` draws of this cohort under a line; negative takes them back."""
        was = self._lines[line]
        served = was.served.copy()
        served[cohort] += times
        more = was._replace(draws=was.draws + times, served=served)
        self._lines = (*self._lines[:line], more, *self._lines[line + 1 :])

    def _reserve(self, reserves: Reserves) -> None:
        """Count a reservation whole, and for ever what is still open."""
        if self._now is None:
            raise ValueError("Expected terms before or in the first reservation, got none")
        first, last = reserves.first, reserves.last
        if last < first:
            raise ValueError(f"Expected rounds first <= last, got {first} and {last}")
        cohort = decode(reserves.cohort, self._lines[self._now].terms.population)
        self._ranges = self.ranges
        self._open = (reserves, cohort, self._now)
        self._add(self._now, cohort, last - first + 1)

    def _settle(self, settles: Settles) -> None:
        """Replace what was reserved by what was run."""
        if self._open is None:
            raise ValueError("Expected an open reservation to settle, got none")
        (was, reserved, line), upto = self._open, settles.upto
        rounds = upto - was.first + 1
        left = was.last - upto
        if not was.first - 1 <= upto <= was.last:
            raise ValueError(
                f"Expected rounds settled up to {was.first - 1} to {was.last}, got {upto}"
            )
        if settles.cohorts is not None:
            population = self._lines[line].terms.population
            named = [decode(cohort, population) for cohort in settles.cohorts]
            if len(named) != rounds:
                raise ValueError(f"Expected {rounds} cohorts, one a round, got {len(named)}")
            for cohort in named:
                if not np.isin(cohort, reserved, assume_unique=True).all():
                    raise ValueError("Expected a cohort of reserved clients, got others")
                self._add(line, cohort, 1)
            self._add(line, reserved, -rounds)
        self._ranges = _joined(self._ranges, was.first, upto, was.attempt)
        self._open = None
        if settles.is_open and left:
            self._open = was.model_copy(update={"first": upto + 1}), reserved, line
        elif left:
            self._add(line, reserved, -left)

    # -- what was charged --------------------------------------------------------------------
    @property
    def terms(self) -> Terms | None:
        """The terms of the next entry, if it states no terms."""
        return None if self._now is None else self._lines[self._now].terms

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """The charged (first round, last round, attempts); where ranges meet the most count."""
        if self._open is None:
            return self._ranges
        was = self._open[0]
        return _joined(self._ranges, was.first, was.last, was.attempt)

    @property
    def covered(self) -> int:
        """The last round of 1, 2, ... such that every round up to it was charged."""
        covered = 0
        for first, last, _ in self.ranges:
            covered = max(covered, last) if first <= covered + 1 else covered
        return covered

    @property
    def rounds_counted(self) -> int:
        """The number of attempts of rounds that count."""
        return sum([line.draws for line in self._lines])

    @property
    def participations(self) -> int:
        """The counted participations of the client that has most of them."""
        return int(self.participations_by_client().max(initial=0))

    def participations_by_client(self) -> _Numbers:
        """The counted participations of every client."""
        served = (line.served for line in self._lines if line.draws)
        return np.asarray(sum(served, start=np.zeros(1, dtype=np.int64)))

    def attempts(self, server_round: int) -> int:
        """Returns how often a round was charged, or reserved for a sum that was not opened."""
        tried, times = self._tried
        charged = [n for low, high, n in self.ranges if low <= server_round <= high]
        return max([*charged, times * (server_round == tried)])

    def of_everybody(self) -> "Odometer":
        """Makes an odometer of these attempts as if every client had been in each."""
        other = copy(self)
        everybody = (x._replace(served=np.full_like(x.served, x.draws)) for x in self._lines)
        other._lines = tuple(everybody)
        return other

    # -- prices ------------------------------------------------------------------------------
    def spent(self, delta: float) -> list[Document]:
        """Returns epsilon at ``delta`` for each adversary who learns from these charges.

        Of all adversaries of a star, and those of masks where masked messages are charged. Declared
        terms that nothing was charged under yet count at epsilon 0.

        Raises:
            NoValidBound: as `epsilon_bounds`.
        """
        terms = [x.terms for i, x in enumerate(self._lines) if x.draws or i == self._now]
        updates = dict.fromkeys(one.releases for each in terms for one in each.updates)
        said = {
            "updates": [release for update in updates for release in update],
            "aggregate": [release for each in terms for release in each.aggregate],
        }
        is_masked = any(release.is_masked for release in said["updates"])
        found = list[Document]()
        for one in (*ADVERSARIES, *(OF_MASKS[1:] if is_masked else ())):
            if releases := said[one.releases]:
                compose(releases)  # refuses units or relations that are mixed
                found.append(
                    {
                        "name": one.name,
                        "text": one.text,
                        "epsilon": self.epsilon(one, delta),
                        "delta": delta,
                        "unit": releases[0].unit,
                        "neighboring_relation": releases[0].neighboring_relation,
                    }
                )
        return found

    def epsilon(self, adversary: Adversary, delta: float) -> float:
        """Returns epsilon against one adversary, for the worst client; errors as `spent`."""
        return max((external_epsilon(one, delta) for one in self.coins(adversary)), default=0.0)

    def coins(self, adversary: Adversary) -> set[Coins]:
        """Returns what each kind of client released to the adversary, and with which coins."""
        if adversary.releases == "aggregate":
            return set(self._of_aggregates(adversary))
        return set((self._of_seen if adversary.sees_cohorts else self._of_coins)(adversary))

    def _of_aggregates(self, adversary: Adversary) -> Iterator[Coins]:
        """Of each kind of client the aggregates that it may have been in, or all of them."""
        used = [line for line in self._lines if line.draws and line.terms.aggregate]
        if not adversary.sees_cohorts:
            yield tuple((line.terms.aggregate, 1.0, line.draws) for line in used)
        elif used:
            for column in np.unique(np.array([line.served for line in used]), axis=1).T:
                times = zip(used, column.tolist(), strict=True)
                yield tuple((unsampled(line.terms.aggregate), 1.0, n) for line, n in times)

    def _of_seen(self, adversary: Adversary) -> Iterator[Coins]:
        """How often a client may have been asked for each update, if no other was asked more."""
        if not self._lines:
            return
        rows = [seen_by(adversary.knows, update) for update in self._updates]
        clients = np.arange(self._lines[0].terms.population)
        table = np.zeros((len(rows), len(clients)), dtype=np.int64)
        for line in self._lines:
            np.add.at(table, (line.update_of, clients), line.served)
        if ((table > 0).sum(axis=0) <= 1).all():  # each was asked for one update alone
            kept = np.diag(table.max(axis=1))
        else:
            columns = np.unique(table, axis=1).T
            kept = table[:, :0].T
            for column in columns[np.argsort(-columns.sum(axis=1), kind="stable")]:
                if not (kept >= column).all(axis=1).any():
                    kept = np.vstack((kept, column))
        for column in kept.tolist():
            yield tuple((row, 1.0, n) for row, n in zip(rows, column, strict=True) if n)

    def _of_coins(self, adversary: Adversary) -> Iterator[Coins]:
        """The updates of each kind of client, with the largest probability of those alike.

        Also every planned draw that was not made, which an outsider must reckon with.
        """
        draws = Counter({i: line.draws for i, line in enumerate(self._lines)})
        terms = self.terms
        for i, one in ((self._number(one), one) for one in self.planned):
            draws[i] = max(draws[i], one.planned_draws)
        if not self.planned and terms is not None and self._now is not None and terms.is_drawn:
            draws[self._now] += max(0, terms.planned_draws - draws.total())
        used = [(self._lines[i], times) for i, times in draws.items() if times]
        if not used:
            return
        table = np.stack([line.update_of for line, _ in used])
        kinds, kind_of = np.unique(table, axis=1, return_inverse=True)
        largest = np.zeros(kinds.shape)
        for row, (line, _) in zip(largest, used, strict=True):
            rates = line.terms.probabilities or line.terms.participation_probability
            np.maximum.at(row, kind_of.ravel(), rates)
        for updates, column in zip(kinds.T, largest.T, strict=True):
            counts = Counter[tuple[Releases, float]]()
            for (_, times), update, rate in zip(used, updates, column.tolist(), strict=True):
                counts[seen_by(adversary.knows, self._updates[update]), rate] += times
            yield tuple((update, rate, n) for (update, rate), n in counts.items())


def _joined(
    ranges: tuple[tuple[int, int, int], ...], first: int, last: int, attempt: int
) -> tuple[tuple[int, int, int], ...]:
    """The ranges with one more, none for no round, joined to the newest where it goes on there."""
    if last < first:
        return ranges
    if ranges and ranges[-1][1:] == (first - 1, attempt + 1):
        first = ranges[-1][0]
        ranges = ranges[:-1]
    return (*ranges, (first, last, attempt + 1))

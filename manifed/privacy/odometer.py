"""The odometer: ledger entries in, epsilon of each adversary out; the live run and the audit alike.

Feed it every entry of a ledger in order. What *counts* is all that is reserved and not proved
unused. A round costs time and memory in the number of clients, whatever the number of rounds.

Against an adversary who sees cohorts a client pays for each attempt whose cohort it may have been
in; against one who does not, every client pays for every cohort draw that was made or planned, as
a coin (`manifed.privacy.events`).
Guarantee: every epsilon is an upper bound.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from manifed.privacy import accountant
from manifed.privacy.composition import compose
from manifed.privacy.events import (
    ADVERSARIES,
    OF_MASKS,
    Adversary,
    Releases,
    repeated,
    seen_by,
    unsampled,
)
from manifed.privacy.ledger import Entry, Reserves, Settles
from manifed.privacy.participation import external_epsilon
from manifed.privacy.tariff import Members, Terms, decode

ORIGINS: Final = "noise_origins"
"""What an entry says of where the noise of a run came from."""
PLACE: Final = "place"
"""What an entry of a site's ledger says of the answer it pays for (manifed/site/account.py)."""
LIMITS: Final = "limits"
"""What an entry of a site's ledger says of the limits that are in force from here on."""
_Counts = NDArray[np.int64]


@dataclass(frozen=True)
class _Known:
    """Terms that were met, with every client's update as an index into `_updates`."""

    terms: Terms
    update_of: _Counts


class Odometer:
    """Sums up what entries say; see the module."""

    def __init__(self) -> None:
        """Nothing spent."""
        self._known: tuple[_Known, ...] = ()
        self._numbers: dict[Terms, int] = {}
        self._updates: tuple[Releases, ...] = ()
        self._draws, self._served = Counter[int](), dict[int, _Counts]()
        """What counts, by the number of its terms: draws of cohorts, and how often each client."""
        self._open: tuple[Reserves, Members, int] | None = None
        """The reservation that may be settled, its cohort and its terms."""
        self._now: int | None = None
        self._ranges: tuple[tuple[int, int, int], ...] = ()
        """(first round, last round, attempts) that were charged and are settled or lost."""
        self.planned: tuple[Terms, ...] = ()
        """Planned terms of the newest entry with them; () where all draws have one terms."""
        self.noise_origins: frozenset[str] = frozenset()
        """Where the keys of noise came from so far, as entries say."""

    # -- feeding -----------------------------------------------------------------------------
    def feed(self, entry: Entry) -> None:
        """Take the next entry of a ledger.

        Raises:
            ValueError: for an entry that cannot be counted: clients outside the terms, no terms, or
                a settlement of what is not open.
        """
        said = entry.said
        if entry.settles is not None:
            self._settle(entry.settles)
        if entry.terms is not None:
            self.declare(entry.terms)
        for terms in entry.planned or ():
            self._number(terms)
        if entry.planned is not None:
            self.planned = entry.planned
        if entry.reserves is not None:
            self._reserve(entry.reserves)
        origins = set(map(str, said.get(ORIGINS, ())))
        if PLACE in said:
            origins.add("os" if said[PLACE].get("seed") is None else "seed")
        self.noise_origins |= origins

    def after(self, *entries: Entry) -> "Odometer":
        """An odometer that has taken the entries too; this one has not; errors as `feed`."""
        other = copy(self)
        other._draws, other._served = self._draws.copy(), self._served.copy()
        for entry in entries:
            other.feed(entry)
        return other

    def declare(self, terms: Terms) -> None:
        """The terms of what comes next, if it brings none of its own."""
        self._now = self._number(terms)

    def _number(self, terms: Terms) -> int:
        """Under which the terms are kept."""
        if (found := self._numbers.get(terms)) is not None:
            return found
        if self._known and (population := self._known[0].terms.population) != terms.population:
            raise ValueError(f"Expected terms of {population} clients, got {terms.population}")
        update_of = np.zeros(terms.population, dtype=np.int64)
        updates = {update: i for i, update in enumerate(self._updates or ((),))}
        for one in terms.updates:
            update_of[list(one.partitions)] = updates.setdefault(one.releases, len(updates))
        self._updates = tuple(updates)
        self._numbers = dict(self._numbers)
        self._numbers[terms] = len(self._known)
        self._known = (*self._known, _Known(terms, update_of))
        return self._numbers[terms]

    def _reserve(self, reserves: Reserves) -> None:
        """Count a reservation whole, and for ever what is still open."""
        if self._now is None:
            raise ValueError("Expected terms before or in the first reservation, got none")
        cohort = decode(reserves.cohort, self._known[self._now].terms.population)
        self._close()
        self._add(self._now, cohort, reserves.last - reserves.first + 1)
        self._open = reserves, cohort, self._now

    def _add(self, known: int, cohort: Members, times: int) -> None:
        """Count ``times`` draws of this cohort; negative takes them back."""
        self._draws[known] += times
        more = np.zeros(self._known[known].terms.population, dtype=np.int64)
        more[cohort] = times
        self._served[known] = self._served.get(known, 0) + more

    def _settle(self, settles: Settles) -> None:
        """Replace what was reserved by what was run."""
        if self._open is None:
            raise ValueError("Expected an open reservation to settle, got none")
        (was, reserved, known), upto = self._open, settles.upto
        population, rounds = self._known[known].terms.population, upto - was.first + 1
        if not was.first - 1 <= upto <= was.last:
            raise ValueError(
                f"Expected rounds settled up to {was.first - 1} to {was.last}, got {upto}"
            )
        if settles.cohorts is not None:
            named = [decode(cohort, population) for cohort in settles.cohorts]
            if len(named) != rounds:
                raise ValueError(f"Expected {rounds} cohorts, one a round, got {len(named)}")
            for cohort in named:
                if not np.isin(cohort, reserved, assume_unique=True).all():
                    raise ValueError("Expected a cohort of reserved clients, got others")
                self._add(known, cohort, 1)
            self._add(known, reserved, -rounds)
        self._note(was.first, upto, was.attempt)
        left = was.last - upto
        self._open = None
        if settles.is_open and left:
            self._open = was.model_copy(update={"first": upto + 1}), reserved, known
        else:
            self._add(known, reserved, -left)

    def _close(self) -> None:
        """What is still reserved will never be settled, and counts for ever."""
        if self._open is not None:
            was = self._open[0]
            self._note(was.first, was.last, was.attempt)
            self._open = None

    def _note(self, first: int, last: int, attempt: int) -> None:
        *before, newest = self._ranges or ((0, -1, 0),)
        if newest[1:] == (first - 1, attempt + 1):
            self._ranges = (*before, (newest[0], last, attempt + 1))
        elif last >= first:
            self._ranges = (*self._ranges, (first, last, attempt + 1))

    # -- what was charged --------------------------------------------------------------------
    @property
    def terms(self) -> Terms | None:
        """The terms of what comes next, if it brings none of its own."""
        return None if self._now is None else self._known[self._now].terms

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """(first round, last round, attempts) that were charged; where they meet the most count."""
        if self._open is None:
            return self._ranges
        was = self._open[0]
        return (*self._ranges, (was.first, was.last, was.attempt + 1))

    @property
    def covered(self) -> int:
        """The rounds 1 to this one were all charged."""
        covered = 0
        for first, last, _ in self.ranges:
            if first <= covered + 1:
                covered = max(covered, last)
        return covered

    @property
    def rounds_counted(self) -> int:
        """Attempts of rounds that count."""
        return self._draws.total()

    @property
    def participations(self) -> int:
        """The participations, as counted, of the client with most of them."""
        return int(self.participations_by_client().max(initial=0))

    def participations_by_client(self) -> _Counts:
        """The participations of every client, as counted."""
        return np.asarray(sum(self._served.values(), start=np.zeros(1, dtype=np.int64)))

    def attempts(self, server_round: int) -> int:
        """How often a round was charged."""
        fitting = (n for first, last, n in self.ranges if first <= server_round <= last)
        return max(fitting, default=0)

    def of_everybody(self) -> "Odometer":
        """An odometer of these attempts as if every client had been in each; no cohort enters."""
        other = self.after()
        for known, draws in self._draws.items():
            population = self._known[known].terms.population
            other._served[known] = np.full(population, draws, dtype=np.int64)
        return other

    # -- prices ------------------------------------------------------------------------------
    def spent(self, delta: float) -> list[dict[str, Any]]:
        """What each adversary who learns from these charges can have learnt, at ``delta``.

        Of all adversaries of a star, and those of masks where masked messages are charged. Declared
        terms that nothing was charged under yet count at epsilon 0.

        Raises:
            NoValidBound: as the accountant.
        """
        used = {i for i, times in self._draws.items() if times} | {self._now}
        terms = [known.terms for i, known in enumerate(self._known) if i in used]
        updates = dict.fromkeys(one.releases for each in terms for one in each.updates)
        said = {
            "updates": [release for update in updates for release in update],
            "aggregate": [release for each in terms for release in each.aggregate],
        }
        is_masked = any(release.is_masked for release in said["updates"])
        found = list[dict[str, Any]]()
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
        """What counts against one adversary; errors as `spent`."""
        if adversary.releases == "updates" and not adversary.sees_cohorts:
            counts = self._coins(self._with_planned(self._draws), adversary)
            return max((external_epsilon(one, delta) for one in counts), default=0.0)
        columns: Iterable[Any]
        if adversary.releases == "updates":
            rows = [seen_by(adversary.knows, update) for update in self._updates]
            columns = self._histories()
        else:
            used = [i for i in sorted(self._draws) if self._known[i].terms.aggregate]
            rows = [self._known[i].terms.aggregate for i in used]
            columns = [[self._draws[i] for i in used]]
            if adversary.sees_cohorts:
                rows = list(map(unsampled, rows))
                columns = np.array([self._served[i] for i in used]).T if used else ()
                columns = np.unique(columns, axis=0) if used else ()
        worst = 0.0
        for column in columns:
            times = zip(rows, column, strict=True)
            releases = [one for row, n in times for one in repeated(row, int(n)) if n]
            worst = max(worst, accountant.epsilon(releases, delta))
        return worst

    def _with_planned(self, made: Counter[int]) -> Counter[int]:
        """With every planned draw that was not made, which an outsider must reckon with."""
        terms, more = self.terms, Counter[int]()
        if self.planned:
            for one in self.planned:
                more[self._number(one)] += one.planned_draws - made[self._number(one)]
        elif terms is not None and self._now is not None and terms.is_drawn:
            more[self._now] += terms.planned_draws - made.total()
        return +made + (+more)

    def _histories(self) -> Iterator[_Counts]:
        """How often a client may have been asked for each update, if no other was asked more."""
        if not self._served:
            return
        population = self._known[0].terms.population
        table = np.zeros((len(self._updates), population), dtype=np.int64)
        for i, served in self._served.items():
            np.add.at(table, (self._known[i].update_of, np.arange(population)), served)
        if ((table > 0).sum(axis=0) <= 1).all():  # each was asked for one update alone
            yield from np.diag(table.max(axis=1))
            return
        columns = np.unique(table, axis=1).T
        kept = np.zeros((0, len(self._updates)), dtype=np.int64)
        for column in columns[np.argsort(-columns.sum(axis=1), kind="stable")]:
            if not (kept >= column).all(axis=1).any():
                kept = np.vstack((kept, column))
        yield from kept

    def _coins(
        self, draws: Counter[int], adversary: Adversary
    ) -> set[tuple[tuple[Releases, float, int], ...]]:
        """(update, probability, how often) of each kind of client; the largest of those alike."""
        used = sorted(i for i, times in draws.items() if times)
        if not used:
            return set()
        terms = [self._known[i].terms for i in used]
        table = np.stack([self._known[i].update_of for i in used])
        each = [one.probabilities or one.participation_probability for one in terms]
        rates = np.stack([np.broadcast_to(rate, table.shape[1]) for rate in each])
        found: set[tuple[tuple[Releases, float, int], ...]] = set()
        for updates in np.unique(table, axis=1).T:
            alike = (table == updates[:, None]).all(axis=0)
            counts = Counter[tuple[Releases, float]]()
            for i, update, rate in zip(used, updates, rates[:, alike].max(axis=1), strict=True):
                seen = seen_by(adversary.knows, self._updates[update])
                counts[seen, float(rate)] += draws[i]
            found.add(tuple((update, rate, n) for (update, rate), n in counts.items()))
        return found

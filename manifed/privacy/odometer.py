"""The odometer: ledger entries in, epsilon of each adversary out; the live run and the audit alike.

Feed it every entry of a ledger in order. It keeps two tallies, of what *counts* (all that is
reserved and not proved unused) and of what was *consumed* for certain. A round costs time in the
size of its cohort; memory is one counter a client and terms, whatever the number of rounds.

Against an adversary who sees cohorts a client pays for each attempt whose cohort it may have been
in; against one who does not, every client pays for every cohort draw that was made or planned, as
a coin (`manifed.privacy.adversaries`).
Guarantee: every epsilon is an upper bound.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from manifed.privacy import cohorts
from manifed.privacy.adversaries import ADVERSARIES, OF_MASKS, Adversary
from manifed.privacy.chain import HEADER, RECOVERED, Entry
from manifed.privacy.charges import (
    AMENDED,
    CHARGE,
    CONSUMED,
    RESERVED,
    Amendment,
    Charge,
    Consumption,
    Reservation,
    Terms,
)
from manifed.privacy.cohorts import Members
from manifed.privacy.composition import Composition, compose
from manifed.privacy.events import MaskedRelease, NeighboringRelation, PrivacyUnit
from manifed.privacy.realised import price, spent_by_client
from manifed.privacy.tally import Attempts, Coin, Known, Register, Tally, stretched

NOTE: Final = "note"
ORIGINS: Final = "noise_origins"
"""The key of a note that says where the noise of a run came from."""
PLACE: Final = "place"
"""The key of the place of an answer, in a line of a site's ledger (manifed/site/account.py)."""


@dataclass(frozen=True)
class PrivacySpent:
    """What was spent against one adversary."""

    adversary: Adversary
    unit: PrivacyUnit
    neighboring_relation: NeighboringRelation
    epsilon: float
    """Of all that counts: the number to state."""
    delta: float
    epsilon_consumed: float | None = None
    """Of what was spent for certain; None where the ledger does not say (format 1)."""


@dataclass(frozen=True, eq=False)
class _Open:
    """The reservation that a consumption may settle; rounds ``first`` to ``last`` are left."""

    first: int
    last: int
    attempt: int
    cohort: Members
    terms: int
    drawn: int
    """The attempt that drew its cohorts."""
    before: Coin
    """The coin that its draw already is; () for its own."""
    is_before_consumed: bool = False


class Odometer:
    """Sums up what entries say; see the module."""

    def __init__(self) -> None:
        """Nothing spent."""
        self._register, self._counted, self._consumed = Register(), Tally(), Tally()
        self._open: _Open | None = None
        self._now: int | None = None
        self._recent: dict[tuple[int, int], tuple[Coin, bool]] = {}
        self._settled = Attempts()
        self._is_certain_unknown = False
        self._plan: tuple[int, ...] = ()
        self.config_sha256: str | None = None
        """Of the config in force: the header's, then that of the newest amendment."""
        self.amendments: tuple[Amendment, ...] = ()
        self.noise_origins: frozenset[str] = frozenset()
        """Where the keys of noise came from so far, as entries say."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Odometer":
        """The one that took all entries; errors as `feed`."""
        odometer = cls()
        for entry in entries:
            odometer.feed(entry)
        return odometer

    # -- feeding -----------------------------------------------------------------------------
    def feed(self, entry: Entry) -> None:
        """Take the next entry of a ledger.

        Raises:
            ValueError, KeyError, TypeError: for an entry that is none of a ledger.
        """
        if entry.kind == RESERVED:
            self.reserve(Reservation.of_body(entry.body, self.terms))
        elif entry.kind == CONSUMED:
            if self.terms is None:
                raise ValueError("Expected a reservation to consume, got none")
            self.consume(Consumption.of_body(entry.body, self.terms.population))
        elif entry.kind == CHARGE:
            self.charge(Charge.model_validate(entry.body))
        elif entry.kind == RECOVERED:
            body = entry.body["charge"]
            if "rounds" in body:
                self.reserve(Reservation.of_body(body, self.terms))
                self._abandon()
            else:
                self.charge(Charge.model_validate(body))
        elif entry.kind == AMENDED:
            self.amend(Amendment.model_validate(entry.body))
        elif entry.kind == HEADER:
            self.config_sha256 = entry.body.get("config_sha256")
        elif entry.kind != NOTE:
            raise ValueError(f"Expected a charge of a known kind, got {entry.kind!r}")
        if entry.kind in (NOTE, RESERVED):
            self._note_origins(entry.body)

    def _note_origins(self, body: Mapping[str, Any]) -> None:
        """Where noise came from: a run's notes say it, and every answer of a site by its seed."""
        said = list(body.get(ORIGINS, ()))
        if PLACE in body:
            said.append("os" if body[PLACE]["seed"] is None else "seed")
        self.noise_origins |= frozenset(map(str, said))

    def declare(self, terms: Terms) -> None:
        """The terms of what comes next, if it brings none of its own."""
        self._now = self._register.number(terms)

    def plan(self, planned: Iterable[Terms]) -> None:
        """All terms under which cohorts may be drawn, each with its ``planned_draws``."""
        self._plan = tuple(self._register.number(terms) for terms in planned)

    def reserve(self, reservation: Reservation) -> None:
        """`check`, then `count`."""
        self.check(reservation)
        self.count(reservation)

    def count(self, reservation: Reservation) -> None:
        """Count a checked reservation whole, after settling the one before as it says."""
        if reservation.consumed is not None:
            self.consume(reservation.consumed)
        self._abandon()
        if reservation.terms is not None:
            self.declare(reservation.terms)
        if reservation.planned is not None:
            self.plan(reservation.planned)
        assert self._now is not None
        cohort = reservation.cohort
        first, last, rounds = reservation.first, reservation.last, _length(reservation)
        before, is_certain = self._coin_used_again(reservation)
        self._recent = {k: v for k, v in self._recent.items() if k[0] == first == last}
        self._counted.add(self._now, cohort, rounds)
        after = (*before, self._now)
        self._counted.toss(before, after, rounds)
        self._register.first_round.setdefault(after, first)
        drawn = reservation.attempt
        if reservation.cohort_attempt is not None:
            drawn = reservation.cohort_attempt
        self._open = _Open(
            first, last, reservation.attempt, cohort, self._now, drawn, before, is_certain
        )
        if first == last:
            self._recent[first, drawn] = (after, False)

    def consume(self, consumption: Consumption) -> None:
        """Replace what was reserved by what was run.

        Raises:
            ValueError: without an open reservation, for rounds or a cohort outside of it.
        """
        was, upto, named = self._settled_by(consumption), consumption.upto, consumption.cohorts
        rounds = upto - was.first + 1
        if named is None:
            self._consumed.add(was.terms, was.cohort, rounds)
        else:
            for cohort in named:
                self._consumed.add(was.terms, cohort, 1)
                self._counted.add(was.terms, cohort, 1)
            self._counted.add(was.terms, was.cohort, -rounds)
        if rounds:
            after = (*was.before, was.terms)
            mine = was.before if was.is_before_consumed else ()
            self._consumed.toss(mine, after if mine else (was.terms,), rounds)
            self._settled.note(was.first, upto, was.attempt)
            self._recent[upto, was.drawn] = (after, True)
        if consumption.is_open and upto < was.last:
            self._open = replace(was, first=upto + 1)
            return
        self._open = None
        if left := was.last - upto:
            after = (*was.before, was.terms)
            self._counted.add(was.terms, was.cohort, -left)
            self._counted.toss(after, was.before, left)
            self._recent = {key: coin for key, coin in self._recent.items() if key[0] <= upto}

    def charge(self, charge: Charge) -> None:
        """Count a self-contained charge."""
        self._is_certain_unknown = True
        named = [p for one in charge.turns for p in one.partitions]
        population = 1 + max([*named, *charge.partitions], default=0)
        if not charge.turns:  # a power of two, so that few terms differ by nothing else
            population = 1 << (population - 1).bit_length()
        terms = Terms(
            population=population,
            updates=charge.turns,
            sampling=charge.sampling,
            aggregate=charge.aggregate,
        )
        r, cohort = charge.server_round, cohorts.members(charge.partitions)
        self.reserve(Reservation(r, r, charge.attempt, cohort, charge.cohort_attempt, terms=terms))
        self._abandon()

    def check(self, reservation: Reservation) -> None:
        """Refuse what cannot be counted; nothing is counted.

        Raises:
            ValueError: for clients outside the terms or without an update, no terms, a consumption
                of what is not open, or a cohort used again that is not the last one's.
        """
        if reservation.consumed is not None:
            self._settled_by(reservation.consumed)
        self._known_under(reservation.terms).check(reservation.cohort)
        if reservation.cohort_attempt is not None:
            self.copied().count(reservation)  # its coin hangs on what settling the last one leaves

    def amend(self, amendment: Amendment) -> None:
        """Take more rounds: all that was reserved stays as it was priced.

        Raises:
            ValueError: for an amendment of another config or number of rounds than the last one's,
                and for one that plans fewer draws than were planned.
        """
        if amendment.amends != self.config_sha256:
            raise ValueError(
                f"Expected an amendment of the config {self.config_sha256}, got one of "
                f"{amendment.amends}"
            )
        before = self.amendments[-1].num_rounds[1] if self.amendments else amendment.num_rounds[0]
        if amendment.num_rounds[0] != before:
            raise ValueError(
                f"Expected an amendment of {before} rounds, got one of {amendment.num_rounds[0]}"
            )
        self._abandon()
        if (terms := self.terms) is not None and not self._plan:
            if amendment.planned_draws < terms.planned_draws:
                raise ValueError(
                    f"Expected at least the {terms.planned_draws} draws that were planned, got "
                    f"{amendment.planned_draws}"
                )
            self.declare(terms.model_copy(update={"planned_draws": amendment.planned_draws}))
        self.config_sha256 = amendment.config_sha256
        self.amendments = (*self.amendments, amendment)

    def _settled_by(self, consumption: Consumption) -> _Open:
        """The open reservation, which the consumption must fit; errors as `consume`."""
        was, upto, named = self._open, consumption.upto, consumption.cohorts
        if was is None:
            raise ValueError("Expected an open reservation to consume, got none")
        if not was.first - 1 <= upto <= was.last:
            raise ValueError(
                f"Expected rounds consumed up to {was.first - 1} to {was.last}, got {upto}"
            )
        if named is not None and len(named) != (rounds := upto - was.first + 1):
            raise ValueError(f"Expected {rounds} cohorts, one a round, got {len(named)}")
        for cohort in named or ():
            if not np.isin(cohort, was.cohort, assume_unique=True).all():
                raise ValueError("Expected a cohort of reserved clients, got others")
        return was

    def _known_under(self, terms: Terms | None) -> Known:
        """The terms of a reservation that brings these, or none of its own."""
        number = self._now if terms is None else self._register.number(terms)
        if number is None:
            raise ValueError("Expected terms before the first reservation, got none")
        return self._register.known[number]

    def after(self, reservation: Reservation) -> "Odometer":
        """An odometer that has taken the reservation too; this one has not; errors as `check`."""
        other = self.copied()
        other.reserve(reservation)
        return other

    def copied(self) -> "Odometer":
        """One that can be added to alone."""
        other = copy(self)
        other._register = self._register.copied()
        other._counted, other._consumed = self._counted.copied(), self._consumed.copied()
        other._recent, other._settled = dict(self._recent), self._settled.copied()
        return other

    def _abandon(self) -> None:
        """What is still reserved will never be settled, and counts for ever."""
        if self._open is not None:
            self._settled.note(self._open.first, self._open.last, self._open.attempt)
            if self._open.first < self._open.last:
                self._recent.clear()
            self._open = None

    def _coin_used_again(self, reservation: Reservation) -> tuple[Coin, bool]:
        own = reservation.cohort_attempt
        if own is None or own == reservation.attempt:
            return (), False
        try:
            return self._recent[reservation.first, own]
        except KeyError:
            raise ValueError(
                f"Expected attempt {own} of round {reservation.first} right before the attempt "
                "that uses its cohort again, got another reservation; draw a fresh cohort"
            ) from None

    # -- what was charged --------------------------------------------------------------------
    @property
    def terms(self) -> Terms | None:
        """The terms of what comes next, if it brings none of its own."""
        return None if self._now is None else self._register.known[self._now].terms

    @property
    def planned(self) -> tuple[Terms, ...]:
        """As `plan` took them; () where all draws are under one terms."""
        return tuple(self._register.known[i].terms for i in self._plan)

    @property
    def covered(self) -> int:
        """The rounds 1 to this one were all charged."""
        covered = self._settled.covered
        if self._open is not None and self._open.first <= covered + 1:
            covered = max(covered, self._open.last)
        return covered

    @property
    def rounds_counted(self) -> int:
        """Attempts of rounds that count."""
        return self._counted.attempts.total()

    @property
    def rounds_consumed(self) -> int | None:
        """Attempts of rounds that were run for certain; None where the ledger does not say."""
        return None if self._is_certain_unknown else self._consumed.attempts.total()

    @property
    def participations(self) -> int:
        """Of the client with most of them, as counted."""
        return int(self._counted.by_client().max(initial=0))

    def participations_by_client(self) -> NDArray[np.int64]:
        """Of every client up to the last one that was ever asked, as counted."""
        return self._counted.by_client()

    def attempts(self, server_round: int) -> int:
        """How often a round was charged."""
        found, opened = self._settled.of(server_round), self._open
        if opened is not None and opened.first <= server_round <= opened.last:
            found = max(found, opened.attempt + 1)
        return found

    def attempts_by_round(self) -> tuple[int, ...]:
        """How often each of the rounds 1, 2, ... was charged, up to the last one that was."""
        last = max(self._settled.last, self._open.last if self._open is not None else 0)
        return tuple(self.attempts(r) for r in range(1, last + 1))

    def attempts_by_stretch(self, lengths: Iterable[int]) -> tuple[int, ...]:
        """How often the rounds 1 to l1, l1 + 1 to l1 + l2, ... were charged, each stretch together.

        Rounds behind the last one count with it; no stretch without a charge ends the list.
        """
        ranges = [*self._settled.ranges]
        if self._open is not None:
            ranges.append((self._open.first, self._open.last, self._open.attempt + 1))
        return stretched(ranges, lengths)

    def of_everybody(self) -> "Odometer":
        """The same attempts, as if every client had been in each: it depends on no cohort."""
        other = self.copied()
        for index, attempts in self._counted.attempts.items():
            population = self._register.known[index].terms.population
            other._counted.served[index] = np.full(population, attempts, dtype=np.int64)
        return other

    # -- prices ------------------------------------------------------------------------------
    def spent(
        self, delta: float, adversaries: Iterable[Adversary] | None = None
    ) -> tuple[PrivacySpent, ...]:
        """What each adversary who learns from these charges can have learnt, at ``delta``.

        None: all of a star, and those of masks where masked messages are charged.

        Declared terms that nothing was charged under yet count at epsilon 0.

        Raises:
            NoValidBound: as the accountant, and when the charges do not say what a client would
                have released to an adversary who sees no cohorts.
        """
        used = self._used()
        updates = dict.fromkeys(t.releases for k in used for t in k.terms.updates if t.releases)
        said = {
            "updates": compose(release for update in updates for release in update),
            "aggregate": compose(dict.fromkeys(r for k in used for r in k.terms.aggregate)),
        }
        if adversaries is None:
            is_masked = any(isinstance(r, MaskedRelease) for one in updates for r in one)
            adversaries = (*ADVERSARIES, *(OF_MASKS[1:] if is_masked else ()))
        is_said = {"updates": bool(updates), "aggregate": any(k.terms.aggregate for k in used)}
        return tuple(
            self._spent(adversary, said[adversary.releases], delta)
            for adversary in adversaries
            if is_said[adversary.releases]
        )

    def epsilon(self, adversary: Adversary, delta: float) -> float:
        """What counts against one adversary; errors as `spent`."""
        tally = self._counted
        if adversary.releases == "updates" and not adversary.sees_cohorts:
            tally = self._as_planned(tally)
        return price(self._register, tally, adversary, delta)

    def _as_planned(self, tally: Tally) -> Tally:
        """With a coin for every planned draw that was not made."""
        if self._plan:
            left, made = Counter[Coin](), self._made(tally)
            for i in self._plan:
                more = self._register.known[i].terms.planned_draws - made[i]
                left[i,] = max(0, more)
            return Tally(coins=tally.coins + left)
        if (more := self._planned() - tally.coins.total()) <= 0:
            return tally
        assert self._now is not None
        return Tally(coins=tally.coins + Counter({(self._now,): more}))

    def _made(self, tally: Tally) -> Counter[int]:
        """Draws under each terms of the plan; an amendment plans more draws of the same terms."""
        made = Counter({i: tally.coins[i,] for i in self._plan})
        if self.amendments:
            bare = [k.terms.model_copy(update={"planned_draws": 0}) for k in self._register.known]
            for i in self._plan:
                made[i] = sum(tally.coins[j,] for j, terms in enumerate(bare) if terms == bare[i])
        return made

    def _planned(self) -> int:
        """How many draws an outsider must reckon with; 0 where everybody is in every one."""
        terms = self.terms
        if terms is None or not terms.is_drawn:
            return 0
        return terms.planned_draws

    def spent_by_client(self, delta: float) -> dict[int, float]:
        """Epsilon of every client that may have been asked, against the server, as counted."""
        return spent_by_client(self._register, self._counted, delta)

    def _spent(self, adversary: Adversary, said: Composition, delta: float) -> PrivacySpent:
        certain = None
        if not self._is_certain_unknown:
            certain = price(self._register, self._consumed, adversary, delta)
        return PrivacySpent(
            adversary,
            said.unit,
            said.neighboring_relation,
            self.epsilon(adversary, delta),
            delta,
            certain,
        )

    def _used(self) -> list[Known]:
        indices = {i for i, times in self._counted.attempts.items() if times}
        if self._now is not None:
            indices.add(self._now)
        return [self._register.known[i] for i in sorted(indices)]


def _length(reservation: Reservation) -> int:
    return reservation.last - reservation.first + 1

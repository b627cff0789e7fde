"""The odometer: ledger entries in, epsilon of each adversary out; the live run and the audit alike.

Feed it every entry of a ledger in order. It keeps two tallies, of what *counts* (all that is
reserved and not proved unused) and of what was *consumed* for certain. A round costs time in the
size of its cohort; memory is one counter a client and terms, whatever the number of rounds.

The adversaries: the *server* sees every cohort and upload, so a client pays for each attempt whose
cohort it may have been in; the *external* one sees models and no cohorts, so every client pays
for every cohort draw, as a coin; *client-level* is what the server releases about whole clients.
Guarantee: every epsilon is an upper bound.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from privacy import accountant, cohorts
from privacy.chain import HEADER, RECOVERED, Entry
from privacy.charges import (
    CHARGE,
    CONSUMED,
    RESERVED,
    Charge,
    Consumption,
    Releases,
    Reservation,
    Terms,
)
from privacy.cohorts import Members
from privacy.composition import Composition, NoValidBound, compose
from privacy.events import NeighboringRelation, PrivacyUnit, repeated
from privacy.participation import external_epsilon_of_counts

View = Literal["server", "external", "client-level"]
Coin = tuple[int, ...]
"""One cohort draw: the terms of the attempts that use it, in order."""

NOTE: Final = "note"
ADVERSARIES: Final[dict[View, str]] = {
    "server": "the server, who sees every cohort and every upload",
    "external": "an outsider who sees every broadcast model and no cohort",
    "client-level": "an outsider who sees every broadcast model; the server is trusted",
}


@dataclass(frozen=True)
class PrivacySpent:
    """One view of what was spent."""

    view: View
    unit: PrivacyUnit
    neighboring_relation: NeighboringRelation
    epsilon: float
    """Of all that counts: the number to state."""
    delta: float
    adversary: str
    epsilon_consumed: float | None = None
    """Of what was spent for certain; None where the ledger does not say (format 1)."""


@dataclass(frozen=True, eq=False)
class _Known:
    """Terms as arrays: the turn of every client as an index into `Odometer._turns`, -1 for none."""

    terms: Terms
    turn_of: NDArray[np.int32]

    @property
    def has_turns(self) -> bool:
        return bool(self.terms.turns)


@dataclass
class _Tally:
    """What adds up: attempts, participations, coins."""

    served: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """Terms -> how often each client may have been asked."""
    attempts: Counter[int] = field(default_factory=Counter)
    """Terms -> attempts of rounds."""
    coins: Counter[Coin] = field(default_factory=Counter)

    def add(self, terms: int, cohort: Members, times: int) -> None:
        """``times`` attempts with this cohort; negative takes them back."""
        self.attempts[terms] += times
        known = self.served.get(terms, np.zeros(0, dtype=np.int64))
        if cohort.size and cohort[-1] >= known.size:
            known = np.concatenate((known, np.zeros(int(cohort[-1]) + 1 - known.size, np.int64)))
        known[cohort] += times
        self.served[terms] = known

    def copied(self) -> "_Tally":
        return _Tally(
            {terms: served.copy() for terms, served in self.served.items()},
            Counter(self.attempts),
            Counter(self.coins),
        )

    def by_client(self) -> NDArray[np.int64]:
        """How often each client may have been asked under any terms."""
        size = max((served.size for served in self.served.values()), default=0)
        total = np.zeros(size, dtype=np.int64)
        for served in self.served.values():
            total[: served.size] += served
        return total

    @property
    def rounds(self) -> int:
        return self.attempts.total()


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
        self._known: list[_Known] = []
        self._index: dict[Terms, int] = {}
        self._turns: list[Releases] = []
        self._turn_index: dict[Releases, int] = {}
        self._counted, self._consumed = _Tally(), _Tally()
        self._example_round: dict[Coin, int] = {}
        self._open: _Open | None = None
        self._now: int | None = None
        self._recent: dict[tuple[int, int], tuple[Coin, bool]] = {}
        self._settled = _Attempts()
        self._is_certain_unknown = False

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
        elif entry.kind not in (HEADER, NOTE):
            raise ValueError(f"Expected a charge of a known kind, got {entry.kind!r}")

    def declare(self, terms: Terms) -> None:
        """The terms of what comes next, if it brings none of its own."""
        self._now = self._interned(terms)

    def reserve(self, reservation: Reservation) -> None:
        """Count a reservation whole, after settling the one before as it says."""
        if reservation.consumed is not None:
            self.consume(reservation.consumed)
        self._abandon()
        if reservation.terms is not None:
            self.declare(reservation.terms)
        if self._now is None:
            raise ValueError("Expected terms before the first reservation, got none")
        known, cohort = self._known[self._now], reservation.cohort
        _check_cohort(known, cohort)
        first, last, rounds = reservation.first, reservation.last, _length(reservation)
        before, is_certain = self._coin_used_again(reservation)
        self._recent = {k: v for k, v in self._recent.items() if k[0] == first == last}
        self._counted.add(self._now, cohort, rounds)
        after = (*before, self._now)
        self._toss(self._counted, before, after, rounds)
        self._example_round.setdefault(after, first)
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
        was = self._open
        if was is None:
            raise ValueError("Expected an open reservation to consume, got none")
        upto, named = consumption.upto, consumption.cohorts
        if not was.first - 1 <= upto <= was.last:
            raise ValueError(
                f"Expected rounds consumed up to {was.first - 1} to {was.last}, got {upto}"
            )
        rounds = upto - was.first + 1
        if named is None:
            self._consumed.add(was.terms, was.cohort, rounds)
        else:
            if len(named) != rounds:
                raise ValueError(f"Expected {rounds} cohorts, one a round, got {len(named)}")
            for cohort in named:
                if not np.isin(cohort, was.cohort, assume_unique=True).all():
                    raise ValueError("Expected a cohort of reserved clients, got others")
                self._consumed.add(was.terms, cohort, 1)
                self._counted.add(was.terms, cohort, 1)
            self._counted.add(was.terms, was.cohort, -rounds)
        if rounds:
            after = (*was.before, was.terms)
            mine = was.before if was.is_before_consumed else ()
            self._toss(self._consumed, mine, after if mine else (was.terms,), rounds)
            self._settled.note(was.first, upto, was.attempt)
            self._recent[upto, was.drawn] = (after, True)
        if consumption.is_open and upto < was.last:
            self._open = replace(was, first=upto + 1)
            return
        self._open = None
        if left := was.last - upto:
            after = (*was.before, was.terms)
            self._counted.add(was.terms, was.cohort, -left)
            self._toss(self._counted, after, was.before, left)

    def charge(self, charge: Charge) -> None:
        """Count a self-contained charge."""
        self._is_certain_unknown = True
        named = [p for turn in charge.turns for p in turn.partitions]
        population = 1 + max([*named, *charge.partitions], default=0)
        if not charge.turns:  # a power of two, so that few terms differ by nothing else
            population = 1 << (population - 1).bit_length()
        terms = Terms(
            population=population,
            turns=charge.turns,
            sampling=charge.sampling,
            aggregate=charge.aggregate,
        )
        r, cohort = charge.server_round, cohorts.members(charge.partitions)
        self.reserve(Reservation(r, r, charge.attempt, cohort, charge.cohort_attempt, terms=terms))
        self._abandon()

    def after(self, reservation: Reservation) -> "Odometer":
        """An odometer that has taken the reservation too; this one has not."""
        other = copy(self)
        other._known, other._index = list(self._known), dict(self._index)
        other._turns, other._turn_index = list(self._turns), dict(self._turn_index)
        other._counted, other._consumed = self._counted.copied(), self._consumed.copied()
        other._example_round = dict(self._example_round)
        other._recent, other._settled = dict(self._recent), self._settled.copied()
        other.reserve(reservation)
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

    @staticmethod
    def _toss(tally: _Tally, before: Coin, after: Coin, times: int) -> None:
        """Turn ``before`` coins into ``after`` coins; () is no coin."""
        for coin, change in ((before, -times), (after, times)):
            if coin:
                tally.coins[coin] += change
                assert tally.coins[coin] >= 0
                if not tally.coins[coin]:
                    del tally.coins[coin]

    def _interned(self, terms: Terms) -> int:
        if (found := self._index.get(terms)) is not None:
            return found
        turn_of = np.full(terms.population, -1, dtype=np.int32)
        for turn in terms.turns:
            owners = cohorts.members(turn.partitions)
            if owners.size and owners[-1] >= terms.population:
                raise ValueError(f"Expected clients < {terms.population}, got {owners[-1]}")
            if owners.size != len(turn.partitions) or (turn_of[owners] >= 0).any():
                raise ValueError(f"Expected every partition in one turn at most, got {owners}")
            if turn.releases not in self._turn_index:
                self._turn_index[turn.releases] = len(self._turns)
                self._turns.append(turn.releases)
            turn_of[owners] = self._turn_index[turn.releases]
        self._index[terms] = len(self._known)
        self._known.append(_Known(terms, turn_of))
        return self._index[terms]

    # -- what was charged --------------------------------------------------------------------
    @property
    def terms(self) -> Terms | None:
        """The terms of what comes next, if it brings none of its own."""
        return None if self._now is None else self._known[self._now].terms

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
        return self._counted.rounds

    @property
    def rounds_consumed(self) -> int | None:
        """Attempts of rounds that were run for certain; None where the ledger does not say."""
        return None if self._is_certain_unknown else self._consumed.rounds

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

    # -- prices ------------------------------------------------------------------------------
    def spent(self, delta: float) -> tuple[PrivacySpent, ...]:
        """All views that the charges speak of, at ``delta``: for examples, for clients, or both.

        Declared terms that nothing was charged under yet are views at epsilon 0.

        Raises:
            NoValidBound: as the accountant, and when the charges leave the external view open.
        """
        found: list[PrivacySpent] = []
        used = self._used()
        turns = [t.releases for k in used for t in k.terms.turns if t.releases]
        if turns:
            said = compose(release for turn in dict.fromkeys(turns) for release in turn)
            found += [self._view("server", said, delta), self._view("external", said, delta)]
        aggregates = [release for k in used for release in k.terms.aggregate]
        if aggregates:
            said = compose(dict.fromkeys(aggregates))
            found.append(self._view("client-level", said, delta))
        return tuple(found)

    def epsilon(self, view: View, delta: float) -> float:
        """What counts against one adversary; errors as `spent`."""
        return self._price(self._counted, view, delta)

    def spent_by_client(self, delta: float) -> dict[int, float]:
        """Epsilon of every client that may have been asked, in the server's view, as counted."""
        found: dict[int, float] = {}
        for clients, history in self._histories(self._counted):
            price = _server_price(self._named(history), delta)
            found |= dict.fromkeys(clients.tolist(), price)
        return dict(sorted(found.items()))

    def _view(self, view: View, said: Composition, delta: float) -> PrivacySpent:
        certain = None
        if not self._is_certain_unknown:
            certain = self._price(self._consumed, view, delta)
        return PrivacySpent(
            view,
            said.unit,
            said.neighboring_relation,
            self._price(self._counted, view, delta),
            delta,
            ADVERSARIES[view],
            certain,
        )

    def _price(self, tally: _Tally, view: View, delta: float) -> float:
        if view == "server":
            histories = [self._named(history) for history in self._worst_histories(tally)]
            return max((_server_price(history, delta) for history in histories), default=0.0)
        if view == "external":
            counts = {self._external_counts(tally, c) for c in self._signatures(tally)}
            return max((_external_price(one, delta) for one in counts), default=0.0)
        releases = [
            release
            for index, times in sorted(tally.attempts.items())
            for release in repeated(self._known[index].terms.aggregate, times)
        ]
        return _accountant_price(tuple(releases), delta)

    def _used(self) -> list[_Known]:
        indices = {i for i, times in self._counted.attempts.items() if times}
        if self._now is not None:
            indices.add(self._now)
        return [self._known[i] for i in sorted(indices)]

    # the server's view: a history is ((turn, times), ...)
    def _worst_histories(self, tally: _Tally) -> Iterator["_History"]:
        """Those that no other one contains."""
        with_turns = [i for i in tally.served if self._known[i].has_turns]
        if len(with_turns) == 1:
            known, served = self._known[with_turns[0]], tally.served[with_turns[0]]
            turn_of = known.turn_of[: served.size]
            most = np.zeros(len(self._turns) + 1, dtype=np.int64)
            np.maximum.at(most, turn_of, served)  # a client without a turn goes to the last place
            yield from (((turn, int(n)),) for turn, n in enumerate(most[:-1].tolist()) if n)
            return
        distinct = [dict(history) for _, history in self._histories(tally)]
        for mine in distinct:
            if not any(mine is not other and _contains(other, mine) for other in distinct):
                yield tuple(sorted(mine.items()))

    def _histories(self, tally: _Tally) -> Iterator[tuple[Members, "_History"]]:
        """Groups of clients that were asked alike, with what they were asked for."""
        with_turns = [i for i in tally.served if self._known[i].has_turns]
        if not with_turns:
            return
        size = max(tally.served[i].size for i in with_turns)
        table = np.zeros((2 * len(with_turns), size), dtype=np.int64)
        for row, index in enumerate(with_turns):
            turn_of, served = self._known[index].turn_of, tally.served[index]
            table[2 * row, : served.size] = turn_of[: served.size]
            table[2 * row + 1, : served.size] = served
        table[::2][table[1::2] == 0] = -1
        columns, group = np.unique(table, axis=1, return_inverse=True)
        together: dict[_History, list[int]] = {}
        for place, column in enumerate(columns.T.tolist()):
            counts = Counter[int]()
            for turn, times in zip(column[::2], column[1::2], strict=True):
                if turn >= 0 and times:
                    counts[turn] += times
            if counts:
                together.setdefault(tuple(sorted(counts.items())), []).append(place)
        for history, places in together.items():
            yield np.flatnonzero(np.isin(group, places)), history

    def _named(self, history: "_History") -> frozenset[tuple[Releases, int]]:
        return frozenset((self._turns[turn], times) for turn, times in history)

    # the external view: a signature is a client and its turn under each terms that coins use
    def _signatures(self, tally: _Tally) -> list["_Signature"]:
        used = sorted({index for coin in tally.coins for index in coin})
        with_turns = [index for index in used if self._known[index].has_turns]
        if not with_turns:
            return []
        size = max(self._known[index].turn_of.size for index in with_turns)
        table = np.full((len(used), size), -1, dtype=np.int32)
        for row, index in enumerate(used):
            turn_of = self._known[index].turn_of
            table[row, : turn_of.size] = turn_of
        columns, firsts = np.unique(table, axis=1, return_index=True)
        return [
            _Signature(client, dict(zip(used, column, strict=True)))
            for client, column in zip(firsts.tolist(), columns.T.tolist(), strict=True)
            if max(column) >= 0
        ]

    def _external_counts(
        self, tally: _Tally, signature: "_Signature"
    ) -> frozenset[tuple[Releases, float, int]]:
        """(turn, probability, how often) of a client; a gap is filled where only one turn fits."""
        counts = Counter[tuple[Releases, float]]()
        own = {self._merged(coin, signature.turns) for coin in tally.coins} - {None}
        for coin, times in tally.coins.items():
            turn = self._merged(coin, signature.turns)
            if turn is None:
                others = self._turns_of_others(coin) or own
                if len(others) != 1:
                    raise NoValidBound(
                        f"external view: round {self._example_round[coin]} does not say what "
                        f"client {signature.client} would have released; name every client in "
                        "Charge.turns or Terms.turns"
                    )
                (turn,) = others
            assert turn is not None
            rate = max(self._known[i].terms.participation_probability for i in coin)
            counts[turn, rate] += times
        return frozenset((turn, rate, times) for (turn, rate), times in counts.items())

    def _merged(self, coin: Coin, turns: dict[int, int]) -> Releases | None:
        """What a client releases over all attempts that use a coin; None when nobody says."""
        named = [self._turns[turns[i]] for i in coin if turns[i] >= 0]
        return tuple(release for turn in named for release in turn) if named else None

    def _turns_of_others(self, coin: Coin) -> set[Releases | None]:
        only = _Tally(coins=Counter({coin: 1}))
        return {self._merged(coin, other.turns) for other in self._signatures(only)}


_History = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Signature:
    """A client and its turn under each terms."""

    client: int
    turns: dict[int, int]


class _Attempts:
    """How often each round was charged, as ranges: short while rounds follow each other."""

    def __init__(self, ranges: Iterable[tuple[int, int, int]] = (), covered: int = 0) -> None:
        self._ranges, self.covered = list(ranges), covered

    def note(self, first: int, last: int, attempt: int) -> None:
        if last < first:
            return
        if first <= self.covered + 1:
            self.covered = max(self.covered, last)
        if self._ranges and self._ranges[-1][1:] == (first - 1, attempt + 1):
            self._ranges[-1] = (self._ranges[-1][0], last, attempt + 1)
        else:
            self._ranges.append((first, last, attempt + 1))

    def of(self, server_round: int) -> int:
        fitting = (n for first, last, n in self._ranges if first <= server_round <= last)
        return max(fitting, default=0)

    def copied(self) -> "_Attempts":
        return _Attempts(self._ranges, self.covered)


def _check_cohort(known: _Known, cohort: Members) -> None:
    if cohort.size and cohort[-1] >= known.terms.population:
        raise ValueError(
            f"Expected clients < {known.terms.population} in a cohort, got {cohort[-1]}"
        )
    if known.has_turns and (known.turn_of[cohort] < 0).any():
        missing = cohort[known.turn_of[cohort] < 0][:5].tolist()
        raise ValueError(f"Expected a turn for every client of a cohort, none for {missing}")


def _length(reservation: Reservation) -> int:
    return reservation.last - reservation.first + 1


def _contains(other: dict[int, int], mine: dict[int, int]) -> bool:
    return all(other.get(turn, 0) >= times for turn, times in mine.items())


@lru_cache(maxsize=1 << 12)
def _server_price(history: frozenset[tuple[Releases, int]], delta: float) -> float:
    releases = [release for turn, times in history for release in repeated(turn, times)]
    return accountant.epsilon(releases, delta)


@lru_cache(maxsize=1 << 12)
def _external_price(counts: frozenset[tuple[Releases, float, int]], delta: float) -> float:
    return external_epsilon_of_counts({(turn, p): n for turn, p, n in counts}, delta)


@lru_cache(maxsize=1 << 12)
def _accountant_price(releases: Releases, delta: float) -> float:
    return accountant.epsilon(releases, delta)

"""What a tally of charges cost against an adversary; every epsilon is an upper bound."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from manifed.privacy import accountant
from manifed.privacy.adversaries import Adversary
from manifed.privacy.charges import Releases
from manifed.privacy.cohorts import Members
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import Unsampled, repeated
from manifed.privacy.participation import external_epsilon_of_counts
from manifed.privacy.tally import Book, Coin, Tally

_History = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Signature:
    """A client and its turn under each terms."""

    client: int
    turns: dict[int, int]


def price(book: Book, tally: Tally, adversary: Adversary, delta: float) -> float:
    """Epsilon of a tally against one adversary; errors as `Odometer.spent`."""
    if adversary.releases == "aggregate":
        totals = _seen_aggregates(book, tally) if adversary.sees_cohorts else [_all(book, tally)]
        return max((_accountant_price(total, delta) for total in totals), default=0.0)
    if adversary.sees_cohorts:
        histories = [_named(book, history) for history in _worst_histories(book, tally)]
        return max((_server_price(history, delta) for history in histories), default=0.0)
    counts = {_external_counts(book, tally, c) for c in _signatures(book, tally)}
    return max((_external_price(one, delta) for one in counts), default=0.0)


def spent_by_client(book: Book, tally: Tally, delta: float) -> dict[int, float]:
    """Epsilon of every client that may have been asked, against the server."""
    found: dict[int, float] = {}
    for clients, history in _histories(book, tally):
        price = _server_price(_named(book, history), delta)
        found |= dict.fromkeys(clients.tolist(), price)
    return dict(sorted(found.items()))


# cohorts seen: a history is ((turn, times), ...)
def _worst_histories(book: Book, tally: Tally) -> Iterator["_History"]:
    """Those that no other one contains."""
    with_turns = [i for i in tally.served if book.known[i].has_turns]
    if len(with_turns) == 1:
        known, served = book.known[with_turns[0]], tally.served[with_turns[0]]
        turn_of = known.turn_of[: served.size]
        most = np.zeros(len(book.turns) + 1, dtype=np.int64)
        np.maximum.at(most, turn_of, served)  # a client without a turn goes to the last place
        yield from (((turn, int(n)),) for turn, n in enumerate(most[:-1].tolist()) if n)
        return
    distinct = [dict(history) for _, history in _histories(book, tally)]
    for mine in distinct:
        if not any(mine is not other and _contains(other, mine) for other in distinct):
            yield tuple(sorted(mine.items()))


def _histories(book: Book, tally: Tally) -> Iterator[tuple[Members, "_History"]]:
    """Groups of clients that were asked alike, with what they were asked for."""
    with_turns = [i for i in tally.served if book.known[i].has_turns]
    if not with_turns:
        return
    size = max(tally.served[i].size for i in with_turns)
    table = np.zeros((2 * len(with_turns), size), dtype=np.int64)
    for row, index in enumerate(with_turns):
        turn_of, served = book.known[index].turn_of, tally.served[index]
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


def _named(book: Book, history: "_History") -> frozenset[tuple[Releases, int]]:
    return frozenset((book.turns[turn], times) for turn, times in history)


# aggregates
def _all(book: Book, tally: Tally) -> Releases:
    """Of every attempt, as sampled."""
    return tuple(
        release
        for index, times in sorted(tally.attempts.items())
        for release in repeated(book.known[index].terms.aggregate, times)
    )


def _seen_aggregates(book: Book, tally: Tally) -> Iterator[Releases]:
    """Of the attempts whose cohorts a client may have been in, unsampled: it is known who was."""
    used = [i for i in sorted(tally.served) if book.known[i].terms.aggregate]
    size = max((tally.served[i].size for i in used), default=0)
    table = np.zeros((len(used), size), dtype=np.int64)
    for row, index in enumerate(used):
        table[row, : tally.served[index].size] = tally.served[index]
    for column in np.unique(table, axis=1).T.tolist():
        yield tuple(
            release.model_copy(update={"sampling": Unsampled()})
            for index, times in zip(used, column, strict=True)
            for release in repeated(book.known[index].terms.aggregate, times)
        )


# cohorts unseen: a signature is a client and its turn under each terms that coins use
def _signatures(book: Book, tally: Tally) -> list["_Signature"]:
    used = sorted({index for coin in tally.coins for index in coin})
    with_turns = [index for index in used if book.known[index].has_turns]
    if not with_turns:
        return []
    size = max(book.known[index].turn_of.size for index in with_turns)
    table = np.full((len(used), size), -1, dtype=np.int32)
    for row, index in enumerate(used):
        turn_of = book.known[index].turn_of
        table[row, : turn_of.size] = turn_of
    columns, firsts = np.unique(table, axis=1, return_index=True)
    return [
        _Signature(client, dict(zip(used, column, strict=True)))
        for client, column in zip(firsts.tolist(), columns.T.tolist(), strict=True)
        if max(column) >= 0
    ]


def _external_counts(
    book: Book, tally: Tally, signature: "_Signature"
) -> frozenset[tuple[Releases, float, int]]:
    """(turn, probability, how often) of a client; a gap is filled where only one turn fits."""
    counts = Counter[tuple[Releases, float]]()
    own = {_merged(book, coin, signature.turns) for coin in tally.coins} - {None}
    for coin, times in tally.coins.items():
        turn = _merged(book, coin, signature.turns)
        if turn is None:
            others = _turns_of_others(book, coin) or own
            if len(others) != 1:
                raise NoValidBound(
                    f"external adversary: round {book.first_round[coin]} does not say what "
                    f"client {signature.client} would have released; name every client in "
                    "Charge.turns or Terms.turns"
                )
            (turn,) = others
        assert turn is not None
        rate = max(book.known[i].terms.participation_probability for i in coin)
        counts[turn, rate] += times
    return frozenset((turn, rate, times) for (turn, rate), times in counts.items())


def _merged(book: Book, coin: Coin, turns: dict[int, int]) -> Releases | None:
    """What a client releases over all attempts that use a coin; None when nobody says."""
    named = [book.turns[turns[i]] for i in coin if turns[i] >= 0]
    return tuple(release for turn in named for release in turn) if named else None


def _turns_of_others(book: Book, coin: Coin) -> set[Releases | None]:
    only = Tally(coins=Counter({coin: 1}))
    return {_merged(book, coin, other.turns) for other in _signatures(book, only)}


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

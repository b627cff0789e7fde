"""What a tally of charges cost against an adversary; every epsilon is an upper bound."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from manifed.privacy import accountant
from manifed.privacy.adversaries import Adversary
from manifed.privacy.charges import Releases, Terms
from manifed.privacy.cohorts import Members
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import Unsampled, repeated, seen_by
from manifed.privacy.participation import external_epsilon_of_counts
from manifed.privacy.tally import Coin, Register, Tally

_History = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Signature:
    """A client and its update under each terms, with the largest probability of those like it."""

    client: int
    updates: dict[int, int]
    rates: dict[int, float]


def price(register: Register, tally: Tally, adversary: Adversary, delta: float) -> float:
    """Epsilon of a tally against one adversary; errors as `Odometer.spent`."""
    if adversary.releases == "aggregate":
        totals = (
            _seen_aggregates(register, tally) if adversary.sees_cohorts else [_all(register, tally)]
        )
        return max((_accountant_price(total, delta) for total in totals), default=0.0)
    if adversary.sees_cohorts:
        histories = [
            frozenset((seen_by(adversary.knows, update), times) for update, times in named)
            for named in (_named(register, one) for one in _worst_histories(register, tally))
        ]
        return max((_server_price(history, delta) for history in histories), default=0.0)
    found = {_external_counts(register, tally, c) for c in _signatures(register, tally)}
    counts = {
        frozenset((seen_by(adversary.knows, update), p, times) for update, p, times in one)
        for one in found
    }
    return max((_external_price(one, delta) for one in counts), default=0.0)


def spent_by_client(register: Register, tally: Tally, delta: float) -> dict[int, float]:
    """Epsilon of every client that may have been asked, against the server."""
    found: dict[int, float] = {}
    for clients, history in _histories(register, tally):
        named = _named(register, history)
        seen = frozenset((seen_by("nothing", update), times) for update, times in named)
        price = _server_price(seen, delta)
        found |= dict.fromkeys(clients.tolist(), price)
    return dict(sorted(found.items()))


# cohorts seen: a history is ((update, times), ...)
def _worst_histories(register: Register, tally: Tally) -> Iterator["_History"]:
    """Those that no other one contains."""
    with_updates = [i for i in tally.served if register.known[i].has_updates]
    if len(with_updates) == 1:
        known, served = register.known[with_updates[0]], tally.served[with_updates[0]]
        update_of = known.update_of[: served.size]
        most = np.zeros(len(register.updates) + 1, dtype=np.int64)
        np.maximum.at(most, update_of, served)  # a client without an update goes to the last place
        yield from (((update, int(n)),) for update, n in enumerate(most[:-1].tolist()) if n)
        return
    distinct = [dict(history) for _, history in _histories(register, tally)]
    for mine in distinct:
        if not any(mine is not other and _contains(other, mine) for other in distinct):
            yield tuple(sorted(mine.items()))


def _histories(register: Register, tally: Tally) -> Iterator[tuple[Members, "_History"]]:
    """Groups of clients that were asked alike, with what they were asked for."""
    with_updates = [i for i in tally.served if register.known[i].has_updates]
    if not with_updates:
        return
    size = max(tally.served[i].size for i in with_updates)
    table = np.zeros((2 * len(with_updates), size), dtype=np.int64)
    for row, index in enumerate(with_updates):
        update_of, served = register.known[index].update_of, tally.served[index]
        table[2 * row, : served.size] = update_of[: served.size]
        table[2 * row + 1, : served.size] = served
    table[::2][table[1::2] == 0] = -1
    columns, group = np.unique(table, axis=1, return_inverse=True)
    together: dict[_History, list[int]] = {}
    for place, column in enumerate(columns.T.tolist()):
        counts = Counter[int]()
        for update, times in zip(column[::2], column[1::2], strict=True):
            if update >= 0 and times:
                counts[update] += times
        if counts:
            together.setdefault(tuple(sorted(counts.items())), []).append(place)
    for history, places in together.items():
        yield np.flatnonzero(np.isin(group, places)), history


def _named(register: Register, history: "_History") -> frozenset[tuple[Releases, int]]:
    return frozenset((register.updates[update], times) for update, times in history)


# aggregates
def _all(register: Register, tally: Tally) -> Releases:
    """Of every attempt, as sampled."""
    return tuple(
        release
        for index, times in sorted(tally.attempts.items())
        for release in repeated(register.known[index].terms.aggregate, times)
    )


def _seen_aggregates(register: Register, tally: Tally) -> Iterator[Releases]:
    """Of the attempts whose cohorts a client may have been in, unsampled: it is known who was."""
    used = [i for i in sorted(tally.served) if register.known[i].terms.aggregate]
    size = max((tally.served[i].size for i in used), default=0)
    table = np.zeros((len(used), size), dtype=np.int64)
    for row, index in enumerate(used):
        table[row, : tally.served[index].size] = tally.served[index]
    for column in np.unique(table, axis=1).T.tolist():
        yield tuple(
            release.model_copy(update={"sampling": Unsampled()})
            for index, times in zip(used, column, strict=True)
            for release in repeated(register.known[index].terms.aggregate, times)
        )


# cohorts unseen: a signature is a client and its update under each terms that coins use
def _signatures(register: Register, tally: Tally) -> list["_Signature"]:
    used = sorted({index for coin in tally.coins for index in coin})
    with_updates = [index for index in used if register.known[index].has_updates]
    if not with_updates:
        return []
    size = max(register.known[index].update_of.size for index in with_updates)
    table = np.full((len(used), size), -1, dtype=np.int32)
    for row, index in enumerate(used):
        update_of = register.known[index].update_of
        table[row, : update_of.size] = update_of
    columns, firsts, group = np.unique(table, axis=1, return_index=True, return_inverse=True)
    rates = np.stack([_largest_rates(register.known[index].terms, group) for index in used])
    return [
        _Signature(
            client,
            dict(zip(used, column, strict=True)),
            dict(zip(used, rate, strict=True)),
        )
        for client, column, rate in zip(
            firsts.tolist(), columns.T.tolist(), rates.T.tolist(), strict=True
        )
        if max(column) >= 0
    ]


def _largest_rates(terms: Terms, group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each group of clients that release alike: a price grows with the probability."""
    found = np.zeros(int(group.max()) + 1)
    each = np.full(group.size, terms.participation_probability)
    each[: len(terms.probabilities)] = terms.probabilities or each[:0]
    np.maximum.at(found, group.ravel(), each)
    return found


def _external_counts(
    register: Register, tally: Tally, signature: "_Signature"
) -> frozenset[tuple[Releases, float, int]]:
    """(update, probability, how often) of a client; a gap is filled where only one update fits."""
    counts = Counter[tuple[Releases, float]]()
    own = {_merged(register, coin, signature.updates) for coin in tally.coins} - {None}
    for coin, times in tally.coins.items():
        update = _merged(register, coin, signature.updates)
        if update is None:
            others = _updates_of_others(register, coin) or own
            if len(others) != 1:
                raise NoValidBound(
                    f"external adversary: round {register.first_round[coin]} does not say what "
                    f"client {signature.client} would have released; name every client in "
                    "Charge.turns or Terms.updates"
                )
            (update,) = others
        assert update is not None
        rate = max(signature.rates[i] for i in coin)
        counts[update, rate] += times
    return frozenset((update, rate, times) for (update, rate), times in counts.items())


def _merged(register: Register, coin: Coin, updates: dict[int, int]) -> Releases | None:
    """What a client releases over all attempts that use a coin; None when nobody says."""
    named = [register.updates[updates[i]] for i in coin if updates[i] >= 0]
    return tuple(release for update in named for release in update) if named else None


def _updates_of_others(register: Register, coin: Coin) -> set[Releases | None]:
    only = Tally(coins=Counter({coin: 1}))
    return {_merged(register, coin, other.updates) for other in _signatures(register, only)}


def _contains(other: dict[int, int], mine: dict[int, int]) -> bool:
    return all(other.get(update, 0) >= times for update, times in mine.items())


@lru_cache(maxsize=1 << 12)
def _server_price(history: frozenset[tuple[Releases, int]], delta: float) -> float:
    releases = [release for update, times in history for release in repeated(update, times)]
    return accountant.epsilon(releases, delta)


@lru_cache(maxsize=1 << 12)
def _external_price(counts: frozenset[tuple[Releases, float, int]], delta: float) -> float:
    return external_epsilon_of_counts({(update, p): n for update, p, n in counts}, delta)


@lru_cache(maxsize=1 << 12)
def _accountant_price(releases: Releases, delta: float) -> float:
    return accountant.epsilon(releases, delta)

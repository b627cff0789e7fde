"""From the charges in a ledger to what each adversary can have learnt: realised accounting.

A charge is written before the letters of a round leave, so aborted attempts and retries are paid
like any other. All functions are pure; every epsilon is an upper bound.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from privacy import accountant
from privacy.chain import Entry
from privacy.charges import CHARGE, Charge, Releases, TurnReleases, charges
from privacy.composition import Composition, NoValidBound, compose
from privacy.events import NeighboringRelation, PrivacyUnit, repeated
from privacy.participation import external_epsilon_of_rounds

__all__ = [
    "CHARGE",
    "Charge",
    "PrivacySpent",
    "TurnReleases",
    "charges",
    "external_spent",
    "spent",
    "spent_by_client",
    "would_exceed",
]

View = Literal["server", "external", "client-level"]

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
    delta: float
    adversary: str


def spent(paid: Sequence[Charge], *, delta: float) -> tuple[PrivacySpent, ...]:
    """All views that the charges speak of, at ``delta``: for examples, for clients, or both.

    Raises:
        NoValidBound: as the accountant, and when the charges leave the external view open.
    """
    found: list[PrivacySpent] = []
    turns = [turn.releases for charge in paid for turn in charge.turns if turn.releases]
    if turns:
        said = compose(release for turn in dict.fromkeys(turns) for release in turn)
        server = _worst(_served(paid), delta)
        found.append(_view("server", said, server, delta))
        found.append(_view("external", said, external_spent(paid, delta=delta), delta))
    aggregates = [release for charge in paid for release in charge.aggregate]
    if aggregates:
        whole = compose(aggregates)
        found.append(_view("client-level", whole, accountant.epsilon_of(whole, delta), delta))
    return tuple(found)


def spent_by_client(paid: Iterable[Charge], *, delta: float) -> dict[int, float]:
    """Realised epsilon of every client that was ever sent a letter, in the server's view.

    A client pays for each attempt whose cohort it was in, whether its reply came or not.
    """
    histories = _served(paid)
    price = {history: _price(history, delta) for history in set(histories.values())}
    return {partition: price[history] for partition, history in sorted(histories.items())}


def external_spent(paid: Sequence[Charge], *, delta: float) -> float:
    """Epsilon of the worst client that the charges name, for who sees models and not cohorts.

    A priori: every named client is priced for every round, drawn or not, by the turn it would have
    made. Attempts that use one cohort draw are one coin.

    Raises:
        NoValidBound: when a charge does not say what a client would have released.
    """
    rounds = _draws(paid)
    named = {p for round_ in rounds for p in round_.turns}
    histories = {_history(rounds, partition) for partition in named}
    return max(
        (external_epsilon_of_rounds(_expanded(history), delta) for history in histories),
        default=0.0,
    )


def would_exceed(
    entries: Iterable[Entry],
    next_charge: Charge,
    *,
    max_epsilon: float,
    delta: float,
    view: View | None = None,
) -> bool:
    """Whether paying ``next_charge`` would bring a view above ``max_epsilon`` at ``delta``.

    ``view`` None asks the strictest of those that exist (server and client-level; external only
    when named).
    """
    after = (*charges(entries), next_charge)
    asked = ("server", "client-level") if view is None else (view,)
    return any(s.epsilon > max_epsilon for s in spent(after, delta=delta) if s.view in asked)


def _view(view: View, said: Composition, epsilon: float, delta: float) -> PrivacySpent:
    return PrivacySpent(
        view, said.unit, said.neighboring_relation, epsilon, delta, ADVERSARIES[view]
    )


# -- the server's view -------------------------------------------------------------------------
History = frozenset[tuple[Releases, int]]


def _served(paid: Iterable[Charge]) -> dict[int, History]:
    """For every client: which turns it was asked for, and how often."""
    counts: dict[int, Counter[int]] = {}
    known: dict[Releases, int] = {}
    for charge in paid:
        cohort = set(charge.partitions)
        for turn in charge.turns:
            index = known.setdefault(turn.releases, len(known))
            for partition in cohort.intersection(turn.partitions):
                counts.setdefault(partition, Counter())[index] += 1
    turns = list(known)
    return {
        partition: frozenset((turns[index], times) for index, times in count.items())
        for partition, count in counts.items()
    }


def _worst(histories: dict[int, History], delta: float) -> float:
    """The largest epsilon; histories that another one contains need no price."""
    distinct = [dict(history) for history in set(histories.values())]
    largest = [
        mine
        for mine in distinct
        if not any(mine is not other and _contains(other, mine) for other in distinct)
    ]
    return max((_price(frozenset(one.items()), delta) for one in largest), default=0.0)


def _contains(other: dict[Releases, int], mine: dict[Releases, int]) -> bool:
    return all(other.get(turn, 0) >= times for turn, times in mine.items())


def _price(history: History, delta: float) -> float:
    releases = [release for turn, times in history for release in repeated(turn, times)]
    return accountant.epsilon(releases, delta)


# -- the external view -------------------------------------------------------------------------
@dataclass(frozen=True)
class _Draw:
    """One cohort draw: what each client releases if it is drawn, over all attempts that use it."""

    server_round: int
    probability: float
    turns: dict[int, Releases]


def _draws(paid: Iterable[Charge]) -> list[_Draw]:
    draws: dict[tuple[int, int], _Draw] = {}
    for charge in paid:
        own = charge.attempt if charge.cohort_attempt is None else charge.cohort_attempt
        key = (charge.server_round, own)
        earlier = draws[key].turns if key in draws else {}
        turns = {p: turn.releases for turn in charge.turns for p in turn.partitions}
        together = {p: earlier.get(p, ()) + turns.get(p, ()) for p in {**earlier, **turns}}
        draws[key] = _Draw(charge.server_round, charge.participation_probability, together)
    return list(draws.values())


def _history(rounds: Sequence[_Draw], partition: int) -> frozenset[tuple[Releases, float, int]]:
    """(turn, probability, how often) of one client; a gap is filled where only one turn fits."""
    counts = Counter[tuple[Releases, float]]()
    own = {draw.turns[partition] for draw in rounds if partition in draw.turns}
    for draw in rounds:
        turn = draw.turns.get(partition)
        if turn is None:
            others = set(draw.turns.values()) or own
            if len(others) != 1:
                raise NoValidBound(
                    f"external view: round {draw.server_round} does not say what client "
                    f"{partition} would have released; name every client in Charge.turns"
                )
            (turn,) = others
        counts[turn, draw.probability] += 1
    return frozenset((turn, p, times) for (turn, p), times in counts.items())


def _expanded(
    history: frozenset[tuple[Releases, float, int]],
) -> Iterable[tuple[Releases, float]]:
    return [(turn, p) for turn, p, times in history for _ in range(times)]

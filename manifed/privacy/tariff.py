"""Terms and tariffs: what clients release in which round, how cohorts are drawn, the price.

`Terms` say it for rounds that are alike, a `Tariff` for all rounds of a run. `Tariff.ahead` prices
cohort draws *a priori*: from what is planned and from how many were made, never from who was drawn.
It is what a budget is asked with, so that no stop of a run depends on who was drawn. Why that
matters, and what retries and failed rounds do:

**Who sees no cohorts.** Let K be the most draws that a run may make: rounds times attempts, at most
what the budget pays. Show an adversary more than an outsider sees: every cohort and every upload of
all K draws, those included that the run never came to. Each draw is a fresh coin that depends
neither on the data nor on the past; a record's loss in it is 0 with probability 1 - rho and that of
one client update with probability rho, so K draws cost the K-fold mixture of
privacy/epsilon_bounds.py. The models, the round in which a run stopped, and which attempts were
retried or failed are a function of what that adversary has and of randomness that does not depend
on the record: they cost no more. Pricing only the draws that were *made* is no bound when their
number depends on the cohorts: with two clients, one drawn at a time, and one of them always
failing, a retried round that needed one draw was certainly the other's. Hence a statement prices K,
and a retry policy multiplies it.

**Where terms differ by round** it matters which round a draw was of: every attempt is priced as
that round's. Against who sees cohorts the attempts that were made count, each as if everybody had
been in it. Against who sees none every round up to the one that is asked for counts with all the
attempts it may have, whether they were made or not: K is again fixed by the plan alone.

Presumed: whether a client fails does not depend on its records (a failure would be a release of
its own), and whether the server's process crashes or is resumed does not depend on the cohorts. A
draw that a crash makes necessary is added to K.

A set of clients as short text: ranges or a bitset, whichever is shorter.

``"0-4,7,9-12"`` names clients by ranges, ``"b:"`` and base64 by bits (client i is bit i % 8 of byte
i // 8); the empty text is nobody. Members are sorted arrays of distinct int64.
"""

import base64
import binascii
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, chain, islice, pairwise
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from manifed.fields import Document, Frozen, Probability, WholeNumber
from manifed.privacy.epsilon_bounds import a_priori_epsilon, external_epsilon
from manifed.privacy.events import (
    Adversary,
    PoissonSampled,
    Releases,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
    seen_by,
    unsampled,
)

_Members = NDArray[np.int64]


def encode(partitions: Iterable[int], population: int | None = None) -> str:
    """Writes the distinct members of a cohort as the shorter of two texts.

    Raises:
        ValueError: for a negative one, or one outside the population.
    """
    members = np.fromiter(partitions, dtype=np.int64)
    if not members.size:
        return ""
    least, most = int(members.min()), int(members.max())
    if least < 0:
        raise ValueError(f"Expected clients >= 0 in a cohort, got {least}")
    if population is not None and most >= population:
        raise ValueError(f"Expected clients < {population}, got {most}")
    room = np.zeros(most + 3, dtype=bool)  # one place beside each end
    bits = room[1:-1]
    bits[members] = True
    packed = np.packbits(bits, bitorder="little").tobytes()
    bitset = "b:" + base64.b64encode(packed).decode("ascii")
    edges = np.flatnonzero(room[1:] != room[:-1])
    if len(edges) - 1 > len(bitset):
        return bitset
    runs = zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True)
    ranges = [f"{a}-{b}" if a < b else str(a) for a, b in runs]
    return min(",".join(ranges), bitset, key=len)


def decode(text: str, population: int) -> _Members:
    """Reads the members that ``text`` names, all below ``population``.

    Raises:
        ValueError: for text that `encode` does not write, or a client outside the population.
    """
    if text.startswith("b:"):
        try:
            data = base64.b64decode(text[2:], validate=True)
        except binascii.Error:
            raise ValueError(f"Expected a cohort in base64, got {text[:40]!r}") from None
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        found = np.flatnonzero(bits.view(bool)).astype(np.int64)
        if found.size and found[-1] >= population:
            raise ValueError(f"Expected clients < {population} in a cohort, got {found[-1]}")
        return found
    if text and not re.fullmatch(r"\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*", text):
        raise ValueError(f"Expected a cohort like '0-4,7', got {text[:40]!r}")
    pieces = [np.zeros(0, dtype=np.int64)]
    before = -1
    for piece in text.split(",") if text else ():
        first, _, last = piece.partition("-")
        low = int(first)
        high = int(last or first)
        if not before < low <= high < population:
            raise ValueError(
                f"Expected a cohort in order and of clients < {population}, got {text[:40]!r}"
            )
        pieces.append(np.arange(low, high + 1, dtype=np.int64))
        before = high
    return np.concatenate(pieces)


_MOST_CLIENTS: Final = 10**8
"""A ledger that claims more is refused before memory is spent on it."""


class ClientReleases(Frozen):
    """The releases that each of ``partitions`` makes in one client update."""

    partitions: Annotated[
        tuple[int, ...],
        BeforeValidator(
            lambda named: decode(named, _MOST_CLIENTS).tolist() if isinstance(named, str) else named
        ),
        PlainSerializer(encode, when_used="json"),
    ]
    releases: Releases


class Terms(Frozen):
    """The terms of a round: what clients and server release, and how its cohort is drawn."""

    population: int = Field(ge=1, le=_MOST_CLIENTS)
    """Clients are 0 ... population - 1."""
    updates: tuple[ClientReleases, ...] = ()
    """What clients release of their own: each client stands in one, or there are none."""
    sampling: Sampling = Unsampled()
    """How cohorts are drawn."""
    aggregate: Releases = ()
    """What the server releases about whole clients in a round, its sampling included."""
    planned_draws: WholeNumber = 0
    """The most cohort draws that the run may make (under these terms, where it plans several); an
    outsider is priced for at least these, because how many were made can tell who was in them."""
    num_examples: tuple[int, ...] = ()
    """N_i of every client, where they are declared and not counted."""
    probabilities: tuple[Probability, ...] = ()
    """p_i of every client, where they differ; ``sampling`` is then by the largest of them."""

    @model_validator(mode="after")
    def _every_client_is_said_once(self) -> "Terms":
        named = [client for one in self.updates for client in one.partitions]
        if self.updates and sorted(named) != list(range(self.population)):
            raise ValueError(
                f"Expected each of {self.population} clients in one update, got {named[:10]}"
            )
        each = self.probabilities
        if each and len(each) != self.population:
            raise ValueError(
                f"Expected a probability for each of {self.population} clients, got {len(each)}"
            )
        if each and self.sampling != PoissonSampled(sampling_probability=max(each)):
            raise ValueError(
                f"Expected Poisson sampling by the largest probability {max(each):g}, got "
                f"{self.sampling}"
            )
        return self

    @property
    def is_drawn(self) -> bool:
        """Whether any client may miss a round."""
        return min(self.probabilities, default=self.participation_probability) < 1

    @property
    def participation_probability(self) -> float:
        """The probability that a given client is in a cohort; the largest where they differ."""
        if isinstance(self.sampling, PoissonSampled):
            return self.sampling.sampling_probability
        if isinstance(self.sampling, SampledWithoutReplacement):
            return self.sampling.sample_size / self.sampling.population
        return 1.0


Made = tuple[int, ...]
"""How many draws were made under each line of a tariff, without zeros at the end."""


@dataclass(frozen=True)
class Tariff:
    """The terms of all rounds: one line for every round, or one for each stretch of rounds."""

    lines: tuple[Terms, ...]
    """The last one holds on."""
    lengths: tuple[int, ...] = ()
    """How many rounds each of several lines is of; () for one each."""
    attempts: int = 1
    """The most of one round, crashes aside; asked where there are several lines."""

    def __post_init__(self) -> None:
        """Refuse stretches of rounds whose cohorts are drawn: it matters how often each was."""
        if self.lengths and self.is_drawn:
            raise ValueError(
                "Expected rounds one by one where cohorts are drawn, got stretches of them"
            )

    @cached_property
    def is_by_round(self) -> bool:
        """Whether it matters which round a draw is of."""
        return len(self.lines) > 1

    @property
    def is_drawn(self) -> bool:
        """Whether any client may miss a round."""
        return self.lines[0].is_drawn

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The last round of each line."""
        return tuple(accumulate(self.lengths or [1] * len(self.lines)))

    def of(self, server_round: int) -> Terms:
        """Returns the terms of a round."""
        return self.lines[min(bisect_left(self.ends, server_round), len(self.lines) - 1)]

    def counted(self, ranges: Iterable[tuple[int, int, int]]) -> Made:
        """Returns the draws of ranges (first round, last round, attempts) of rounds from 1 on.

        Where ranges meet the most attempts count; what lies behind the last line counts with it.
        """
        given = [(max(1, first), last + 1, n) for first, last, n in ranges]
        if not self.is_by_round:
            return (sum(n * (stop - start) for start, stop, n in given),)
        cuts = {cut for start, stop, _ in given for cut in (start, stop)}
        total = [0] * len(self.lines)
        for start, stop in pairwise(sorted(cuts | {end + 1 for end in self.ends[:-1]})):
            most = max((n for low, high, n in given if low <= start and stop <= high), default=0)
            total[min(bisect_left(self.ends, start), len(total) - 1)] += most * (stop - start)
        while total and not total[-1]:
            total.pop()
        return tuple(total)

    def once(self, draws: int) -> Made:
        """Returns so many draws, or the rounds 1 to this one drawn once each."""
        return self.counted([(1, draws, 1)])

    def _hides_cohorts(self, adversary: Adversary) -> bool:
        """Whether a client's part in a draw is a coin to the adversary."""
        return not adversary.sees_cohorts and self.is_drawn

    def slots(self, adversary: Adversary, made: Made) -> Made:
        """Returns how often each line counts when so many draws were made under it."""
        is_reckoned = self.is_by_round and self._hides_cohorts(adversary)
        return tuple(max(n, self.attempts) for n in made) if is_reckoned else made

    def planned(self, draws: int) -> "Tariff":
        """Returns the tariff of a run that may make so many draws; of several lines, rounds."""
        bare = [terms.model_copy(update={"planned_draws": 0}) for terms in self.lines]
        count = Counter(bare[:draws])
        is_each = self.is_by_round and self.is_drawn
        lines = tuple(
            terms.model_copy(
                update={"planned_draws": self.attempts * count[terms] if is_each else draws}
            )
            for terms in bare
        )
        return replace(self, lines=lines)

    @cached_property
    def plan(self) -> tuple[Terms, ...]:
        """The terms that an outsider is priced for where lines differ, with ``planned_draws``."""
        lines = self.lines if self.is_by_round and self.is_drawn else ()
        return tuple(dict.fromkeys(terms for terms in lines if terms.planned_draws))

    @cached_property
    def ahead(self) -> Callable[[Adversary, Made, float], float]:
        """Returns epsilon of the worst client after these draws, before any cohort is known.

        It raises `NoValidBound` as the accountant does.
        """
        return cache(self._price)

    def __getstate__(self) -> Document:
        """What is pickled: all but the cache of prices, which cannot be."""
        return {name: one for name, one in vars(self).items() if name != "ahead"}

    def _price(self, adversary: Adversary, made: Made, delta: float) -> float:
        """The largest price of a client's run, by coins to who sees no cohorts."""
        rate = self.lines[0].participation_probability
        is_coin = adversary.releases == "updates" and self._hides_cohorts(adversary)
        coin = rate if is_coin else 1.0
        runs = self._runs
        if adversary.releases == "aggregate":
            is_seen = adversary.sees_cohorts
            each = [unsampled(t.aggregate) if is_seen else t.aggregate for t in self.lines]
            runs = {tuple(each)}
        worst = 0.0
        slots = self.slots(adversary, made)
        for run in runs:
            counts = Counter[Releases]()
            for update, times in zip(run, slots, strict=False):
                counts[seen_by(adversary.knows, update)] += times

            def price(most: int, left: float, counts: Counter[Releases] = counts) -> float:
                rounds = ((update, coin, min(n, most)) for update, n in counts.items())
                return external_epsilon(tuple(rounds), left)

            found = a_priori_epsilon(
                price,
                participation_probability=1.0
                if self.is_by_round or not adversary.sees_cohorts
                else rate,
                num_rounds=max(counts.values(), default=0),
                delta=delta,
            )
            worst = max(worst, found)
        return worst

    @cached_property
    def _runs(self) -> set[tuple[Releases, ...]]:
        """What a client releases under each line; several where clients differ."""
        said = [{i: one.releases for one in t.updates for i in one.partitions} for t in self.lines]
        return {tuple(line.get(i, ()) for line in said) for i in range(self.lines[0].population)}


# -- rounds that are reserved together ---------------------------------------------------------
@dataclass(frozen=True)
class Block:
    """The rounds ``first`` to ``last``, reserved together, each at the price of the dearest.

    What a client releases in them differs in noise multipliers alone, and none is more than 1 %
    above the least of its kind. The block is charged the least ones in every round, so that at most
    1 % of noise is given away, wherever a run stops and whoever asks again.
    """

    first: int
    last: int
    dearest: Mapping[int, tuple[int, ...]]
    """The round in which each event of a client costs most, by the client's number of examples."""

    def charged(self, size: int, releases: Callable[[int], Releases]) -> Releases:
        """Returns the charge of each round of the block, out of what rounds release."""
        if self.first == self.last:
            return releases(self.first)
        rounds = self.dearest[size]
        found = {r: releases(r) for r in set(rounds)}
        return tuple(found[r][i] for i, r in enumerate(rounds))


def blocks(rounds: Iterable[Mapping[int, Releases]], most: int) -> Iterator[Block]:
    """Cuts the rounds 1, 2, ... into blocks of at most ``most``, greedily from the left.

    ``rounds`` say what clients release, by their number of examples.
    """
    first = 1
    kinds = dict[int, Releases]()
    low = high = np.zeros(0)
    dearest = np.zeros(0, dtype=np.int64)
    for r, released in enumerate(chain(rounds, [dict[int, Releases]()]), 1):
        found = {  # what must be alike: all but the multiplier
            size: tuple(e.model_copy(update={"noise_multiplier": 1.0}) for e in events)
            for size, events in released.items()
        }
        z = np.array([e.noise_multiplier for events in released.values() for e in events])
        if (
            found != kinds
            or r - first == most
            or (np.maximum(z, high) > 1.01 * np.minimum(z, low)).any()
        ):
            if kinds:
                rest = iter(dearest.tolist())
                each = {size: tuple(islice(rest, len(events))) for size, events in kinds.items()}
                yield Block(first, r - 1, each)
            first = r
            kinds = found
            low = high = z
            dearest = np.full(len(z), r)
        dearest = np.where(z < low, r, dearest)
        low = np.minimum(z, low)
        high = np.maximum(z, high)

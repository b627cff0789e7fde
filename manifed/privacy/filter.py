"""The filter: refuses the cohort draw that a budget does not pay, fixed before any is made.

A *draw* is one attempt of one round: a fresh cohort, charged before its messages leave. Draw k is
refused when k draws would cost more than the budget *a priori*, against the budget's adversary.

Guarantee: the price of k draws is a function of what is planned and of k alone, so no stop depends
on who was drawn. Why that matters, and what retries and failed rounds do:

**Who sees no cohorts.** Let K be the most draws that a run may make: rounds times attempts, at most
what the budget pays. Show an adversary more than an outsider sees: every cohort and every upload of
all K draws, those included that the run never came to. Each draw is a fresh coin that depends
neither on the data nor on the past; a record's loss in it is 0 with probability 1 - rho and that of
one client update with probability rho, so K draws cost the K-fold mixture of
privacy/participation.py. The models, the round in which a run stopped, and which attempts were
retried or failed are a function of what that adversary has and of randomness that does not depend
on the record: they cost no more. Pricing only the draws that were *made* is no bound when their
number depends on the cohorts: with two clients, one drawn at a time, and one of them always
failing, a retried round that needed one draw was certainly the other's. Hence a statement prices K,
and a retry policy multiplies it.

**Where releases depend on the round** (`Schedule`) it matters which round a draw was of: every
attempt is priced as that round's. Against who sees cohorts the attempts that were made count, each
as if everybody had been in it. Against who sees none every round up to the one that is asked for
counts with all the attempts it may have, whether they were made or not: K is again fixed by the
plan alone.

Presumed: whether a client fails does not depend on its records (a failure would be a release of
its own), and whether the server's process crashes or is resumed does not depend on the cohorts. A
draw that a crash makes necessary is added to K.
"""

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from manifed.errors import BudgetExhausted
from manifed.privacy import accountant, participation
from manifed.privacy.adversaries import Adversary
from manifed.privacy.charges import Releases, Terms
from manifed.privacy.events import Unsampled, repeated, seen_by
from manifed.privacy.odometer import Odometer
from manifed.privacy.tally import stretched


@dataclass(frozen=True)
class Draw:
    """What one cohort draw may release, whoever is drawn."""

    participation_probability: float
    """The largest of any client."""
    updates: frozenset[Releases] = frozenset()
    """What a client that takes part releases; several where clients differ."""
    aggregate: Releases = ()
    """What the server releases about clients, the sampling of the cohort included."""

    @classmethod
    def of(cls, terms: Terms) -> "Draw":
        """The draw of a ledger's terms."""
        updates = frozenset(one.releases for one in terms.updates)
        return cls(terms.participation_probability, updates, terms.aggregate)


Made = int | tuple[int, ...]
"""How many draws were made; where it matters of which, those of the rounds 1, 2, ...; a number then
says that each of so many rounds was drawn once."""


@dataclass(frozen=True)
class Schedule:
    """What the draws of a run release where it depends on the round."""

    updates: frozenset[tuple[Releases, ...]]
    """What a client releases in rounds 1, 2, ..., the last one holding on; several where clients
    differ."""
    participation_probability: float = 1.0
    """The largest of any client."""
    attempts: int = 1
    """The most of one round, crashes aside."""
    lengths: tuple[int, ...] = ()
    """How many rounds each release of a run stands for, where everybody is in each; () for one.
    Counts, here and in `slots`, are then of all attempts of these rounds."""
    is_drawn: bool = False
    """Whether a client may miss a round although another may not."""

    def __post_init__(self) -> None:
        """Refuse stretches of rounds whose cohorts are drawn: it matters how often each was."""
        if self.lengths and self._misses_rounds:
            raise ValueError(
                "Expected rounds one by one where cohorts are drawn, got stretches of them"
            )

    @classmethod
    def of(
        cls, rounds: Sequence[Terms], attempts: int = 1, lengths: tuple[int, ...] = ()
    ) -> "Schedule":
        """The schedule of the terms of rounds 1, 2, ..., with so many attempts each at most.

        With ``lengths`` the terms are of stretches of rounds.
        """
        by_client: dict[int, list[Releases]] = {}
        for terms in rounds:
            said = {i: update.releases for update in terms.updates for i in update.partitions}
            for i in range(terms.population):
                by_client.setdefault(i, []).append(said.get(i, ()))
        runs = frozenset(tuple(one) for one in by_client.values())
        first = rounds[0]
        rate, is_drawn = first.participation_probability, first.is_drawn
        return cls(runs, rate, attempts, lengths, is_drawn)

    def hides_cohorts(self, adversary: Adversary) -> bool:
        """Whether a client's part in a draw is a coin to the adversary."""
        return not adversary.sees_cohorts and self._misses_rounds

    @property
    def _misses_rounds(self) -> bool:
        return self.is_drawn or self.participation_probability < 1

    def slots(self, adversary: Adversary, made: Made) -> tuple[int, ...]:
        """How often each of the rounds 1, 2, ... counts when it was drawn as often as ``made``."""
        drawn = self._each_once(made) if isinstance(made, int) else made
        least = self.attempts if self.hides_cohorts(adversary) else 0
        return tuple(max(n, least) for n in drawn)

    def _each_once(self, rounds: int) -> tuple[int, ...]:
        """The counts of so many rounds, drawn once each."""
        if not self.lengths:
            return (1,) * rounds
        return stretched([(1, rounds, 1)], self.lengths)

    def made(self, odometer: Odometer) -> tuple[int, ...]:
        """The counts of what an odometer counts."""
        if not self.lengths:
            return odometer.attempts_by_round()
        return odometer.attempts_by_stretch(self.lengths)

    def price(self, adversary: Adversary, slots: tuple[int, ...], delta: float) -> float:
        """Epsilon of the worst client when each round counts so often."""
        worst = 0.0
        for run in self.updates:
            counted = Counter[Releases]()
            for i, times in enumerate(slots):
                counted[seen_by(adversary.knows, run[min(i, len(run) - 1)])] += times
            if self.hides_cohorts(adversary):
                rate = self.participation_probability
                rounds = {(update, rate): n for update, n in counted.items()}
                found = participation.external_epsilon_of_counts(rounds, delta)
            else:
                all_of_them = (repeated(update, n) for update, n in counted.items())
                found = accountant.epsilon(chain.from_iterable(all_of_them), delta)
            worst = max(worst, found)
        return worst


@lru_cache(maxsize=1 << 14)
def a_priori(draw: Draw | Schedule, adversary: Adversary, draws: Made, delta: float) -> float:
    """Epsilon of the worst client after ``draws`` draws, before any cohort is known.

    Raises:
        NoValidBound: as the accountant.
    """
    if not draws:
        return 0.0
    if isinstance(draw, Schedule):
        return draw.price(adversary, draw.slots(adversary, draws), delta)
    draws = draws if isinstance(draws, int) else sum(draws)
    if adversary.releases == "aggregate" and not adversary.sees_cohorts:
        return accountant.epsilon(repeated(draw.aggregate, draws), delta)
    updates = {seen_by(adversary.knows, one) for one in draw.updates}
    if adversary.releases == "aggregate":
        updates = {tuple(r.model_copy(update={"sampling": Unsampled()}) for r in draw.aggregate)}
    return max((_of_update(one, draw, adversary, draws, delta) for one in updates), default=0.0)


def _of_update(
    update: Releases, draw: Draw, adversary: Adversary, draws: int, delta: float
) -> float:
    rate = draw.participation_probability
    if adversary.sees_cohorts:
        return participation.server_epsilon_a_priori(
            update, participation_probability=rate, num_rounds=draws, delta=delta
        )
    if rate >= 1.0:
        return participation.server_epsilon(update, participations=draws, delta=delta)
    return participation.external_epsilon(
        update, participation_probability=rate, num_rounds=draws, delta=delta
    )


@dataclass(frozen=True)
class Budget:
    """What may be spent: epsilon at delta against one adversary."""

    epsilon: float
    delta: float
    adversary: Adversary
    field: str = "budget"
    """Where it is said, for messages."""
    remedy: str = "raise the budget"
    """What may allow more, for messages."""


@dataclass(frozen=True)
class Calibration:
    """``draws`` draws cost at most ``target`` by the construction of their noise."""

    target: Budget
    draws: int


@dataclass(frozen=True)
class Filter:
    """Pays draws one after the other until the budget is spent; without one it pays all."""

    draw: Draw | Schedule
    most_draws: int
    """What the rounds can need, retries included, no crash counted; of a `Schedule` its rounds."""
    budget: Budget | None = None
    calibration: Calibration | None = None

    def made(self, odometer: Odometer) -> Made:
        """The draws that an odometer counts."""
        if not isinstance(self.draw, Schedule):
            return odometer.rounds_counted
        return self.draw.made(odometer)

    def pays(self, draws: Made) -> bool:
        """Whether the budget pays so many draws."""
        return self.budget is None or self._is_within(self.budget, draws)

    def passes_target(self, draws: Made) -> bool:
        """Whether so many draws cost more than the noise was calibrated for."""
        calibration = self.calibration
        return calibration is not None and not self._is_within(calibration.target, draws)

    def cost(self, budget: Budget, draws: Made) -> float:
        """Epsilon of so many draws, at a budget's delta and against its adversary."""
        return a_priori(self.draw, budget.adversary, draws, budget.delta)

    @cached_property
    def planned_draws(self) -> int:
        """K: what the rounds can need, or the most that the budget pays, whichever is less.

        Of a `Schedule` it is a number of rounds.
        """
        low, high = 0, self.most_draws
        if self.pays(high):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.pays(middle) else (low, middle)
        return low

    def check(self, draws: Made, server_round: int) -> None:
        """Refuse the draw that the budget does not pay, whoever is in it.

        Raises:
            BudgetExhausted: with what it costs and what may allow more.
        """
        if not self.pays(draws):
            assert self.budget is not None
            raise self._exhausted(self.budget, draws, server_round)

    def check_after(self, after: Odometer, server_round: int) -> None:
        """Refuse the last draw that ``after`` counts, if the budget does not pay it.

        Raises:
            BudgetExhausted: as `check`.
        """
        self.check(self.made(after), server_round)

    def _exhausted(self, budget: Budget, draws: Made, server_round: int) -> BudgetExhausted:
        return BudgetExhausted(
            f"{budget.field}: round {server_round} would be cohort draw {_count(draws)}, which "
            f"costs epsilon {self.cost(budget, draws):.4g} against the {budget.adversary.name} "
            f"adversary whoever is drawn, the budget is {budget.epsilon:g}; the model of the last "
            f"paid round is kept, and {budget.remedy}"
        )

    def passed_target(self, draws: Made) -> str | None:
        """One line about draws that cost more than the target; None while they do not."""
        if self.calibration is None or not self.passes_target(draws):
            return None
        target = self.calibration.target
        return (
            f"the target epsilon {target.epsilon:g} is passed: {_count(draws)} cohort draws cost "
            f"{self.cost(target, draws):.4g} against the {target.adversary.name} adversary, which "
            "privacy.max_epsilon allows"
        )

    def _is_within(self, budget: Budget, draws: Made) -> bool:
        known = self.calibration
        if (
            known is not None
            and self._is_calibrated(known, draws)
            and budget.delta >= known.target.delta
            and budget.epsilon >= known.target.epsilon
        ):
            return True
        return self.cost(budget, draws) <= budget.epsilon

    def _is_calibrated(self, known: Calibration, draws: Made) -> bool:
        """Whether the noise was found for these draws or more."""
        if not isinstance(self.draw, Schedule):
            return _count(draws) <= known.draws
        mine, meant = (self.draw.slots(known.target.adversary, n) for n in (draws, known.draws))
        return len(mine) <= len(meant) and all(map(operator.le, mine, meant))


def _count(draws: Made) -> int:
    return draws if isinstance(draws, int) else sum(draws)

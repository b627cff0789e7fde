"""Promise, budget and statement of a run: what it guarantees whom, at which epsilon.

Guarantee: every epsilon is an upper bound and comes from charges alone; a planned run is priced as
one that reserved all its rounds for everybody. A budget refuses a cohort draw before it is made, by
the price of what is planned (`manifed.privacy.tariff`).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from operator import le
from pathlib import Path
from typing import TYPE_CHECKING

from manifed.errors import BudgetExhausted, ConfigError, named_by
from manifed.fields import Document
from manifed.privacy.composition import NoValidBound
from manifed.privacy.events import Adversary, label_of
from manifed.privacy.ledger import Entry, Head, Ledger, LedgerDamaged, Reserves
from manifed.privacy.odometer import LIMITS, Odometer
from manifed.privacy.tariff import Made, Tariff, Terms, encode

if TYPE_CHECKING:
    from manifed.privacy.epsilon_bounds import Claim


@dataclass(frozen=True)
class Budget:
    """A budget: epsilon at delta against one adversary."""

    epsilon: float
    delta: float
    adversary: Adversary
    field: str = "budget"
    """Where it is said, for messages."""
    remedy: str = "raise the budget"
    """What may allow more, for messages."""


@dataclass(frozen=True)
class Promise:
    """The promise of a run: tariff, adversaries and budget.

    Without adversaries nothing is promised or charged.
    """

    tariff: Tariff
    most_draws: int
    """What the rounds can need, retries included, no crash counted; of several lines the rounds."""
    adversaries: tuple[Adversary, ...] = ()
    """The one of the headline first."""
    delta: float | None = None
    """At which epsilon is stated; given with adversaries."""
    budget: Budget | None = None
    """None pays every draw."""
    target: Budget | None = None
    """What the noise was calibrated to, if it was."""
    calibrated: int = 0
    """For how many draws, or rounds, it was: they cost at most the target by construction."""
    facts: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Kind, unit, relation, mechanism: what the statement says beside numbers."""
    has_oracle: bool = False
    """Whether the run prints numbers computed on all data."""
    claim: "Claim | None" = None
    """What a paper prints for it; shown and labelled."""
    realised: Callable[[int, tuple[int, int]], Terms] | None = None
    """What a round releases whose sum is opened, by how many clients could be in it and how many
    are; None: that is not known only then."""

    def __post_init__(self) -> None:
        """Refuse terms that say nothing, or speak of another unit or relation than the promise.

        Raises:
            ConfigError: with the release.
        """
        if not self.adversaries:
            return
        releases = [
            release
            for terms in self.tariff.lines
            for some in (*(one.releases for one in terms.updates), terms.aggregate)
            for release in some
        ]
        if not releases:
            raise ConfigError(
                "privacy: expected an algorithm that states what it releases, got one that states "
                "nothing; give its client update releases"
            )
        for release, name in product(releases, ("unit", "neighboring_relation")):
            said = self.facts.get(name)
            found = getattr(release, name)
            if said not in (None, found):
                raise ConfigError(
                    f"privacy: expected releases with {name} = {said!r}, got {release.label!r} "
                    f"with {found!r}"
                )

    @property
    def terms(self) -> Terms:
        """The terms of round 1, which are those of every round where all are alike."""
        return self.tariff.lines[0]

    # -- the budget --------------------------------------------------------------------------
    def made(self, odometer: Odometer) -> Made:
        """Returns the draws that an odometer counts, by line of the tariff."""
        if self.tariff.is_by_round:
            return self.tariff.counted(odometer.ranges)
        return (odometer.rounds_counted,)

    def pays(self, made: Made) -> bool:
        """Whether the budget pays these draws."""
        return self.budget is None or self._is_within(self.budget, made)

    def cost(self, budget: Budget, made: Made) -> float:
        """Returns epsilon of these draws, at the budget's delta and against its adversary."""
        return self.tariff.ahead(budget.adversary, made, budget.delta)

    @cached_property
    def planned_draws(self) -> int:
        """The number of draws K that the rounds can need, or that the budget pays if less.

        Of a tariff with several lines it is a number of rounds.
        """
        if self.pays(self.tariff.once(self.most_draws)):
            return self.most_draws
        draws = range(1, self.most_draws)
        return bisect_left(draws, x=True, key=lambda n: not self.pays(self.tariff.once(n)))

    def check(self, odometer: Odometer, server_round: int) -> str | None:
        """Refuses the last draw of an odometer if the budget does not pay it for any cohort.

        Returns the line of `passed_target`.

        Raises:
            BudgetExhausted: with what it costs and what may allow more.
        """
        made = self.made(odometer)
        if (budget := self.budget) and not self._is_within(budget, made):
            raise BudgetExhausted(
                f"{budget.field}: round {server_round} would be cohort draw {sum(made)}, which "
                f"costs epsilon {self.cost(budget, made):.4g} against the {budget.adversary.name} "
                f"adversary for any cohort, the budget is {budget.epsilon:g}; the model of the "
                f"last paid round is kept, and {budget.remedy}"
            )
        return self.passed_target(made)

    def passed_target(self, made: Made) -> str | None:
        """Returns a line about draws that cost more than the target; None while they do not."""
        if (target := self.target) is None or self._is_within(target, made):
            return None
        return (
            f"the target epsilon {target.epsilon:g} is passed: {sum(made)} cohort draws cost "
            f"{self.cost(target, made):.4g} against the {target.adversary.name} adversary, which "
            "privacy.max_epsilon allows"
        )

    @cached_property
    def _calibrated(self) -> Made:
        """How often each line counts in the draws that the noise was calibrated for."""
        assert self.target is not None
        return self.tariff.slots(self.target.adversary, self.tariff.once(self.calibrated))

    def _is_within(self, budget: Budget, made: Made) -> bool:
        known = self.target
        if known and budget.delta >= known.delta and budget.epsilon >= known.epsilon:
            mine = self.tariff.slots(known.adversary, made) if self.tariff.is_by_round else made
            meant = self._calibrated
            if len(mine) <= len(meant) and all(map(le, mine, meant)):
                return True
        return self.cost(budget, made) <= budget.epsilon

    # -- what an odometer says of it ---------------------------------------------------------
    def odometer(self, rounds: int = 0) -> Odometer:
        """Makes an odometer under this tariff, empty or with so many rounds for everybody."""
        odometer = Odometer()
        first = 1
        odometer.declare(self.terms)
        odometer.feed(Entry(planned=self.tariff.plan))
        everybody = encode(range(self.terms.population))
        for terms, end in zip(self.tariff.lines, (*self.tariff.ends[:-1], rounds), strict=True):
            if first <= (last := min(end, rounds)):
                reserves = Reserves(first=first, last=last, cohort=everybody)
                odometer.feed(Entry(terms=terms, reserves=reserves))
            first = end + 1
        return odometer

    def headline(self, odometer: Odometer) -> float | None:
        """Returns epsilon so far against the first adversary; None when nothing is promised."""
        if self.delta is None or not self.adversaries:
            return None
        return odometer.epsilon(self.adversaries[0], self.delta)

    def _remark(self, adversary: Adversary, odometer: Odometer, *, is_planned: bool) -> str | None:
        is_drawn = self.terms.is_drawn
        rounds = odometer.participations
        if adversary.sees_cohorts and is_drawn and is_planned:
            return f"if a client is invited to all {rounds} rounds; the draws decide"
        if adversary.sees_cohorts:
            realised = f"realised: at most {rounds} rounds a client"
            other = "the same config with other draws costs more or less"
            return f"{realised} in the cohorts that were drawn; {other}" if is_drawn else realised
        if adversary.releases == "aggregate" or not is_drawn:
            return None
        planned = sum(terms.planned_draws for terms in self.tariff.plan or (self.terms,))
        return f"for all {max(planned, odometer.rounds_counted)} cohort draws that were planned"

    def statement(
        self,
        odometer: Odometer,
        *,
        has_oracle: bool | None = None,
        is_declared: bool = False,
        is_planned: bool = False,
    ) -> Document:
        """Returns the privacy statement as data (manifed/runs/statement.py prints it).

        ``has_oracle`` None: as promised; ``is_declared``: whether clients in other processes said
        where their noise came from.
        ``is_planned``: what ``odometer`` counts is still to come.
        """
        notes = list[str]()
        told = list[tuple[str, str, float, float, str | None]]()
        if (at := self.delta) is not None:
            for one in self.adversaries:
                remark = self._remark(one, odometer, is_planned=is_planned)
                told.append((one.name, one.text, odometer.epsilon(one, at), at, remark))
        if self.claim is not None:
            claimed = self.claim.after(max(odometer.rounds_counted, 1))
            remark = "Theorem 4.2 as printed: UNSOUND at record level"
            told.append(("published", "nobody in particular", *claimed, remark))
        names = ("name", "text", "epsilon", "delta", "remark")
        if self.adversaries:
            is_shown = self.has_oracle if has_oracle is None else has_oracle
            passed = self.passed_target(self.made(odometer))
            notes = ["shard sizes, the config and the number of rounds are public"]
            notes += [passed] if passed else []
            if is_shown:
                notes.append(
                    "cost, gap and gradient norm were computed on all data without noise (a "
                    "simulation oracle): they are no part of the release, and whoever shows them "
                    "voids this guarantee"
                )
        return {
            "label": self.label(odometer, is_planned=is_planned),
            **self.facts,
            "adversaries": [
                {name: said for name, said in zip(names, row, strict=True) if said is not None}
                for row in told
            ],
            "notes": notes,
            "noise_origins": sorted(odometer.noise_origins),
            "is_declared": is_declared,
        }

    def label(self, odometer: Odometer, *, is_planned: bool = False) -> str:
        """The label before every epsilon of this promise (`manifed.privacy.events`)."""
        return label_of(
            self.facts.get("noise_source"),
            odometer.noise_origins,
            is_charged=odometer.rounds_counted > 0 and not is_planned,
            is_private=bool(self.adversaries),
        )

    def planned(self, rounds: int) -> Document:
        """Returns the statement of so many rounds, if all of them invite everybody."""
        plan = self.for_draws(rounds)
        return plan.statement(plan.odometer(rounds), is_planned=True)

    def for_draws(self, draws: int) -> "Promise":
        """Plans the promise for so many draws; where lines differ, for so many rounds."""
        return replace(self, tariff=self.tariff.planned(draws))


def audit_ledger(
    path: Path, delta: float | None, *, key: bytes | None = None, anchors: Iterable[Head] = ()
) -> Document:
    """Verifies and prices a ledger on its own, read once in a stream.

    ``delta`` None: that of the limits that a site's ledger says were last in force.

    Raises:
        LedgerDamaged: for a broken chain, a torn last line, a wrong key, or an anchor (a head that
            was kept elsewhere) that is not in the chain.
        ConfigError: for charges that no theorem prices, and without any delta.
    """
    odometer = Odometer()
    limits = dict[str, float]()

    def feed(entry: Entry) -> None:
        odometer.feed(entry)
        limits.update(entry.said.get(LIMITS, {}))

    found = Ledger.verify(path, key=key, anchors=anchors, feed=feed)
    if found.is_torn:
        what = "was never finished (a crash?)"
        raise LedgerDamaged(path, found.head.sequence + 2, what, "resume the run")
    if delta is None and not limits:
        raise ConfigError("--delta: required for the ledger of a run, but not given")
    delta = limits["delta"] if delta is None else delta
    with named_by(path, NoValidBound):
        spent = odometer.spent(delta)
    return {
        "label": label_of(None, odometer.noise_origins),
        "noise_origins": sorted(odometer.noise_origins),
        "format": found.header["format"],
        "run_id": found.header.get("run_id"),
        "head": str(found.head),
        "key_id": found.header.get("key_id"),
        "authenticity": found.authenticity,
        "entries": found.head.sequence + 1,
        "charges": odometer.rounds_counted,
        "delta": delta,
        "adversaries": spent,
    } | ({"limits": limits} if limits else {})

"""What a run promises whom: its terms, adversaries and budget, and the numbers from an odometer.

Guarantee: every epsilon is an upper bound and comes from charges alone; a planned run is priced as
one that reserved all its rounds for everybody.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from manifed.errors import ConfigError
from manifed.privacy.adversaries import Adversary
from manifed.privacy.charges import Reservation, Terms
from manifed.privacy.composition import NoValidBound
from manifed.privacy.filter import Filter, Made, Schedule, a_priori
from manifed.privacy.label import label_of
from manifed.privacy.ledger import Head, Ledger
from manifed.privacy.odometer import Odometer
from manifed.privacy.published import Claim

PUBLIC = "shard sizes, the config and the number of rounds are public"
ORACLE = (
    "cost, gap and gradient norm were computed on all data without noise (a simulation oracle): "
    "they are no part of the release, and whoever shows them voids this guarantee"
)


AfterDropout = Callable[[tuple[int, ...]], Terms]
"""What everybody releases besides when masks of these clients are disclosed in a round."""


@dataclass(frozen=True)
class Promise:
    """What is promised, as data; without adversaries nothing is, and nothing is charged."""

    terms: Terms
    """Of round 1, and of every round without a ``schedule``."""
    filter: Filter
    adversaries: tuple[Adversary, ...] = ()
    """The one of the headline first."""
    delta: float | None = None
    """At which epsilon is stated; given with adversaries."""
    facts: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Kind, unit, relation, mechanism: what the statement says beside numbers."""
    has_oracle: bool = False
    """Whether the run prints numbers computed on all data."""
    claim: Claim | None = None
    """What a paper prints for it; shown and labelled."""
    schedule: tuple[Terms, ...] = ()
    """The terms of rounds 1, 2, ... where they differ; the last ones hold on."""
    lengths: tuple[int, ...] = ()
    """How many rounds each terms of the schedule are of; () for one each."""
    attempts: int = 1
    """The most of one round of a schedule, crashes aside."""
    after_dropout: AfterDropout | None = None
    """None: no masks are ever disclosed."""
    plan: tuple[Terms, ...] = ()
    """All terms of a schedule whose cohorts are drawn; an outsider is priced for what they plan."""

    def terms_of(self, server_round: int) -> Terms:
        """Who releases what in a round."""
        if not self.schedule:
            return self.terms
        if self.lengths:
            stretch = bisect_left(self._ends, server_round)
            return self.schedule[min(stretch, len(self.schedule) - 1)]
        return self.schedule[min(server_round, len(self.schedule)) - 1]

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The last round of each stretch."""
        return tuple(accumulate(self.lengths))

    def __post_init__(self) -> None:
        """Refuse terms that say nothing, or speak of another unit or relation than the promise.

        Raises:
            ConfigError: with the release.
        """
        if not self.adversaries:
            return
        stated = [self.terms, *(self.schedule or ())]
        releases = [r for t in stated for one in t.updates for r in one.releases]
        releases += [r for t in stated for r in t.aggregate]
        if not releases:
            raise ConfigError(
                "privacy: expected an algorithm that states what it releases, got one that states "
                "nothing; give its client update releases"
            )
        for release in releases:
            for name in ("unit", "neighboring_relation"):
                said, own = self.facts.get(name), release.model_dump()[name]
                if said is not None and said != own:
                    raise ConfigError(
                        f"privacy: expected releases with {name} = {said!r}, got {release.label!r} "
                        f"with {own!r}"
                    )

    def odometer(self, rounds: int = 0) -> Odometer:
        """Nothing spent under these terms, or so many rounds reserved for everybody."""
        odometer = Odometer()
        odometer.declare(self.terms)
        odometer.plan(self.plan)
        everybody = np.arange(self.terms.population)
        if not self.schedule and rounds:
            odometer.reserve(Reservation(1, rounds, 0, everybody))
        r = 1
        while self.schedule and r <= rounds:
            last = r
            if self.lengths and r <= self._ends[-1]:
                last = min(self._ends[bisect_left(self._ends, r)], rounds)
            odometer.reserve(Reservation(r, last, 0, everybody, terms=self.terms_of(r)))
            r = last + 1
        return odometer

    def headline(self, odometer: Odometer) -> float | None:
        """Epsilon so far against the first adversary; None when nothing is promised."""
        if self.delta is None or not self.adversaries:
            return None
        return odometer.epsilon(self.adversaries[0], self.delta)

    def spent(self, odometer: Odometer, *, is_planned: bool = False) -> list[dict[str, Any]]:
        """Name, text, epsilon, delta and remark of every adversary, the headline first.

        ``is_planned``: what ``odometer`` counts is still to come.
        """
        if self.delta is None:
            return []
        rows: list[dict[str, Any]] = []
        for adversary in self.adversaries:
            epsilon = odometer.epsilon(adversary, self.delta)
            rows.append(row(adversary.name, adversary.text, epsilon, self.delta))
            if remark := self._remark(adversary, odometer, is_planned=is_planned):
                rows[-1]["remark"] = remark
        return rows

    def _remark(self, adversary: Adversary, odometer: Odometer, *, is_planned: bool) -> str | None:
        if adversary.sees_cohorts:
            rounds = odometer.participations
            if not self.terms.is_drawn:
                return f"realised: at most {rounds} rounds a client"
            if is_planned:
                return f"if a client is invited to all {rounds} rounds; the draws decide"
            return (
                f"realised: at most {rounds} rounds a client in the cohorts that were drawn; the "
                "same config with other draws costs more or less"
            )
        if adversary.releases == "aggregate" or not self.terms.is_drawn:
            return None
        planned = sum(terms.planned_draws for terms in self.plan) or self.terms.planned_draws
        planned = max(planned, odometer.rounds_counted)
        return f"for all {planned} cohort draws that were planned"

    def statement(
        self,
        odometer: Odometer,
        *,
        noise_origins: Iterable[str] = (),
        has_oracle: bool | None = None,
        is_declared: bool = False,
        is_planned: bool = False,
    ) -> dict[str, Any]:
        """The privacy statement as data (manifed/runs/statement.py prints it).

        ``noise_origins``: where the keys of noise came from; ``has_oracle`` None: as promised;
        ``is_declared``: whether clients in other processes said where their noise came from.
        ``is_planned``: see `spent`.
        """
        rows, notes = self.spent(odometer, is_planned=is_planned), list[str]()
        if self.claim is not None:
            remark = {"remark": "Theorem 4.2 as printed: UNSOUND at record level"}
            claimed = self.claim.after(max(odometer.rounds_counted, 1))
            rows.append(row("published", "nobody in particular", *claimed) | remark)
        if self.adversaries:
            passed = self.filter.passed_target(self.filter.made(odometer))
            is_shown = self.has_oracle if has_oracle is None else has_oracle
            notes = [PUBLIC, *([passed] if passed else []), *([ORACLE] if is_shown else [])]
        origins, is_charged = frozenset(noise_origins), odometer.rounds_counted > 0
        return {
            "label": self.label(origins, is_charged=is_charged and not is_planned),
            **self.facts,
            "adversaries": rows,
            "notes": notes,
            "noise_origins": sorted(origins),
            "is_declared": is_declared,
        }

    def label(self, origins: Iterable[str], *, is_charged: bool) -> str:
        """The word before every epsilon of this promise (`manifed.privacy.label`)."""
        source, is_private = self.facts.get("noise_source"), bool(self.adversaries)
        return label_of(source, origins, is_charged=is_charged, is_private=is_private)

    def planned(self, rounds: int) -> dict[str, Any]:
        """The statement of so many rounds, if all of them invite everybody."""
        plan = self.for_draws(rounds)
        return plan.statement(plan.odometer(rounds), is_planned=True)

    def for_draws(self, draws: int) -> "Promise":
        """The same promise, planned for so many draws; of a schedule, for so many of its rounds."""
        new = {"planned_draws": draws}
        if not self.terms.is_drawn or not self.schedule:
            schedule = tuple(terms.model_copy(update=new) for terms in self.schedule)
            return replace(self, terms=self.terms.model_copy(update=new), schedule=schedule)
        bare = [terms.model_copy(update={"planned_draws": 0}) for terms in self.schedule]
        rounds = Counter(bare[:draws])
        schedule = tuple(
            terms.model_copy(update={"planned_draws": self.attempts * rounds[terms]})
            for terms in bare
        )
        plan = tuple(dict.fromkeys(terms for terms in schedule if terms.planned_draws))
        return replace(self, terms=schedule[0], schedule=schedule, plan=plan)

    def check_ledger(self, odometer: Odometer) -> None:
        """Refuse a ledger that was charged more for its draws than these terms price them.

        Raises:
            ConfigError: with both prices.
        """
        draws = odometer.rounds_counted
        for adversary in self.adversaries:
            if adversary.sees_cohorts or self.delta is None or draws == 0:
                continue
            counted = odometer.epsilon(adversary, self.delta)
            is_drawn = adversary.releases == "updates"
            planned: Made = max(draws, self.terms.planned_draws) if is_drawn else draws
            if self.schedule:
                planned = self._reckoned(odometer)
            priced = a_priori(self.filter.draw, adversary, planned, self.delta)
            if counted > priced * (1 + 1e-6):
                raise ConfigError(
                    f"output.resume: expected a ledger whose {draws} draws cost at most "
                    f"{priced:.4g} against the {adversary.name} adversary, got {counted:.4g}: it "
                    "was charged under other terms than this config's; start a new run instead"
                )

    def _reckoned(self, odometer: Odometer) -> tuple[int, ...]:
        """How often each round of the schedule counts to an outsider: as planned, or as made."""
        if isinstance(self.filter.draw, Schedule) and self.lengths:
            return self.filter.draw.made(odometer)
        made = odometer.attempts_by_round()
        planned = [int(terms in self.plan) for terms in self.schedule]
        length = max(len(made), len(planned) if self.plan else 0)
        made, planned = (*made, *[0] * length), [*planned, *[0] * length]
        return tuple(max(pair) for pair in zip(made[:length], planned[:length], strict=True))


def row(name: str, text: str, epsilon: float, delta: float) -> dict[str, Any]:
    """One adversary's line of a statement."""
    return {"name": name, "text": text, "epsilon": epsilon, "delta": delta}


def audit_ledger(
    path: Path, delta: float, *, key: bytes | None = None, anchors: Iterable[Head] = ()
) -> dict[str, Any]:
    """What a ledger proves on its own, read once in a stream.

    Raises:
        LedgerDamaged: for a broken chain, a torn last line, a wrong key, or an anchor (a head that
            was kept elsewhere) that is not in the chain.
        ConfigError: for charges that no theorem prices.
    """
    odometer = Odometer()
    found = Ledger.verify(path, key=key, anchors=anchors, feed=odometer.feed)
    if found.is_torn:
        raise found.torn_error(path)
    try:
        spent = odometer.spent(delta)
    except NoValidBound as refusal:
        raise ConfigError(f"{path}: {refusal}") from None
    return {
        "label": label_of(None, odometer.noise_origins),
        "noise_origins": sorted(odometer.noise_origins),
        "format": found.format,
        "run_id": found.run_id,
        "head": str(found.head),
        "key_id": found.key_id,
        "authenticity": found.authenticity,
        "entries": found.head.sequence + 1,
        "charges": odometer.rounds_counted,
        "consumed": odometer.rounds_consumed,
        "delta": delta,
        "adversaries": [
            row(one.adversary.name, one.adversary.text, one.epsilon, one.delta)
            | {
                "unit": one.unit,
                "neighboring_relation": one.neighboring_relation,
                "epsilon_consumed": one.epsilon_consumed,
            }
            for one in spent
        ],
    }

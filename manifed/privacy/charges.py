"""What a ledger is charged: rounds that are reserved before their messages leave, then consumed.

* A `Reservation` of rounds a..b stands on disk before any message of them leaves. Its cohort bounds
  who takes part in *each* of them: the drawn cohort for a single round, everybody for a block.
* A `Consumption` settles the last reservation: its rounds up to r were run, with the cohorts that
  it names, and unless it stays open the others never will be.

Rule: a reservation counts whole, every client of its cohort in every round, until a consumption
says otherwise. A crash leaves none behind, so it counts the worst case for ever. At most one
reservation is open; the next one may carry the consumption that settles it, in one write. `Terms`
(who releases what, how cohorts are drawn) are said once, by the reservation they start with.

A `Charge` says all of that by itself for one round; it is what format 1 wrote for every round.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, model_validator

from manifed.privacy import cohorts
from manifed.privacy.chain import RECOVERED, Entry
from manifed.privacy.cohorts import Members
from manifed.privacy.events import (
    Event,
    Frozen,
    PoissonSampled,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
)

AMENDED: Final = "amended"
CHARGE: Final = "charge"
RESERVED: Final = "reserved"
CONSUMED: Final = "consumed"
MOST_CLIENTS: Final = 10**8
"""A ledger that claims more is refused before memory is spent on it."""
MOST_ROUNDS: Final = 10**9
Releases = tuple[Event, ...]
_RELEASES: Final = TypeAdapter(Releases)
_SAMPLING: Final[TypeAdapter[Sampling]] = TypeAdapter(Sampling)


class ClientReleases(Frozen):
    """What each of ``partitions`` releases in one client update."""

    partitions: tuple[int, ...]
    releases: Releases


class Terms(Frozen):
    """What is the same for many rounds."""

    population: int = Field(ge=1, le=MOST_CLIENTS)
    """Clients are 0 ... population - 1."""
    updates: tuple[ClientReleases, ...] = ()
    """Must cover every cohort; for who sees no cohorts everyone who could be drawn."""
    sampling: Sampling = Unsampled()
    """How cohorts are drawn."""
    aggregate: Releases = ()
    """What the server releases about whole clients in a round, its sampling included."""
    planned_draws: int = Field(default=0, ge=0)
    """The most cohort draws that the run may make (under these terms, where it plans several); an
    outsider is priced for at least these, because how many were made can tell who was in them."""
    num_examples: tuple[int, ...] = ()
    """N_i of every client, where they are declared and not counted."""
    probabilities: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    """p_i of every client, where they differ; ``sampling`` is then by the largest of them."""

    @model_validator(mode="after")
    def _no_client_is_drawn_more_often(self) -> "Terms":
        each = self.probabilities
        if not each:
            return self
        if len(each) != self.population:
            raise ValueError(
                f"Expected a probability for each of {self.population} clients, got {len(each)}"
            )
        if self.sampling != PoissonSampled(sampling_probability=max(each)):
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

    def body(self) -> dict[str, Any]:
        """As JSON."""
        found = {
            "population": self.population,
            "turns": [
                {
                    "cohort": cohorts.encode(cohorts.members(update.partitions)),
                    "releases": _RELEASES.dump_python(update.releases, mode="json"),
                }
                for update in self.updates
            ],
            "sampling": _SAMPLING.dump_python(self.sampling, mode="json"),
            "aggregate": _RELEASES.dump_python(self.aggregate, mode="json"),
            "planned_draws": self.planned_draws,
        }
        lists = {"num_examples": self.num_examples, "probabilities": self.probabilities}
        return found | {name: list(values) for name, values in lists.items() if values}

    @classmethod
    def of_body(cls, body: Mapping[str, Any]) -> "Terms":
        """The terms of JSON that `body` made.

        Raises:
            ValueError, KeyError, TypeError: for anything else.
        """
        population = int(body["population"])
        if not 1 <= population <= MOST_CLIENTS:
            raise ValueError(f"Expected 1 to {MOST_CLIENTS} clients, got {population}")
        updates = tuple(
            ClientReleases(
                partitions=tuple(cohorts.decode(update["cohort"], population).tolist()),
                releases=_RELEASES.validate_python(update["releases"]),
            )
            for update in body["turns"]
        )
        return cls(
            population=population,
            updates=updates,
            sampling=body["sampling"],
            aggregate=_RELEASES.validate_python(body["aggregate"]),
            planned_draws=body["planned_draws"],
            num_examples=tuple(body.get("num_examples", ())),
            probabilities=tuple(body.get("probabilities", ())),
        )


@dataclass(frozen=True)
class Consumption:
    """Which rounds of the last reservation were run."""

    upto: int
    """The last of them; one less than the first reserved when none was."""
    cohorts: tuple[Members, ...] | None = None
    """Who took part in each round since the last consumption; None: all who were reserved."""
    is_open: bool = False
    """Whether the other rounds stay reserved."""

    def body(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {"upto": self.upto}
        if self.cohorts is not None:
            found["cohorts"] = [cohorts.encode(cohort) for cohort in self.cohorts]
        if self.is_open:
            found["is_open"] = True
        return found

    @classmethod
    def of_body(cls, body: Mapping[str, Any], population: int) -> "Consumption":
        """The consumption of JSON that `body` made; errors as `Terms.of_body`."""
        named = body.get("cohorts")
        return cls(
            int(body["upto"]),
            None if named is None else tuple(cohorts.decode(c, population) for c in named),
            bool(body.get("is_open", False)),
        )


@dataclass(frozen=True, eq=False)
class Reservation:
    """One attempt of each of the rounds ``first`` to ``last``, as paid before their messages."""

    first: int
    last: int
    attempt: int
    cohort: Members
    """Who may be sent a message in each of them."""
    cohort_attempt: int | None = None
    """The attempt whose cohort draw a single round uses again; None: this attempt's own."""
    consumed: Consumption | None = None
    """What became of the reservation before."""
    terms: Terms | None = None
    """New terms, from here on."""
    planned: tuple[Terms, ...] | None = None
    """All terms under which the run may draw cohorts, each with its ``planned_draws``, where they
    differ from round to round and an outsider sees no cohorts; None: as said before."""

    def __post_init__(self) -> None:
        if not (0 <= self.first <= self.last <= MOST_ROUNDS and self.attempt >= 0):
            raise ValueError(
                f"Expected rounds 0 <= first <= last <= {MOST_ROUNDS} and attempt >= 0, got "
                f"{self.first}, {self.last} and {self.attempt}"
            )
        if self.cohort_attempt is not None and self.first != self.last:
            raise ValueError(
                f"Expected one round to use a cohort again, got {self.first} to {self.last}; "
                "reserve it alone"
            )

    def body(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {
            "rounds": [self.first, self.last],
            "attempt": self.attempt,
            "cohort": cohorts.encode(self.cohort),
        }
        if self.cohort_attempt is not None:
            found["cohort_attempt"] = self.cohort_attempt
        if self.consumed is not None:
            found["consumed"] = self.consumed.body()
        if self.terms is not None:
            found["terms"] = self.terms.body()
        if self.planned is not None:
            found["planned"] = [terms.body() for terms in self.planned]
        return found

    @classmethod
    def of_body(cls, body: Mapping[str, Any], before: Terms | None) -> "Reservation":
        """The reservation of JSON under the terms ``before`` it; errors as `Terms.of_body`."""
        terms = Terms.of_body(body["terms"]) if "terms" in body else None
        mine = terms or before
        if mine is None:
            raise ValueError("Expected terms before or in the first reservation, got none")
        first, last = body["rounds"]
        own, consumed = body.get("cohort_attempt"), body.get("consumed")
        if consumed is not None and before is None:
            raise ValueError("Expected a reservation to consume, got none before this one")
        return cls(
            int(first),
            int(last),
            int(body["attempt"]),
            cohorts.decode(body["cohort"], mine.population),
            None if own is None else int(own),
            None
            if consumed is None or before is None
            else Consumption.of_body(consumed, before.population),
            terms,
            tuple(Terms.of_body(one) for one in body["planned"]) if "planned" in body else None,
        )


class Amendment(Frozen):
    """More rounds than a run began with; nothing else about it changes, and nothing is released."""

    amends: str
    """SHA-256 of the config that was in force; written first, so that a torn line shows it."""
    config_sha256: str
    """Of the config that is in force from here on."""
    num_rounds: tuple[int, int]
    """Before and now."""
    planned_draws: int = Field(default=0, ge=0)
    """As `Terms.planned_draws`, which it replaces."""
    noise_multiplier: float | None = Field(default=None, gt=0)
    """What a target's noise was found to be; it is kept. None: the config says it."""

    @model_validator(mode="after")
    def _adds_rounds(self) -> "Amendment":
        before, now = self.num_rounds
        if not 1 <= before < now <= MOST_ROUNDS:
            raise ValueError(
                f"Expected more rounds than before, at most {MOST_ROUNDS}, got {before} and {now}"
            )
        return self


class Charge(Frozen):
    """One attempt of one round with all its terms."""

    server_round: int = Field(ge=0)
    attempt: int = Field(default=0, ge=0)
    partitions: tuple[int, ...]
    """The cohort: who was sent a message."""
    turns: tuple[ClientReleases, ...] = ()
    """Client updates, by the name of format 1: must cover the cohort; for who sees no cohorts it
    should cover everyone who could be drawn."""
    sampling: Sampling = Unsampled()
    """How the cohort was drawn."""
    aggregate: Releases = ()
    """What the server releases about whole clients, its sampling included."""
    cohort_attempt: int | None = Field(default=None, ge=0)
    """The attempt whose cohort draw this one uses again; None: this attempt's own."""

    @model_validator(mode="after")
    def _turns_cover_the_cohort(self) -> "Charge":
        named = [partition for one in self.turns for partition in one.partitions]
        if len(set(named)) != len(named):
            raise ValueError(f"Expected every partition in one update at most, got {sorted(named)}")
        if self.turns and (missing := set(self.partitions) - set(named)):
            raise ValueError(f"Expected an update for every partition, none for {sorted(missing)}")
        return self


def charges(entries: Iterable[Entry]) -> tuple[Charge, ...]:
    """Every `Charge` of a ledger, those of recovered lines included."""
    bodies = [
        entry.body if entry.kind == CHARGE else entry.body["charge"]
        for entry in entries
        if entry.kind == CHARGE
        or (entry.kind == RECOVERED and "server_round" in entry.body["charge"])
    ]
    return tuple(Charge.model_validate(body) for body in bodies)

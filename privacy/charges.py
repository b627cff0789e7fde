"""What a ledger is charged: one attempt of one round, who was in it and what it releases."""

from collections.abc import Iterable
from typing import Final

from pydantic import Field, model_validator

from privacy.chain import RECOVERED, Entry
from privacy.events import (
    Frozen,
    GaussianRelease,
    PoissonSampled,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
)

CHARGE: Final = "charge"
Releases = tuple[GaussianRelease, ...]


class TurnReleases(Frozen):
    """What each of ``partitions`` releases in one turn of local training."""

    partitions: tuple[int, ...]
    releases: Releases


class Charge(Frozen):
    """One attempt of one round, as charged before its letters left."""

    server_round: int = Field(ge=0)
    attempt: int = Field(default=0, ge=0)
    partitions: tuple[int, ...]
    """The cohort: who was sent a letter."""
    turns: tuple[TurnReleases, ...] = ()
    """Must cover the cohort; for the external view it should cover everyone who could be drawn."""
    sampling: Sampling = Unsampled()
    """How the cohort was drawn."""
    aggregate: Releases = ()
    """What the server releases about whole clients, its sampling included."""
    cohort_attempt: int | None = Field(default=None, ge=0)
    """The attempt whose cohort draw this one uses again; None: this attempt's own."""

    @property
    def participation_probability(self) -> float:
        """The probability that a given client is in the cohort."""
        if isinstance(self.sampling, PoissonSampled):
            return self.sampling.sampling_probability
        if isinstance(self.sampling, SampledWithoutReplacement):
            return self.sampling.sample_size / self.sampling.population
        return 1.0

    @model_validator(mode="after")
    def _turns_cover_the_cohort(self) -> "Charge":
        named = [partition for turn in self.turns for partition in turn.partitions]
        if len(set(named)) != len(named):
            raise ValueError(f"Expected every partition in one turn at most, got {sorted(named)}")
        if self.turns and (missing := set(self.partitions) - set(named)):
            raise ValueError(f"Expected a turn for every partition, none for {sorted(missing)}")
        return self


def charges(entries: Iterable[Entry]) -> tuple[Charge, ...]:
    """Every charge of a ledger, those of recovered lines included."""
    bodies = [
        entry.body if entry.kind == CHARGE else entry.body["charge"]
        for entry in entries
        if entry.kind in (CHARGE, RECOVERED)
    ]
    return tuple(Charge.model_validate(body) for body in bodies)

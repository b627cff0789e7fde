"""What was released, as data: the events that accountants price.

A mechanism never computes an epsilon. It states what it released, about whom, under which
neighbouring relation and which sampling; ``privacy.accountant`` prices it. An event is a
`GaussianRelease`, a `CorrelatedRelease`, a `MaskedRelease` or a `LaplaceRelease`, told apart by
``kind``, on disk too; another kind is another class of the union, and what a
`manifed.privacy.composition.Composition` does with it.
"""

import math
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from manifed.privacy.covariance import LARGEST_DIMENSION, Vector, largest_mu

PrivacyUnit = Literal["example", "client"]
NeighboringRelation = Literal["add-or-remove", "replace-one"]


class Frozen(BaseModel):
    """An immutable value object that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Unsampled(Frozen):
    """Every unit takes part in the release."""

    kind: Literal["unsampled"] = "unsampled"


class PoissonSampled(Frozen):
    """Each unit takes part independently with ``sampling_probability``."""

    kind: Literal["poisson"] = "poisson"
    sampling_probability: float = Field(gt=0, le=1)


class SampledWithoutReplacement(Frozen):
    """A uniform subset of ``sample_size`` out of ``population`` units takes part."""

    kind: Literal["without-replacement"] = "without-replacement"
    sample_size: int = Field(ge=1)
    population: int = Field(ge=1)

    @model_validator(mode="after")
    def _fits(self) -> "SampledWithoutReplacement":
        if self.sample_size > self.population:
            raise ValueError(
                f"Expected sample_size <= population = {self.population}, got {self.sample_size}"
            )
        return self


Sampling = Annotated[
    Unsampled | PoissonSampled | SampledWithoutReplacement, Field(discriminator="kind")
]


class GaussianRelease(Frozen):
    """``count`` adaptively chosen Gaussian releases with one noise multiplier.

    ``noise_multiplier`` is the noise's standard deviation over the L2 sensitivity of the query
    *under the stated neighbouring relation*, for the worst pair of neighbours that the sampling
    selects. 0 means that nothing was added: an infinite epsilon.
    """

    kind: Literal["gaussian"] = "gaussian"
    unit: PrivacyUnit
    neighboring_relation: NeighboringRelation
    noise_multiplier: float = Field(ge=0)
    sampling: Sampling = Unsampled()
    count: int = Field(default=1, ge=0, le=10**15)
    label: str = "gradient"
    """Which query it was ("gradient", "anchor", "correction", "upload", "quantile")."""

    def times(self, factor: int) -> "GaussianRelease":
        """The same release made ``factor`` times as often."""
        return self.model_copy(update={"count": self.count * factor})


class LaplaceRelease(Frozen):
    """``count`` adaptively chosen releases with Laplace noise in every coordinate, unsampled.

    ``noise_multiplier`` is the noise's scale over the L1 sensitivity of the query under the stated
    relation, so one release is (1 / noise_multiplier, 0)-private. 0 means that nothing was added.
    """

    kind: Literal["laplace"] = "laplace"
    unit: PrivacyUnit
    neighboring_relation: NeighboringRelation
    noise_multiplier: float = Field(ge=0)
    sampling: Unsampled = Unsampled()
    count: int = Field(default=1, ge=0, le=10**15)
    label: str = "query"

    def times(self, factor: int) -> "LaplaceRelease":
        """The same release made ``factor`` times as often."""
        return self.model_copy(update={"count": self.count * factor})


class CorrelatedRelease(Frozen):
    """``count`` adaptively chosen releases of vectors with Gaussian noise of a given covariance.

    A release is priced by the largest sqrt(s^T covariance^(-1) s), exactly, and with Poisson
    sampling as the one coordinate in which that change lies (manifed/privacy/covariance.py).
    """

    kind: Literal["correlated-gaussian"] = "correlated-gaussian"
    unit: PrivacyUnit
    neighboring_relation: NeighboringRelation
    covariance: tuple[Vector, ...] = Field(min_length=1, max_length=LARGEST_DIMENSION)
    """Of the noise, symmetric and positive definite, in the units of the query."""
    sensitivities: tuple[Vector, ...] = Field(min_length=1)
    """Changes of the query between neighbours, those the sampling selects, whose convex hull, with
    both signs, holds every change that there can be."""
    sampling: Annotated[Unsampled | PoissonSampled, Field(discriminator="kind")] = Unsampled()
    count: int = Field(default=1, ge=0, le=10**15)
    label: str = "vector"

    @model_validator(mode="after")
    def _fits(self) -> "CorrelatedRelease":
        size = len(self.covariance)
        rows = {"covariance": self.covariance, "sensitivities": self.sensitivities}
        for name, vectors in rows.items():
            for row in vectors:
                if len(row) != size:
                    raise ValueError(f"{name}: expected vectors of length {size}, got {len(row)}")
        largest_mu(self.covariance, self.sensitivities)  # refuses what has no inverse
        return self

    @property
    def noise_multiplier(self) -> float:
        """That of the worst coordinate, rounded down; infinite where nothing moves."""
        mu = largest_mu(self.covariance, self.sensitivities)
        return math.inf if mu == 0 else (1 - 2.0**-50) / mu

    def times(self, factor: int) -> "CorrelatedRelease":
        """The same release made ``factor`` times as often."""
        return self.model_copy(update={"count": self.count * factor})


Knowledge = Literal["nothing", "one", "coalition", "everything"]
"""Whose masks an adversary knows: nobody's, one node's, a coalition's, those of all others."""


class MaskedRelease(Frozen):
    """``count`` messages under a node's own noise and masks that it shares with its neighbours.

    To each adversary it is a Gaussian release with a noise multiplier of its own (`seen_by`). Where
    nobody says who looks, it is what everybody else together sees: ``noise_multiplier``.
    """

    kind: Literal["masked-gaussian"] = "masked-gaussian"
    unit: PrivacyUnit
    neighboring_relation: NeighboringRelation
    noise_multiplier: float = Field(ge=0)
    """The own noise alone."""
    to_server: float = Field(ge=0)
    to_one: float = Field(ge=0)
    to_coalition: float = Field(ge=0)
    sampling: Sampling = Unsampled()
    count: int = Field(default=1, ge=0, le=10**15)
    label: str = "message"

    def seen_by(self, knows: Knowledge) -> GaussianRelease:
        """The release as one who knows these masks sees it."""
        seen = {
            "nothing": self.to_server,
            "one": self.to_one,
            "coalition": self.to_coalition,
            "everything": self.noise_multiplier,
        }
        return GaussianRelease(
            unit=self.unit,
            neighboring_relation=self.neighboring_relation,
            noise_multiplier=seen[knows],
            sampling=self.sampling,
            count=self.count,
            label=self.label,
        )

    def times(self, factor: int) -> "MaskedRelease":
        """The same release made ``factor`` times as often."""
        return self.model_copy(update={"count": self.count * factor})


Event = Annotated[
    GaussianRelease | CorrelatedRelease | MaskedRelease | LaplaceRelease,
    Field(discriminator="kind"),
]


def seen_by(knows: Knowledge, releases: "Iterable[Event]") -> tuple[Event, ...]:
    """The releases as an adversary who knows these masks sees them."""
    return tuple(r.seen_by(knows) if isinstance(r, MaskedRelease) else r for r in releases)


def repeated(releases: Iterable[Event], times: int) -> tuple[Event, ...]:
    """Everything in ``releases``, ``times`` times over.

    Raises:
        ValueError: for a negative number of times.
    """
    if times < 0:
        raise ValueError(f"Expected times >= 0, got {times}")
    return tuple(release.times(times) for release in releases)

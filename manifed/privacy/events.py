"""What was released, as data: `Release` is what a mechanism states and what accountants price.

A mechanism never computes an epsilon. It states what it released, about whom, under which
neighbouring relation and which sampling; ``manifed.privacy.epsilon_bounds`` prices it.

Who looks at a run: adversaries as data. What one sees decides how charges are priced.

=============  ============  ==================================================================
releases       sees cohorts  price of a client
=============  ============  ==================================================================
its updates    yes           the updates it was really asked for (``server``)
its updates    no            a coin for every cohort draw, made or planned (``external``)
aggregates     no            every aggregate, amplified by the sampling of its cohort
                             (``client-level``)
aggregates     yes           the aggregates of the cohorts that it was in, not amplified
=============  ============  ==================================================================

A further adversary is another `Adversary`; whatever prices takes it as an argument.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from manifed.fields import BY_KIND, Frozen, NonNegative, PositiveCount, Probability

PrivacyUnit = Literal["example", "person", "client"]
NeighboringRelation = Literal["add-or-remove", "replace-one"]
_Knowledge = Literal["nothing", "one", "coalition", "everything"]
"""Whose masks an adversary knows: nobody's, one node's, a coalition's, those of all others."""


class Unsampled(Frozen):
    """Sampling event: every unit takes part in the release."""

    kind: Literal["unsampled"] = "unsampled"


class PoissonSampled(Frozen):
    """Sampling event: each unit takes part independently with ``sampling_probability``."""

    kind: Literal["poisson"] = "poisson"
    sampling_probability: Probability


class SampledWithoutReplacement(Frozen):
    """Sampling event: a uniform subset of ``sample_size`` of ``population`` units takes part."""

    kind: Literal["without-replacement"] = "without-replacement"
    sample_size: PositiveCount
    population: PositiveCount

    @model_validator(mode="after")
    def _fits(self) -> "SampledWithoutReplacement":
        if self.sample_size > self.population:
            raise ValueError(
                f"Expected sample_size <= population = {self.population}, got {self.sample_size}"
            )
        return self


Sampling = Annotated[Unsampled | PoissonSampled | SampledWithoutReplacement, BY_KIND]


class Release(Frozen):
    """A charge: ``count`` adaptive releases with one noise multiplier, Gaussian or Laplace.

    Under masks that nodes share with their neighbours, who knows fewer of them sees more noise:
    ``to_server``, ``to_one`` and ``to_coalition`` are then the multipliers of those who know no
    masks, one node's and a coalition's (`seen_by`), and ``noise_multiplier`` is the own noise
    alone, which is what everybody else together sees.
    """

    kind: Literal["gaussian", "laplace"] = "gaussian"
    unit: PrivacyUnit
    neighboring_relation: NeighboringRelation
    noise_multiplier: NonNegative
    """Standard deviation of Gaussian noise over the L2 sensitivity of the query, or scale of
    Laplace noise in every coordinate over the L1 sensitivity, *under the stated neighbouring
    relation*, for the worst pair of neighbours that the sampling selects. 0 means that nothing was
    added: an infinite epsilon."""
    to_server: NonNegative | None = None
    to_one: NonNegative | None = None
    to_coalition: NonNegative | None = None
    sampling: Sampling = Unsampled()
    count: int = Field(default=1, ge=0, le=10**15)
    label: str = "gradient"
    """Which query it was ("gradient", "anchor", "correction", "upload", "quantile")."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> "Release":
        if self.kind == "laplace" and not isinstance(self.sampling, Unsampled):
            raise ValueError(f"Expected unsampled Laplace noise, got {self.sampling}")
        hidden = (self.to_server, self.to_one, self.to_coalition)
        if any(one is not None for one in hidden) and (None in hidden or self.kind == "laplace"):
            raise ValueError(
                "Expected Gaussian noise and all of to_server, to_one and to_coalition under "
                f"masks, got {self.kind} noise and {hidden}"
            )
        return self

    @property
    def is_masked(self) -> bool:
        """Whether masks hide more of it from some adversaries than from others."""
        return self.to_server is not None


Releases = tuple[Release, ...]


def seen_by(knows: _Knowledge, releases: Iterable[Release]) -> Releases:
    """Returns the releases as an adversary sees them who knows these masks."""
    bare = {"to_server": None, "to_one": None, "to_coalition": None}

    def seen(one: Release) -> Release:
        known = {"nothing": one.to_server, "one": one.to_one, "coalition": one.to_coalition}
        multiplier = known.get(knows, one.noise_multiplier)
        return one.model_copy(update={"noise_multiplier": multiplier, **bare})

    return tuple(seen(one) if one.is_masked else one for one in releases)


def repeated(releases: Iterable[Release], times: int) -> Releases:
    """Returns ``releases`` ``times`` times over."""
    return tuple(one.model_copy(update={"count": one.count * times}) for one in releases)


def unsampled(releases: Iterable[Release]) -> Releases:
    """Returns the releases as an adversary sees them who knows which units were sampled."""
    return tuple(one.model_copy(update={"sampling": Unsampled()}) for one in releases)


AdversaryName = Literal["server", "external", "client-level"]


@dataclass(frozen=True)
class Adversary:
    """An adversary: what it sees of a run, and how it is named in a statement."""

    name: str
    """On disk and in configs."""
    text: str
    """Who it is and what it sees, for statements."""
    releases: Literal["updates", "aggregate"] = "updates"
    """What the adversary sees: clients' releases about examples, or the server's of clients."""
    sees_cohorts: bool = True
    knows: _Knowledge = "nothing"
    """Whose pairwise masks it knows."""


SERVER = Adversary("server", "the server, who sees every cohort and every upload")
EXTERNAL = Adversary(
    "external", "an outsider who sees every broadcast model and no cohort", sees_cohorts=False
)
CLIENT_LEVEL = Adversary(
    "client-level",
    "an outsider who sees every broadcast model; the server is trusted",
    "aggregate",
    sees_cohorts=False,
)
CLIENT_LEVEL_COHORTS = Adversary(
    "client-level-cohorts",
    "an outsider who also sees which clients took part; the server is trusted",
    "aggregate",
)
ADVERSARIES = (SERVER, EXTERNAL, CLIENT_LEVEL, CLIENT_LEVEL_COHORTS)
"""Adversaries of a star: all that ledgers are priced for; a config names one of the first three."""

OF_MASKS = (
    SERVER,
    Adversary(
        "one-node",
        "any one other node, who sees every message and knows its own masks or noise",
        knows="one",
    ),
    Adversary(
        "coalition",
        "nodes that collude, with the server if they like, and know their masks or noise",
        knows="coalition",
    ),
    Adversary(
        "everybody",
        "everybody else together: a node's own noise is what protects it",
        knows="everything",
    ),
)
"""Adversaries I to IV of DECOR, of messages under pairwise masks; the server eavesdrops."""
COALITION = OF_MASKS[2]


def named(name: str) -> Adversary:
    """Returns the adversary that a config names."""
    return next(a for a in (*ADVERSARIES, *OF_MASKS) if a.name == name)


class Label(StrEnum):
    """The word that stands before every epsilon: whether the noise behind it can be subtracted.

    An epsilon is a price. It protects somebody only where nobody can compute the noise again, and
    that is decided by where the keys of the noise came from (privacy/random_numbers.py). Every
    command and every document that shows an epsilon shows one of these words before it, in words
    and in JSON as ``label``, in tables and csv files as a column; none holds a comma, so that each
    is one cell.
    """

    RELEASE = "release"
    """Every noise source that was used had a key of an operating system."""
    SEEDED = "seeded run (no guarantee)"
    """The noise is, or may be, keyed by the config's seed: whoever has the config subtracts it."""
    PLANNED = "price only (no noise drawn)"
    """A price of what may come: a plan, a mechanism, a run before its first charge."""
    NOT_PRIVATE = "not private"
    """No noise is added."""
    UNKNOWN = "unknown"
    """Something was charged, and nothing that can be believed says where its noise came from."""

    __repr__ = str.__repr__


AUTHENTICITY = {
    "unkeyed": "unkeyed: accidents are excluded, a consistent rewrite is not",
    "not checked": "keyed, but no key was given: a consistent rewrite is not excluded",
    "verified": "keyed: every line is by the holder of the key",
}
"""What a ledger's tags exclude, by `Verified.authenticity`."""


def label_of(
    noise_source: str | None,
    origins: Iterable[str],
    *,
    is_charged: bool = True,
    is_private: bool = True,
) -> Label:
    """Returns the label for what a config asks for and what the noise sources said.

    Guarantee: a release is said only where the config, if it is known, asks for one, and every
    noise source that was used had a key of the operating system.

    Args:
        noise_source: "os" or "seed", as the config has it; None where only a ledger is known.
        origins: where the keys of all noise came from so far, as the sources said.
        is_charged: whether anything was charged, so that noise may have been drawn.
        is_private: whether the config adds any noise.
    """
    found = set(origins)
    if not is_private:
        return Label.NOT_PRIVATE
    if noise_source == "seed" or "seed" in found:
        return Label.SEEDED
    if noise_source not in (None, "os"):
        return Label.UNKNOWN
    if not found:
        return Label.UNKNOWN if is_charged else Label.PLANNED
    return Label.RELEASE if found == {"os"} else Label.UNKNOWN

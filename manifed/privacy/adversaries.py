"""Who looks at a run: adversaries as data. What one sees decides how charges are priced.

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

from dataclasses import dataclass
from typing import Final, Literal

AdversaryName = Literal["server", "external", "client-level"]


@dataclass(frozen=True)
class Adversary:
    """One who looks at what a run releases."""

    name: str
    """On disk and in configs."""
    text: str
    """Who it is and what it sees, for statements."""
    releases: Literal["updates", "aggregate"]
    """What it learns from: what clients release about examples, or the server about clients."""
    sees_cohorts: bool


SERVER: Final = Adversary(
    "server", "the server, who sees every cohort and every upload", "updates", sees_cohorts=True
)
EXTERNAL: Final = Adversary(
    "external",
    "an outsider who sees every broadcast model and no cohort",
    "updates",
    sees_cohorts=False,
)
CLIENT_LEVEL: Final = Adversary(
    "client-level",
    "an outsider who sees every broadcast model; the server is trusted",
    "aggregate",
    sees_cohorts=False,
)
ADVERSARIES: Final = (SERVER, EXTERNAL, CLIENT_LEVEL)
"""Those of a star: all that configs and ledgers can name."""


def named(name: AdversaryName) -> Adversary:
    """The adversary that a config names."""
    return next(adversary for adversary in ADVERSARIES if adversary.name == name)

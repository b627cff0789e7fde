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

from manifed.privacy.events import Knowledge

AdversaryName = Literal["server", "external", "client-level"]
MaskAdversaryName = Literal["server", "one-node", "coalition", "everybody"]
"""Who looks at masked messages: the adversaries I to IV of DECOR."""


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
    knows: Knowledge = "nothing"
    """Whose pairwise masks it knows."""


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
"""Adversaries of a star: all that configs and ledgers can name."""

ONE_NODE: Final = Adversary(
    "one-node",
    "any one other node, who sees every message and knows its own masks",
    "updates",
    sees_cohorts=True,
    knows="one",
)
COALITION: Final = Adversary(
    "coalition",
    "nodes that collude, with the server if they like, and know all their masks",
    "updates",
    sees_cohorts=True,
    knows="coalition",
)
EVERYBODY: Final = Adversary(
    "everybody",
    "everybody else together: masks hide nothing, a node's own noise is what protects it",
    "updates",
    sees_cohorts=True,
    knows="everything",
)
OF_MASKS: Final = (SERVER, ONE_NODE, COALITION, EVERYBODY)
"""Adversaries of messages under pairwise masks; with masks the server is the eavesdropper."""


def named(name: AdversaryName | MaskAdversaryName) -> Adversary:
    """The adversary that a config names."""
    return next(a for a in (*ADVERSARIES, *OF_MASKS) if a.name == name)

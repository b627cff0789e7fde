"""What every client half is: a frozen table of hyperparameters with a pure ``update``.

A half sees what came down, its own memory, an oracle, the geometry and its draws; nothing else. It
runs unchanged for one client and for a stacked cohort.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from manifed.algorithms.payloads import Payload
from manifed.manifolds.base import Manifold
from manifed.oracles.draws import Draws
from manifed.oracles.oracle import Oracle
from manifed.privacy.events import GaussianRelease
from manifed.privacy.mechanism import ExampleMechanism


@dataclass(frozen=True)
class Memory(Payload):
    """What a client remembers between rounds: a frozen record of tensors that never travels."""


Place = Literal["point", "point-nearby", "tangent", "ambient"]
"""Where what comes down lies: on the manifold, near it (only its projection is used as a point),
tangent at the point of this round, or anywhere in the ambient space."""


@dataclass(frozen=True)
class Phase:
    """One exchange of a round: its name, what goes down and up, and where what comes down lies."""

    name: str
    down: type[Payload]
    up: type[Payload]
    places: tuple[Place, ...] = ("point",)
    """One for each field of ``down``; the client refuses what is elsewhere."""


class ClientUpdate(Protocol):
    """The client half of an algorithm."""

    @property
    def kind(self) -> str:
        """The name in the config."""
        ...

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The exchanges of one round, in order."""
        ...

    def initial_memory(self, x: Tensor) -> Memory | None:
        """What a client remembers before its first turn, for a point x; None when nothing ever."""
        ...

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """The upload and the new memory."""
        ...

    def releases(
        self, mechanism: ExampleMechanism, num_examples: int
    ) -> tuple[GaussianRelease, ...]:
        """What one turn releases about the client's examples."""
        ...

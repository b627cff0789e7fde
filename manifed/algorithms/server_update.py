"""What every server half is: a frozen table of hyperparameters with pure state transitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from manifed.algorithms.payloads import Payload
from manifed.manifolds.base import Manifold

Space = Literal["tangent", "ambient"]
"""Where uploads live: at the broadcast point, or in the embedding space."""


@dataclass(frozen=True)
class ServerState:
    """What the server carries from round to round, by name; all of it goes into a checkpoint."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def replace(self, **tensors: Tensor) -> "ServerState":
        """The state with some tensors replaced."""
        return ServerState({**self.tensors, **tensors})


@dataclass(frozen=True)
class Collected:
    """The uploads of one phase after aggregation.

    ``mean`` holds the weighted mean of every field of the payload; ``uploads`` the stacked payload
    it came from, for algorithms that keep a record of each client (rows follow ``partitions``).
    """

    mean: Mapping[str, Tensor]
    uploads: Payload
    partitions: tuple[int, ...]
    num_clients: int
    uniform: float
    """One uniform of the round in (0, 1), for Option 2's choice of an output."""


class ServerUpdate(Protocol):
    """The server half of an algorithm."""

    @property
    def kind(self) -> str:
        """The name in the config."""
        ...

    @property
    def space(self) -> Space:
        """Where the uploads live."""
        ...

    @property
    def weights(self) -> Literal["num-examples", "uniform"]:
        """How clients are weighted in the mean."""
        ...

    @property
    def needs_everyone(self) -> bool:
        """Whether a round is void unless every client replies."""
        ...

    def initial(self, x: Tensor) -> ServerState:
        """The state before round 1."""
        ...

    def down(self, state: ServerState, phase: str) -> Payload:
        """What is broadcast in a phase."""
        ...

    def base(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The point at which uploads are vectors, shape ``(*point)``."""
        ...

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """The state after a phase."""
        ...

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The model of a state: a point on the manifold."""
        ...

    def output(self, state: ServerState, manifold: Manifold) -> Tensor:
        """What the algorithm returns at the end (Option 2: a drawn iterate)."""
        ...

"""What every algorithm is: a client update and a server update, pure functions over frozen tables.

A client update sees what came down, its own memory, an oracle, the geometry and its draws; nothing
else. It runs unchanged for one client and for a stacked cohort. A server update is a table with
pure state transitions. Where a paper ties the two, one object is both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from manifed.algorithms.payloads import Down, Payload
from manifed.manifolds.base import Manifold, MapChoice
from manifed.oracles.oracle import Draws, Oracle
from manifed.oracles.query import Query
from manifed.privacy.events import Event
from manifed.privacy.mechanism import ExampleMechanism


@dataclass(frozen=True)
class Memory(Payload):
    """What a client remembers between rounds: a frozen record of tensors that never travels."""


Place = Literal["point", "point-nearby", "tangent", "ambient", "any"]
"""Where what comes down lies: on the manifold, near it (only its projection is used as a point),
tangent at the point of this round, anywhere in the ambient space, or nowhere on it (a key)."""

UploadPlace = Literal["tangent", "ambient", "point", "any"]
"""Where an upload lies: tangent at the server's base, in the ambient space, on the manifold, or
nowhere on it."""


@dataclass(frozen=True)
class Phase:
    """One exchange of a round: its name, what goes down and up, and where what comes down lies."""

    name: str
    down: type[Payload]
    up: type[Payload]
    places: tuple[Place, ...] = ("point",)
    """One for each field of ``down``; the client refuses what is elsewhere."""
    uploads: tuple[UploadPlace, ...] = ()
    """One for each field of ``up``; the server drops what is elsewhere; (): the server's space."""
    aggregation: Literal["mean", "none"] = "mean"
    """What the server update gets beside the uploads; "none" for keys, and where it mixes."""
    needs_all: bool = False
    """Whether the round is void unless all who are asked in this exchange reply."""


@dataclass(frozen=True)
class Work:
    """Calls of the geometry in one round; ``gradients`` are oracle queries (a mean counts once)."""

    gradients: int = 0
    projections: int = 0
    exponentials: int = 0
    logarithms: int = 0
    retractions: int = 0
    inverse_retractions: int = 0
    transports: int = 0

    @staticmethod
    def of_moves(maps: MapChoice, forward: int, inverse: int, **others: int) -> "Work":
        """So many steps, and vectors between points, by exact maps or by retractions."""
        if maps == "exact":
            return Work(exponentials=forward, logarithms=inverse, **others)
        return Work(retractions=forward, inverse_retractions=inverse, **others)


@runtime_checkable
class SetUp(Protocol):
    """A client update with exchanges of all clients before round 1, in which no record is used."""

    @property
    def setup_phases(self) -> tuple[Phase, ...]:
        """The exchanges of round 0, in order, named unlike those of a round; memory is kept."""
        ...


@runtime_checkable
class RemembersSetUp(Protocol):
    """A client update whose memory of the exchanges before round 1 never goes out of date."""

    @property
    def remembers_setup(self) -> bool:
        """Whether memory of any round and attempt of this run is the one to go on with."""
        ...


def remembers_setup(training: object) -> bool:
    """Whether any client update's memory outlives a failed attempt."""
    return isinstance(training, RemembersSetUp) and training.remembers_setup


def setup_phases_of(training: object) -> tuple[Phase, ...]:
    """The exchanges before round 1 of any client update."""
    return training.setup_phases if isinstance(training, SetUp) else ()


class ClientUpdate(Protocol):
    """What a client does in a round."""

    @property
    def kind(self) -> str:
        """The name in the config."""
        ...

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The exchanges of one round, in order."""
        ...

    def initial_memory(self, x: Tensor) -> Memory | None:
        """What a client remembers before its first update, at a point x; None: nothing, ever."""
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
        """The upload and the new memory.

        A point that came down is a `geoopt.ManifoldTensor` on ``manifold``; clone it before an
        optimizer changes it in place.
        """
        ...

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """What it asks the oracle, in one round: clip, noise and charge of each kind of query."""
        ...

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Event, ...]:
        """What one round releases about the client's examples."""
        ...


@runtime_checkable
class Scheduled(Protocol):
    """A client update that changes with the round: its step sizes, batches, queries, releases."""

    def in_round(self, server_round: int) -> ClientUpdate:
        """The client update of that round; phases, memory and payloads are those of every round."""
        ...


@runtime_checkable
class ReadsInOrder(Protocol):
    """A client update that may use up a client's records one after the other."""

    @property
    def is_in_order(self) -> bool:
        """Whether it does."""
        ...

    def largest_batch(self, num_examples: int) -> int:
        """Of the rounds that so many records are enough for."""
        ...


def in_round(training: ClientUpdate, server_round: int) -> ClientUpdate:
    """What any client update is in a round."""
    return training.in_round(server_round) if isinstance(training, Scheduled) else training


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
    Under client-level privacy there is the noised mean alone: no upload, no partition.
    """

    mean: Mapping[str, Tensor]
    uploads: Payload | None
    partitions: tuple[int, ...]
    num_clients: int
    draw: Callable[[], float]
    """Draws the one uniform of the round in (0, 1); most algorithms never ask."""

    @property
    def uniform(self) -> float:
        """The uniform of the round, for Option 2's choice of an output; the same at every look."""
        return self.draw()


@runtime_checkable
class ServerUpdate(Protocol):
    """What the server does with the uploads of a round."""

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

    def down(self, state: ServerState, phase: str) -> Down:
        """What goes down in a phase: one payload for all, or a row for every client."""
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


@runtime_checkable
class KeepsNodeModels(Protocol):
    """A server update with a model for every node; its ``model`` is their mean."""

    def node_models(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The models of a state, (n, *point), in the order of the partitions."""
        ...


@runtime_checkable
class MayDisclose(Protocol):
    """A server update with exchanges that are made only where they are needed, and cost more."""

    def is_due(self, state: ServerState, phase: str) -> bool:
        """Whether an exchange takes place in this state."""
        ...

    def disclosed(self, state: ServerState, phase: str) -> tuple[int, ...]:
        """The clients whose masks an exchange discloses; () for one that discloses nothing more."""
        ...


@runtime_checkable
class JudgesUploads(Protocol):
    """A server update that refuses some uploads for what is in them, wherever they lie."""

    def refused(
        self, state: ServerState, phase: str, uploads: Payload, partitions: tuple[int, ...]
    ) -> Mapping[int, str]:
        """Whose part in an exchange cannot be used and why, by client; ``uploads`` has their rows.

        Also a client that others' uploads are about.
        """
        ...


@runtime_checkable
class DeclaresServerWork(Protocol):
    """A server update whose page states what it calls."""

    @property
    def server_work(self) -> Work:
        """Calls of the server in one round, whatever the number of clients."""
        ...

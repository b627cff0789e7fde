"""The base classes of every algorithm: its client update, its server update, their defaults.

An algorithm states what a client does in a round (`ClientUpdate`), what the server makes of it
(`ServerUpdate`), or both, where its paper ties the two (`Algorithm`). An object is a frozen table
of hyperparameters and its methods are pure. A client sees what came down, its own memory, an
oracle, the geometry and its draws, and nothing else; the code is written for one client and runs
unchanged for a stacked cohort, with a leading dimension everywhere.

Only `ClientUpdate.client` has to be written. What a round is charged follows from `asks`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import PrivateAttr
from torch import Tensor

from manifed.algorithms.payloads import (
    Displacement,
    Down,
    Memory,
    Partitions,
    Payload,
    Point,
    State,
    recorded,
)
from manifed.errors import check_kind
from manifed.fields import Frozen, Positive, PositiveCount
from manifed.manifolds.base import Manifold, MapChoice, as_point
from manifed.oracles.minibatch import Ask, Full, Minibatch, Query
from manifed.oracles.noisy_oracle import STEPS_PER_PHASE, Draws, Oracle
from manifed.privacy.events import Releases
from manifed.privacy.mechanism import ExampleMechanism

Space = Literal["tangent", "ambient"]
"""Where uploads live: at the broadcast point, or in the embedding space."""
Weighting = Literal["num-examples", "uniform"]
"""A client's weight in a mean: its number of examples, or 1."""
Place = Literal["point", "point-nearby", "tangent", "ambient", "any"]
"""Where a value lies: on the manifold, near it (only its projection is used as a point, and no
upload), tangent at the point of this round or the server's base, anywhere in the ambient space, or
nowhere on it (a key)."""


@dataclass(frozen=True)
class Phase:
    """One exchange of a round: its name, both payload types, and places of downlink fields."""

    name: str
    down: type[Payload]
    up: type[Payload]
    places: tuple[Place, ...] = ("point",)
    """One for each field of ``down``; the client refuses what is elsewhere."""
    uploads: tuple[Place, ...] = ()
    """One for each field of ``up``; the server drops what is elsewhere; (): the server's space."""
    aggregation: Literal["mean", "none"] = "mean"
    """What the server update gets beside the uploads; "none" for keys, and where it mixes."""


class Here(NamedTuple):
    """The circumstances of a client update: its manifold, round, phase and random draws."""

    manifold: Manifold
    exchange: str
    round: int
    came: Payload
    """All that came down; its first field is the ``x`` that a client is given."""
    memory: Any
    """What `ClientUpdate.client` returned last, by name; before that what `remember` says."""
    draws: Draws
    places: tuple[Place, ...] = ()
    """Where the fields of ``came`` lie (`Phase.places`)."""

    @property
    def down(self) -> Any:
        """All that came down, points as tensors of the manifold."""
        placed = {
            name: as_point(value, self.manifold)
            for (name, value), place in zip(vars(self.came).items(), self.places, strict=False)
            if place == "point"
        }
        return replace(self.came, **placed)


class ClientUpdate(Frozen):
    """The client side of an algorithm: what it asks its oracle, and what it uploads."""

    kind: Any
    """The name in the config."""
    space: ClassVar[Space] = "tangent"
    without_client_level: ClassVar[str | None] = None
    """Why there is no client-level privacy with it; None: there is, where one vector goes up."""
    has_masks: ClassVar[bool] = False
    """Whether noise of neighbours cancels, which privacy.kind = "correlated" prices."""
    draws_laplace: ClassVar[bool] = False
    """Whether it may be run with Laplace noise."""
    noise_is: ClassVar[str] = "tangent Gaussian at"
    """What noise a statement says there is at each client."""
    has_memory: ClassVar[bool] = False
    """Whether a client has a memory, which `remember` or `initial_memory` begins."""

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        super().__pydantic_init_subclass__(**settings)
        begins = (cls.remember, cls.initial_memory)
        cls.has_memory = begins != (ClientUpdate.remember, ClientUpdate.initial_memory)

    # -- one update --------------------------------------------------------------------------
    @abstractmethod
    def client(
        self, x: Tensor, oracle: Oracle, here: Here
    ) -> Tensor | Payload | tuple[Tensor | Payload, State | Memory | None]:
        """Returns the upload and the new memory, given the payload that came down.

        A point that came down is a `geoopt.ManifoldTensor` in ``here.down``; clone it before an
        optimizer changes it in place.
        """

    def remember(self, x: Tensor) -> State | None:
        """Returns the memory of a client before its first update; None if it never has any."""
        return None

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The exchanges of one round, in order; the default is a point down and a vector up."""
        return (Phase("train", Point, Displacement, uploads=(self.space,)),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Returns the tensors of `remember` as a record; None if the client has no memory."""
        made = self.remember(x)
        return None if made is None else recorded(made, f"{type(self).__name__}.remember")

    # -- what is asked and released ----------------------------------------------------------
    def asks(self) -> tuple[Ask, ...]:
        """Lists the questions to the oracle in one round; the default is one full gradient."""
        return (Ask(),)

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """Gives each of the `asks` the clip, noise and charge of a mechanism."""
        return tuple(Query.of(mechanism, ask, num_examples) for ask in asked_of(self))

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> Releases:
        """Lists the releases about the client's examples that one round is charged for."""
        asked = self.queries(mechanism, num_examples)
        return tuple(release for query in asked for release in query.release())

    # -- rounds that differ, and exchanges before round 1 ------------------------------------
    _round: int = PrivateAttr(default=1)

    def in_round(self, server_round: int) -> "ClientUpdate":
        """Returns the update as it is run in one round; phases and memory do not change."""
        return self

    def with_round(self, server_round: int) -> Self:
        """Returns a copy whose queries and releases are those of one round, kept in ``_round``."""
        found = self.model_copy()
        found._round = server_round
        return found

    @property
    def is_scheduled(self) -> bool:
        """Whether queries and releases depend on the round."""
        return type(self).in_round is not ClientUpdate.in_round

    @property
    def is_in_order(self) -> bool:
        """Whether records are read in order and used once, so that they may be a stream."""
        return False

    def largest_batch(self, num_examples: int) -> int | None:
        """Returns the largest batch that so many records allow; None if the queries say it."""
        return num_examples if self.is_scheduled else None

    @property
    def setup_phases(self) -> tuple[Phase, ...]:
        """The exchanges of round 0, which use no record; their names differ from a round's."""
        return ()

    @property
    def remembers_setup(self) -> bool:
        """Whether memory written in any round or attempt of this run may be continued from."""
        return False

    @property
    def tried(self) -> "ClientUpdate":
        """The update that is tried before round 1; another one where this wraps it."""
        return self

    @property
    def memory_is_required(self) -> bool:
        """Whether no reply may leave before what the client remembers with it is kept."""
        return False

    # -- what is said of it ------------------------------------------------------------------
    @property
    def server_maps(self) -> MapChoice | None:
        """The manifold maps by which the server must undo these uploads; None: any will do."""
        return None

    @property
    def published_steps(self) -> int | None:
        """The number of steps in the paper's noise formula; None if the paper has no formula."""
        return None

    @property
    def premise(self) -> str:
        """The statement's sentence about what a client does to its records beside the clip."""
        return ""

    @property
    def kept_noise(self) -> str | None:
        """The statement's sentence about noise that a client keeps; None if it keeps none."""
        return None

    def check(self, setting: Any) -> None:
        """Refuses a run that the algorithm cannot do, or that no bound prices.

        Args:
            setting: a `manifed.setting.Setting`.

        Raises:
            ValueError: naming the field, its value and what works instead.
        """


def asked_of(update: ClientUpdate) -> tuple[Ask, ...]:
    """Returns the `ClientUpdate.asks` of an update.

    Raises:
        ConfigError: they are no tuple of questions.
    """
    asked = update.asks()
    for ask in asked if isinstance(asked, tuple) else (asked,):
        check_kind(f"{type(update).__name__}.asks", ask, Ask, "a tuple of Ask")
    return asked


class GradientSteps(ClientUpdate):
    """Base of client updates that take ``local_steps`` steps along minibatch gradients."""

    step_size: Positive
    """Local step size."""
    local_steps: PositiveCount = 1
    """Local steps per round."""
    minibatch: Minibatch = Full()
    """The examples of one step."""

    def asks(self) -> tuple[Ask, ...]:
        """``local_steps`` gradients; all else in an upload follows from them."""
        return (Ask(batch=self.minibatch, count=self.local_steps),)

    def check(self, setting: Any) -> None:
        """Refuse more steps than noise has addresses for."""
        check_steps("training.local_steps", self.local_steps)
        super().check(setting)


class MappedSteps(GradientSteps):
    """Base of gradient steps that move by exact maps or by retractions."""

    maps: MapChoice = "exact"
    """"retraction" approximates the exponential map, its inverse and the transport."""

    @property
    def server_maps(self) -> MapChoice | None:
        """The maps of the local steps, which the server must use too to undo an upload."""
        return self.maps

    def check(self, setting: Any) -> None:
        """Refuse exact maps that the manifold has not."""
        super().check(setting)
        if self.maps == "exact":
            check_exact_maps(self.kind, setting.manifold)


def check_steps(field: str, value: int) -> None:
    """Refuses more queries in a round than noise has addresses for."""
    if value > STEPS_PER_PHASE:
        raise ValueError(
            f"{field}: expected at most {STEPS_PER_PHASE}, which addresses can hold, got {value}"
        )


def check_exact_maps(kind: str, manifold: Manifold) -> None:
    """Refuse a manifold without an exact exponential map and logarithm."""
    if not manifold.has_logmap:
        raise ValueError(
            f"training.kind: {kind!r} with exact maps needs expmap and logmap, and "
            f"{manifold.name} has none; use training.maps = 'retraction' with 'rsgd', or "
            "training.kind = 'projected'"
        )


class Collected(NamedTuple):
    """The uploads of one phase: their means after aggregation, and each client's own.

    ``mean`` holds the weighted mean of every field of the payload; ``uploads`` the stacked payload
    it came from, for algorithms that keep a record of each client (rows follow ``partitions``).
    Under client-level privacy there is the noised mean alone: no upload, no partition.
    """

    mean: Mapping[str, Tensor]
    uploads: Payload | None
    partitions: Partitions
    num_clients: int
    uniform: Callable[[], float]
    """Draws the one uniform of the round in (0, 1), the same in every call, for Option 2's choice
    of an output; most algorithms never ask."""

    @property
    def rows(self) -> Tensor:
        """The first field of all uploads, one row per client."""
        if self.uploads is None:
            raise ValueError("Expected uploads, got the noised mean of client-level privacy")
        return self.uploads.point


class There(NamedTuple):
    """The circumstances of a server update: its manifold, round, phase and collected uploads."""

    manifold: Manifold
    exchange: str
    round: int
    collected: Collected


class ServerUpdate(Frozen):
    """The server side of an algorithm: what it sends, and how it steps on the uploads.

    By default one model for everybody in ``state["x"]``: it goes down, and what comes up is tangent
    at it.
    """

    kind: Any
    """The name in the config."""
    space: ClassVar[Space] = "tangent"
    """Where the uploads live."""
    needs_everyone: ClassVar[bool] = False
    """Whether a round is void unless every client replies."""

    mean_weights: ClassVar[Weighting] = "num-examples"
    """A client's weight in the mean, of an update without a field ``weights``."""
    reads_uploads: ClassVar[bool] = True
    """Whether `server` may look at `Collected.uploads`; else their mean is all that is kept."""
    judges_uploads: ClassVar[bool] = False
    """Whether the server refuses some uploads for their content (`refused`)."""
    opens_sums: ClassVar[bool] = False
    """Whether `attempted` and `opening` say anything."""

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        super().__pydantic_init_subclass__(**settings)
        cls.judges_uploads = cls.refused is not ServerUpdate.refused
        if "reads_uploads" not in vars(cls):  # it says so of the method that is inherited with it
            owner = next(one for one in cls.__mro__ if "server" in vars(one))
            cls.reads_uploads = vars(owner).get("reads_uploads", True)

    @property
    def weighting(self) -> Weighting:
        """The rule by which clients are weighted in the mean."""
        return getattr(self, "weights", self.mean_weights)

    def start(self, x: Tensor) -> State:
        """Returns the server's state before round 1."""
        return {"x": x}

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Returns the state after an exchange; ``mean`` is that of the first field of the uploads.

        It is empty where an exchange has no mean (`Phase.aggregation`).
        """
        return {"x": here.manifold.expmap(state["x"], mean)}

    def down(self, state: State, phase: str) -> Down:
        """Returns the payload of a phase: one for all clients, or a row for each."""
        return Point(state["x"])

    @property
    def tried_server(self) -> "ServerUpdate":
        """The server update that is tried before round 1, with `ClientUpdate.tried`."""
        return self

    def attempted(
        self, state: State, server_round: int, attempt: int, cohort: Partitions
    ) -> State | None:
        """Returns the state before an attempt's first exchange; None if nobody may be asked."""
        return state

    def opening(self, state: State, phase: str, asked: Partitions) -> tuple[int, Partitions] | None:
        """Returns what decides a round's price and is known only now; None: all was known before.

        How many clients could be in the sum that the next exchange opens, and who is. ``state`` is
        the one before the exchange of ``phase``, to which ``asked`` replied.
        """
        return None

    def base(self, state: State, manifold: Manifold) -> Tensor:
        """The point at which uploads are vectors, shape ``(*point)``."""
        return state["x"]

    def model(self, state: State, manifold: Manifold) -> Tensor:
        """The model of a state: a point on the manifold."""
        return state["x"]

    def output(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the algorithm's result at the end of a run (Option 2: a drawn iterate)."""
        return self.model(state, manifold)

    def node_models(self, state: State, manifold: Manifold) -> Tensor | None:
        """A model for every node, (n, *point), in the order of the partitions; None: there is one.

        `model` is their mean then.
        """
        return None

    def refused(
        self, state: State, phase: str, uploads: Payload, partitions: Partitions
    ) -> Mapping[int, str]:
        """Returns a reason for each client whose upload cannot be used because of its content.

        Also a client that others' uploads are about; ``uploads`` has the rows of ``partitions``.
        """
        return {}

    @property
    def is_average(self) -> bool:
        """Whether the model is an average of the points that were broadcast."""
        return False

    def check_server(self, setting: Any) -> None:
        """Refuses a run that the server update cannot do, as `ClientUpdate.check` does."""


class Algorithm(ClientUpdate, ServerUpdate):
    """Base class of an algorithm that is client and server update in one class.

    Only `client` has to be written.
    """

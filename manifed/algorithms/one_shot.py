"""What all one-shot releases share: one noised sum of per-example statistics from each client.

Where a problem is a function of a few sums over the examples (`Problem.sufficient_statistic`), each
client can release those once, with the whole budget, and the server solves what is left. Clip,
noise and charge are those of one full-batch gradient query. Client updates see the problem's
statistic through the oracle alone; server states hold the mean statistic and the model it gives.

Symbols: s_j the statistic of example j, in coordinates of R^m in which its norm is the one that is
clipped; the upload is (1/N_i) sum_j clip(s_j) + N(0, stddev^2 I_m), ``state["mean"]`` the weighted
mean of the uploads. Invariant: the model is a function of ``state["mean"]`` and of public numbers.
"""

from typing import ClassVar, Literal

from torch import Tensor

from manifed.algorithms.gradient_steps import releases_of
from manifed.algorithms.interface import (
    Collected,
    Memory,
    Phase,
    ServerState,
    Space,
    Work,
)
from manifed.algorithms.payloads import Payload, Point, Statistic
from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import Full
from manifed.oracles.oracle import Draws, Oracle
from manifed.oracles.query import Query
from manifed.privacy.events import Event, Frozen
from manifed.privacy.mechanism import ExampleMechanism
from manifed.problems.base import Problem

LABEL = "statistic"
"""Of the query, and of the release that it is charged as."""


class OneShot(Frozen):
    """One exchange: a noised mean statistic up, and the model that follows from their mean."""

    weights: Literal["num-examples", "uniform"] = "num-examples"
    """A client's weight in the mean: its number of examples, or 1."""
    minibatch: Full = Full()
    """Every example: a batch would save nothing, and add noise."""

    up: ClassVar[type[Statistic]]
    """What goes up; its layout is the size of the statistic."""
    takes: ClassVar[type[Problem]]
    """The statistic that it is priced for, and solves."""
    apart: ClassVar[float] = 2.0
    """How many clip norms two clipped ones are apart at most (replace-one)."""

    def solve(self, mean: Tensor, x: Tensor, manifold: Manifold) -> Tensor:
        """The model of a mean statistic (m,), shape and type of the point x."""
        raise NotImplementedError

    # -- the client --------------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        return (Phase("train", Point, self.up),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Nothing is remembered."""
        return None

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """The statistic, whatever the point that came down: it fixes shapes alone."""
        assert isinstance(down, Point)
        x = down.x.detach()
        lead = tuple(x.shape[: x.dim() - manifold.ndim])
        origin = x.new_zeros(*lead, *self._shape(tuple(x.shape[len(lead) :]), x))
        return self.up(oracle.statistic(origin, LABEL, self.takes)), None

    def _shape(self, point: tuple[int, ...], x: Tensor) -> tuple[int, ...]:
        return self.up.layout(point, x.dtype)["u"][0]

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """One mean of statistics."""
        return (Query.of(mechanism, Full(), num_examples, label=LABEL, apart=self.apart),)

    def releases(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Event, ...]:
        """What the round releases."""
        return releases_of(self.queries(mechanism, num_examples))

    @property
    def client_work(self) -> Work:
        """One sum over the examples."""
        return Work(gradients=1)

    # -- the server --------------------------------------------------------------------------
    @property
    def space(self) -> Space:
        """Uploads are vectors of a flat space."""
        return "ambient"

    @property
    def needs_everyone(self) -> bool:
        """Any cohort will do."""
        return False

    @property
    def server_work(self) -> Work:
        """No call of the geometry."""
        return Work()

    def initial(self, x: Tensor) -> ServerState:
        """Nothing is known: the start point is the model."""
        return ServerState({"x": x, "mean": x.new_zeros(*self._shape(tuple(x.shape), x))})

    def down(self, state: ServerState, phase: str) -> Payload:
        """The start point; what a client answers does not depend on it."""
        return Point(state["x"])

    def base(self, state: ServerState, manifold: Manifold) -> Tensor:
        """Of the shape of a statistic; uploads are vectors wherever they start."""
        return state["mean"]

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """The mean statistic, and the model that it gives."""
        mean = collected.mean["u"]
        return state.replace(mean=mean, x=self.solve(mean, state["x"], manifold))

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The model of the mean statistic."""
        return state["x"]

    def output(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The same."""
        return state["x"]

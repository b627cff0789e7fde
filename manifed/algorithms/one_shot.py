"""What all one-shot releases share: one noised sum of per-example statistics from each client.

Where a problem is a function of a few sums over the examples (`Problem.sufficient_statistic`), each
client can release those once, with the whole budget, and the server solves what is left. Clip,
noise and charge are those of one full-batch gradient query. Client updates see the problem's
statistic through the oracle alone; server states hold the mean statistic and the model it gives.

Symbols: s_j the statistic of example j, in coordinates of R^m in which its norm is the one that is
clipped; the upload is (1/N_i) sum_j clip(s_j) + N(0, stddev^2 I_m), ``state["mean"]`` the weighted
mean of the uploads. Invariant: the model is a function of ``state["mean"]`` and of public numbers.
"""

from typing import Any, ClassVar

from torch import Tensor

from manifed.algorithms.algorithm import (
    Algorithm,
    Here,
    Phase,
    ServerState,
    Space,
    State,
    There,
    Weighting,
)
from manifed.algorithms.payloads import Displacement, Payload, Point
from manifed.manifolds.base import Manifold
from manifed.oracles.minibatch import Full
from manifed.oracles.oracle import Oracle
from manifed.oracles.query import Ask
from manifed.problems.problem import Problem

LABEL = "statistic"
"""Of the query, and of the release that it is charged as."""


class OneShot(Algorithm):
    """One exchange: a noised mean statistic up, and the model that follows from their mean."""

    weights: Weighting = "num-examples"
    """A client's weight in the mean: its number of examples, or 1."""
    minibatch: Full = Full()
    """Every example: a batch would save nothing, and add noise."""

    space: ClassVar[Space] = "ambient"
    noise_is: ClassVar[str] = "Gaussian on the statistic of"
    up: ClassVar[type[Displacement]]
    """What goes up, a noised mean of per-example statistics; its layout is their size."""
    takes: ClassVar[type[Problem]]
    """The statistic that it is priced for, and solves."""
    solves: ClassVar[str]
    """The problems of a config that have it."""
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

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Payload:
        """The statistic, whatever the point that came down: it fixes shapes alone."""
        ndim = x.dim() - here.manifold.ndim
        origin = self._zero(x, tuple(x.shape[ndim:]), tuple(x.shape[:ndim]))
        return self.up(oracle.statistic(origin, LABEL, self.takes))

    def _zero(self, x: Tensor, point: tuple[int, ...], lead: tuple[int, ...] = ()) -> Tensor:
        """A statistic of zeros, for points of a shape."""
        return x.new_zeros(*lead, *self.up.layout(point, x.dtype)["u"][0])

    def asks(self) -> tuple[Ask, ...]:
        """One mean of statistics."""
        return (Ask(label=LABEL, apart=self.apart),)

    def check(self, setting: Any) -> None:
        """Refuse more rounds than one, and a problem that is no function of what is released."""
        rounds = setting.federation.num_rounds
        if rounds > 1:
            raise ValueError(
                f"federation.num_rounds: training.kind = {self.kind!r} releases once, expected "
                f"1, got {rounds}"
            )
        problem = setting.problem
        if problem and not isinstance(problem.sufficient_statistic, self.takes):
            raise ValueError(
                f"training.kind: {self.kind!r} solves problem.kind = "
                f"{self.solves}, got {setting.problem_name!r}; use training.kind = 'rsgd'"
            )

    # -- the server --------------------------------------------------------------------------
    def start(self, x: Tensor) -> State:
        """Nothing is known: the start point is the model."""
        return {"x": x, "mean": self._zero(x, tuple(x.shape))}

    def base(self, state: ServerState, manifold: Manifold) -> Tensor:
        """Of the shape of a statistic; uploads are vectors wherever they start."""
        return state["mean"]

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """The mean statistic, and the model that it gives."""
        return {"x": self.solve(mean, state["x"], here.manifold), "mean": mean}

"""The tangent mean: the server update of PriRFed (Algorithm 1).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 1 and (3.2); the aggregation is Li and Ma's (RFedSVRG, 2022). Client updates:
manifed/algorithms/rsgd.py (Algorithm 2), manifed/algorithms/rsvrg.py (Algorithm 3).

Symbols: x^(t) state["x"], Exp_{x}^{-1}(x_i) Displacement.u, w_i = N_i / sum N_l the weights of the
mean, S_t the cohort. Invariant: state["x"] is on the manifold.

Option 1 returns x^(T). Option 2 returns one of x^(1..T), or (as its proof needs) one of all inner
iterates while the chain goes on from the last one: a reservoir of size one draws either uniformly.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from manifed.algorithms.interface import Collected, ServerState, Space, Work
from manifed.algorithms.payloads import Payload, Point
from manifed.manifolds.base import Manifold, MapChoice
from manifed.privacy.events import Frozen


def tangent_mean(
    x: Tensor, mean: Tensor, server_step_size: float, manifold: Manifold, maps: MapChoice = "exact"
) -> Tensor:
    """Exp_x(server_step_size * sum_i w_i Exp_x^{-1}(x_i)), shape ``(*point)``."""
    return manifold.maps(maps).forward(x, server_step_size * mean)  # (3.2)


class TangentMean(Frozen):
    """Algorithm 1: one Riemannian gradient step on the weighted Fréchet mean of the uploads."""

    kind: Literal["tangent-mean"] = "tangent-mean"
    server_step_size: float = Field(default=1.0, gt=0)
    weights: Literal["num-examples", "uniform"] = "num-examples"
    output_rule: Literal["last", "uniform"] = "last"
    """Option 1 ("last") or Option 2 ("uniform"), lines 12 and 13."""
    maps: MapChoice | None = None
    """How the server moves; None: exactly, or in a config by the maps of ``training``."""

    @property
    def space(self) -> Space:
        """Uploads are tangent at the broadcast point."""
        return "tangent"

    @property
    def needs_everyone(self) -> bool:
        """Any cohort will do."""
        return False

    def initial(self, x: Tensor) -> ServerState:
        """The broadcast point, and the drawn output."""
        return ServerState({"x": x, "output": x})

    def down(self, state: ServerState, phase: str) -> Payload:
        """The broadcast point."""
        return Point(state["x"])  # line 3

    def base(self, state: ServerState, manifold: Manifold) -> Tensor:
        """Uploads are tangent at the broadcast point."""
        return state["x"]

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """Lines 10, 12 and 13."""
        start, size, maps = state["x"], self.server_step_size, self.maps or "exact"
        x = tangent_mean(start, collected.mean["u"], size, manifold, maps)  # line 10
        candidate = x
        if "drawn" in collected.mean:
            candidate = tangent_mean(start, collected.mean["drawn"], size, manifold, maps)
        keeps = self.output_rule == "last" or collected.uniform * server_round < 1.0  # line 13
        return state.replace(x=x, output=candidate if keeps else state["output"])

    @property
    def server_work(self) -> Work:
        """One step (and one for a drawn iterate, where the clients send one)."""
        return Work.of_moves(self.maps or "exact", 1, 0)

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The broadcast point."""
        return state["x"]

    def output(self, state: ServerState, manifold: Manifold) -> Tensor:
        """x^(T), or the drawn iterate."""
        return state["x"] if self.output_rule == "last" else state["output"]

"""The server half of RFedSVRG: mean gradient first, tangent mean second.

Li and Ma: Federated Learning on Riemannian Manifolds (2022), Algorithm 1. Client half:
manifed/algorithms/rfedsvrg.py.

Symbols: x^r state["x"], mean_i grad f_i(x^r) state["gradient"]. Invariant: state["x"] is on the
manifold and state["gradient"] tangent there.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.interface import Collected, ServerState, Space
from manifed.algorithms.payloads import MeanGradient, Payload, Point
from manifed.algorithms.tangent_mean import tangent_mean
from manifed.manifolds.base import Manifold
from manifed.manifolds.maps import MapChoice
from manifed.privacy.events import Frozen


class VarianceReduced(Frozen):
    """Two exchanges a round: gradients, then iterates."""

    kind: Literal["variance-reduced"] = "variance-reduced"
    server_step_size: float = Field(default=1.0, gt=0)
    weights: Literal["num-examples", "uniform"] = "uniform"
    maps: MapChoice = "exact"

    @property
    def space(self) -> Space:
        """Uploads are tangent at the broadcast point, in both phases."""
        return "tangent"

    @property
    def needs_everyone(self) -> bool:
        """Any cohort will do."""
        return False

    def initial(self, x: Tensor) -> ServerState:
        """The broadcast point; no gradient yet."""
        return ServerState({"x": x, "gradient": torch.zeros_like(x)})

    def down(self, state: ServerState, phase: str) -> Payload:
        """The point, then the mean gradient at it."""
        if phase == "gradient":
            return Point(state["x"])
        return MeanGradient(state["gradient"])

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
        """Keep the mean gradient, or move to the tangent mean."""
        mean = collected.mean["u"]
        if phase == "gradient":
            return state.replace(gradient=mean)
        x = tangent_mean(state["x"], mean, self.server_step_size, manifold, self.maps)
        return state.replace(x=x)

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The broadcast point."""
        return state["x"]

    def output(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The last point."""
        return state["x"]

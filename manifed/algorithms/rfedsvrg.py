r"""RFedSVRG: local steps corrected by the difference of local and mean gradient.

Li and Ma: Federated Learning on Riemannian Manifolds (2022), Algorithm 1, full participation and
option 1; rival of Zhang, Hu, So, Johansson (2024).

Phase "gradient": down comes x^r, up goes g_i^0 = grad f_i(x^r). Phase "train": down comes their
mean (x^r is remembered), and
    v = grad f_i(x_t; B) - Tr_{x^r -> x_t}( g_i^0 - mean_j g_j^0 ),   x_{t+1} = Exp_{x_t}( -eta v ).
Symbols: eta step_size, tau local_steps, Exp, Log and Tr the ``maps``; x^r state["x"],
mean_i grad f_i(x^r) state["gradient"].
The first local gradient of a full batch is g_i^0 and is not computed (or noised, or paid) twice.
Invariants: every iterate is on the manifold; what leaves is tangent at the broadcast point, and so
is state["gradient"].
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.algorithm import (
    Here,
    MappedSteps,
    Phase,
    ServerUpdate,
    State,
    There,
    Weighting,
)
from manifed.algorithms.broadcast import check_tangent
from manifed.algorithms.payloads import Displacement, MeanGradient, Payload, Point
from manifed.oracles.minibatch import Ask, Full
from manifed.oracles.oracle import Oracle


class RFedSVRG(MappedSteps, ServerUpdate):
    """Two exchanges a round: gradients, then iterates."""

    kind: Literal["rfedsvrg"] = "rfedsvrg"
    server_step_size: float = Field(default=1.0, gt=0)
    """The length of the server's step along the mean."""
    weights: Weighting = "uniform"
    """A client's weight in the mean: its number of examples, or 1."""

    # -- the client --------------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """The gradients first, the steps second."""
        return (
            Phase("gradient", Point, Displacement, uploads=("tangent",)),
            Phase("train", MeanGradient, Displacement, ("tangent",), ("tangent",)),
        )

    def remember(self, x: Tensor) -> State:
        """x^r and g_i^0 of this round; ``has_history`` (..., 1) is 0 before a first phase."""
        blank = {name: torch.zeros_like(x) for name in ("x", "gradient")}
        return blank | {"has_history": torch.zeros_like(x[..., :1])}

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> tuple[Tensor, Any]:
        """The upload of one phase; in phase "train" the mean gradient came down.

        Raises:
            ValueError: in phase "train", when this client did not go through phase "gradient".
        """
        before = here.memory
        if here.exchange == "gradient":
            g = oracle.gradient(x, "reference")
            seen = torch.ones_like(before["has_history"])
            return g, {"x": x, "gradient": g, "has_history": seen}
        if not bool(before["has_history"].all()):
            raise ValueError("Expected a gradient of phase 'gradient' in memory, got none")
        mean = x
        anchor = before["x"]
        maps = here.manifold.maps(self.maps)
        check_tangent("gradient", anchor, mean, here.manifold)
        x = anchor
        offset = before["gradient"] - mean
        for t in range(self.local_steps):
            if t > 0:
                v = oracle.gradient(x) - maps.transport(anchor, x, offset)
            else:
                v = mean if self.reuses_reference else oracle.gradient(x) - offset
            x = maps.forward(x, -self.step_size * v)
        return maps.inverse(anchor, x), before

    @property
    def reuses_reference(self) -> bool:
        """Whether the first local gradient is the one of phase "gradient"."""
        return self.minibatch.kind == "full"

    def asks(self) -> tuple[Ask, ...]:
        """One full gradient and the local ones, over both phases."""
        count = self.local_steps - 1 if self.reuses_reference else self.local_steps
        return (Ask(Full(), 1, "reference"), Ask(self.minibatch, count))

    # -- the server --------------------------------------------------------------------------
    def start(self, x: Tensor) -> State:
        """The broadcast point; no gradient yet."""
        return {"x": x, "gradient": torch.zeros_like(x)}

    def down(self, state: State, phase: str) -> Payload:
        """The point, then the mean gradient at it."""
        return Point(state["x"]) if phase == "gradient" else MeanGradient(state["gradient"])

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Keep the mean gradient, or move to the tangent mean."""
        if here.exchange == "gradient":
            return state | {"gradient": mean}
        forward = here.manifold.maps(self.maps).forward
        return state | {"x": forward(state["x"], self.server_step_size * mean)}

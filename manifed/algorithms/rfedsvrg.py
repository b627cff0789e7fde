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
from torch import Tensor

from manifed.algorithms.algorithm import Here, MappedSteps, Phase, ServerUpdate, There, Weighting
from manifed.algorithms.payloads import (
    Displacement,
    MeanGradient,
    Payload,
    Point,
    State,
    check_tangent,
)
from manifed.fields import Positive
from manifed.oracles.minibatch import Ask, Full
from manifed.oracles.noisy_oracle import Oracle


class RFedSVRG(MappedSteps, ServerUpdate):
    """RFedSVRG, with two exchanges per round: gradients at a common point, then iterates."""

    kind: Literal["rfedsvrg"] = "rfedsvrg"
    server_step_size: Positive = 1.0
    """Server step size."""
    weights: Weighting = "uniform"
    """Weight of a client in the mean: its number of examples, or 1."""

    # -- the client --------------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """Two exchanges: the gradients first, the local steps second."""
        return (
            Phase("gradient", Point, Displacement, uploads=("tangent",)),
            Phase("train", MeanGradient, Displacement, ("tangent",), ("tangent",)),
        )

    def remember(self, x: Tensor) -> State:
        """Returns x^r and g_i^0; ``has_history`` (..., 1) is 0 before a first phase."""
        blank = {name: torch.zeros_like(x) for name in ("x", "gradient")}
        return blank | {"has_history": torch.zeros_like(x[..., :1])}

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> tuple[Tensor, Any]:
        """Returns the upload of one phase: the local gradient, or the result of corrected steps.

        Raises:
            ValueError: in phase "train", when this client did not go through phase "gradient".
        """
        before = here.memory
        if here.exchange == "gradient":
            g = oracle.gradient(x, "reference")
            return g, {"x": x, "gradient": g, "has_history": torch.ones_like(x[..., :1])}
        if not bool(before["has_history"].all()):
            raise ValueError("Expected a gradient of phase 'gradient' in memory, got none")
        mean = x
        x = anchor = before["x"]
        maps = here.manifold.maps(self.maps)
        check_tangent("gradient", anchor, mean, here.manifold)
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
        """Asks for one full gradient and the local ones, over both phases."""
        count = self.local_steps - 1 if self.reuses_reference else self.local_steps
        return (Ask(Full(), 1, "reference"), Ask(self.minibatch, count))

    # -- the server --------------------------------------------------------------------------
    def start(self, x: Tensor) -> State:
        """Returns the state of the start point, without a gradient."""
        return {"x": x, "gradient": torch.zeros_like(x)}

    def down(self, state: State, phase: str) -> Payload:
        """Returns the point in the first phase, the mean gradient in the second."""
        return Point(state["x"]) if phase == "gradient" else MeanGradient(state["gradient"])

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Keeps the mean gradient in the first phase, moves to the tangent mean in the second."""
        if here.exchange == "gradient":
            return state | {"gradient": mean}
        maps = here.manifold.maps(self.maps)
        return state | {"x": maps.forward(state["x"], self.server_step_size * mean)}

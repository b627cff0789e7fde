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

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.broadcast import check_tangent
from manifed.algorithms.gradient_steps import GradientSteps
from manifed.algorithms.interface import Collected, Memory, Phase, ServerState, Work
from manifed.algorithms.payloads import Displacement, LocalGradient, MeanGradient, Payload, Point
from manifed.algorithms.tangent_mean import AtPoint, tangent_mean
from manifed.manifolds.base import Manifold, MapChoice, as_point, as_tangent
from manifed.oracles.minibatch import Full
from manifed.oracles.oracle import Draws, Oracle
from manifed.oracles.query import Query
from manifed.privacy.mechanism import ExampleMechanism


@dataclass(frozen=True)
class Reference(Memory):
    """x^r and g_i^0 of this round; ``has_history`` (..., 1) is 0 before a first phase."""

    x: Tensor
    gradient: Tensor
    has_history: Tensor


class RFedSVRG(GradientSteps, AtPoint):
    """Two exchanges a round: gradients, then iterates."""

    kind: Literal["rfedsvrg"] = "rfedsvrg"
    server_step_size: float = Field(default=1.0, gt=0)
    """Of the server's step along the mean."""
    weights: Literal["num-examples", "uniform"] = "uniform"
    """A client's weight in the mean: its number of examples, or 1."""
    maps: MapChoice = "exact"
    """"retraction" replaces Exp, Log and Tr, on both sides."""

    # -- the client --------------------------------------------------------------------------

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The gradients first, the steps second."""
        return (
            Phase("gradient", Point, LocalGradient, uploads=("tangent",)),
            Phase("train", MeanGradient, Displacement, ("tangent",), ("tangent",)),
        )

    def initial_memory(self, x: Tensor) -> Memory | None:
        """No gradient yet."""
        return Reference(torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x[..., :1]))

    @property
    def client_work(self) -> Work:
        """Tau steps, a transport in all but the first, one reference, the upload's logarithm."""
        steps = self.local_steps
        gradients = steps if self.reuses_reference else steps + 1
        return Work.of_moves(self.maps, steps, 1, gradients=gradients, transports=steps - 1)

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """The upload of one phase.

        Raises:
            ValueError: in phase "train", when this client did not go through phase "gradient".
        """
        assert isinstance(memory, Reference)
        if phase == "gradient":
            assert isinstance(down, Point)
            x = down.x.detach()
            g = oracle.gradient(x, "reference")
            return LocalGradient(g), Reference(x, g, torch.ones_like(memory.has_history))
        if not bool(memory.has_history.all()):
            raise ValueError("Expected a gradient of phase 'gradient' in memory, got none")
        assert isinstance(down, MeanGradient)
        check_tangent("gradient", memory.x, down.gradient, manifold)
        return self._steps(down, memory, oracle, manifold), memory

    def _steps(
        self, down: MeanGradient, memory: Reference, oracle: Oracle, manifold: Manifold
    ) -> Displacement:
        maps, x = manifold.maps(self.maps), memory.x
        offset = memory.gradient - down.gradient
        for t in range(self.local_steps):
            if t > 0:
                gradient = oracle.gradient(x)
                v = gradient - maps.transport(memory.x, x, offset)
            elif self.reuses_reference:
                v = down.gradient
            else:
                v = oracle.gradient(x) - offset
            x = maps.forward(x, -self.step_size * v)
        base = as_point(memory.x, manifold)
        return Displacement(as_tangent(maps.inverse(memory.x, x), base))

    @property
    def reuses_reference(self) -> bool:
        """Whether the first local gradient is the one of phase "gradient"."""
        return self.minibatch.kind == "full"

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """One full gradient and the local ones, over both phases."""
        count = self.local_steps - 1 if self.reuses_reference else self.local_steps
        return (
            Query.of(mechanism, Full(), num_examples, label="reference"),
            Query.of(mechanism, self.minibatch, num_examples, count=count),
        )

    # -- the server --------------------------------------------------------------------------
    def initial(self, x: Tensor) -> ServerState:
        """The broadcast point; no gradient yet."""
        return ServerState({"x": x, "gradient": torch.zeros_like(x)})

    def down(self, state: ServerState, phase: str) -> Payload:
        """The point, then the mean gradient at it."""
        if phase == "gradient":
            return Point(state["x"])
        return MeanGradient(state["gradient"])

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

    @property
    def server_work(self) -> Work:
        """One step."""
        return Work.of_moves(self.maps, 1, 0)

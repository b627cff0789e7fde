r"""Projected local steps with drift correction: the client half of Algorithm 1.

Zhang, Hu, So, Johansson: Nonconvex Federated Learning on Compact Smooth Submanifolds With
Heterogeneous Data (2024). Server half: manifed/algorithms/projection_mean.py.

Symbols: eta step_size, eta_g server_step_size, tau local_steps, x^r Point.x (ambient, unprojected),
P_M nearest, z-hat minus P_M(x) Displacement.u, g_{i,t} the oracle's gradient, c_i correction.
Invariant: with everybody in every round, the corrections of all clients sum to zero.

One matrix up a round. The correction is rebuilt from the next broadcast, so it costs no message.
Line 9 is left out at t = tau - 1, where nobody reads z: tau projections a turn.

Beyond the paper, ``ProjectedPartial`` takes part in some rounds only. A client that missed rounds
cannot rebuild its correction from the broadcast (several steps lie between), and the corrections
of those present do not sum to zero. So the server keeps the last plain displacement
D_i = -eta tau (1/tau) sum_t g_{i,t} of each client and broadcasts their mean over the known ones;
-eta tau c_i = mean D - D_i, zero for a client without history, sums to zero over all clients.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.gradient_steps import GradientSteps
from manifed.algorithms.interface import Memory, Phase
from manifed.algorithms.payloads import Displacement, Payload, Point, PointAndDisplacement
from manifed.manifolds.ambient import ambient_point, ambient_vector, nearest
from manifed.manifolds.base import Manifold
from manifed.oracles.draws import Draws
from manifed.oracles.oracle import Oracle


@dataclass(frozen=True)
class Drift(Memory):
    """What line 17 needs of the last turn; ``has_history`` (..., 1) is 0 before the first."""

    anchor: Tensor
    mean_gradient: Tensor
    has_history: Tensor


@dataclass(frozen=True)
class LastDisplacement(Memory):
    """The uncorrected displacement D_i of the last turn; ``has_history`` as in `Drift`."""

    u: Tensor
    has_history: Tensor


class Projected(GradientSteps):
    """Algorithm 1, full participation."""

    kind: Literal["projected"] = "projected"
    server_step_size: float = Field(default=1.0, gt=0)
    """eta_g; the same as the strategy's, since line 17 undoes line 13."""
    upload: Literal["corrected", "plain"] = "corrected"
    """"corrected": z-hat minus P(x), line 11. "plain": -eta tau mean_t g_t, without the correction.

    Both have one mean while the corrections sum to zero. When the server clips or noises its mean
    they do not, and corrected uploads carry the noise of each round into all later ones (the mean
    correction becomes a random walk); plain uploads forget it after one round.
    """

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        return (Phase("train", Point, Displacement, ("point-nearby",)),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """c_i^1 = 0."""
        return Drift(torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x[..., :1]))

    def correction(self, x: Tensor, memory: Drift) -> Tensor:
        """c_i^r from the broadcast x^r and the last turn, ambient, shape ``(..., *ambient)``."""
        total = self.server_step_size * self.step_size * self.local_steps
        rebuilt = (memory.anchor - x) / total - memory.mean_gradient  # line 17
        return memory.has_history * rebuilt

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """Lines 3-11, after line 17 of the round before."""
        assert isinstance(down, Point)
        assert isinstance(memory, Drift)
        c = self.correction(down.x, memory)
        anchor, end, mean = local_steps(self, down.x, c, oracle, manifold)
        u = end - anchor  # line 11
        if self.upload == "plain":
            u = -self.step_size * self.local_steps * mean
        return Displacement(u), Drift(anchor, mean, torch.ones_like(memory.has_history))


class ProjectedPartial(GradientSteps):
    """Algorithm 1 for clients that take part in some rounds only."""

    kind: Literal["projected-partial"] = "projected-partial"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange, two matrices down."""
        places = ("point-nearby", "ambient")
        return (Phase("train", PointAndDisplacement, Displacement, places),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """No displacement yet."""
        return LastDisplacement(torch.zeros_like(x), torch.zeros_like(x[..., :1]))

    def correction(self, mean_displacement: Tensor, memory: LastDisplacement) -> Tensor:
        """c_i, ambient; 0 without history."""
        undone = -self.step_size * self.local_steps
        return memory.has_history * (mean_displacement - memory.u) / undone

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """Corrected steps; what goes up is uncorrected, so the server's books cannot drift."""
        assert isinstance(down, PointAndDisplacement)
        assert isinstance(memory, LastDisplacement)
        c = self.correction(down.u, memory)
        _, _, mean = local_steps(self, down.x, c, oracle, manifold)
        u = -self.step_size * self.local_steps * mean
        return Displacement(u), LastDisplacement(u, torch.ones_like(memory.has_history))


def local_steps(
    half: GradientSteps, x: Tensor, correction: Tensor, oracle: Oracle, manifold: Manifold
) -> tuple[Tensor, Tensor, Tensor]:
    """(P_M(x), z-hat_tau, (1/tau) sum_t g_t), all ambient, shape ``(..., *ambient)``."""
    z = nearest(manifold, x)
    z_hat = anchor = ambient_point(manifold, z)  # line 3
    total = torch.zeros_like(anchor)
    for t in range(half.local_steps):  # line 4
        tangent = oracle.gradient(z, half.minibatch, half.stddev)  # lines 5-6
        gradient = ambient_vector(manifold, z, tangent)
        total.add_(gradient)
        z_hat = torch.sub(z_hat, gradient + correction, alpha=half.step_size)  # line 8
        if t + 1 < half.local_steps:
            z = nearest(manifold, z_hat)  # line 9
    return anchor, z_hat, total / half.local_steps

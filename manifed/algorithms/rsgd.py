"""Riemannian SGD: the client half of PriRFed with Algorithm 2 (RGD, RSGD, DP-RGD, DP-RSGD).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 2; Han, Mishra, Jawanpuria, Gao: Differentially private Riemannian optimization
(2024), Algorithm 1. Server half: manifed/algorithms/tangent_mean.py.

Symbols: x^(t) Point.x, K local_steps, alpha step_size, b_i minibatch, eta_k the oracle's gradient
(tau l2_norm_clip and sigma_i live in its mechanism), Exp manifold.expmap.
Invariant: every iterate is on the manifold; what leaves is tangent at the broadcast point.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.interface import Memory, Phase
from manifed.algorithms.payloads import Displacement, DisplacementAndIterate, Payload, Point
from manifed.manifolds.base import Manifold
from manifed.manifolds.maps import MapChoice, maps_of
from manifed.oracles.draws import Draws
from manifed.oracles.minibatch import Minibatch, Poisson
from manifed.oracles.oracle import Oracle
from manifed.privacy.events import Frozen, GaussianRelease
from manifed.privacy.mechanism import ExampleMechanism

Option = Literal["last-iterate", "random-iterate", "random-output"]
"""Option 1; Option 2 as printed; Option 2 as its proof needs it (spec 000 §7.2.4)."""


def chosen_iterate(iterates: list[Tensor], draws: Draws, ndim: int) -> Tensor:
    """One of the iterates, uniformly, independently for each client of a cohort."""
    stacked = torch.stack(iterates, dim=-1 - ndim)
    index = draws.index(len(iterates))
    lead = stacked.shape[: stacked.dim() - 1 - ndim]
    index = index.expand(lead).reshape(*lead, 1, *[1] * ndim)
    index = index.expand(*lead, 1, *stacked.shape[stacked.dim() - ndim :])
    return stacked.gather(-1 - ndim, index).squeeze(-1 - ndim)


def upload(
    option: Option,
    x: Tensor,
    iterates: list[Tensor],
    last: Tensor,
    manifold: Manifold,
    draws: Draws,
    maps: MapChoice = "exact",
) -> Payload:
    """What Options 1 and 2 send, as tangent vectors at the broadcast point x.

    The average acts on tangent vectors, so log is taken here and not at the server.
    """
    logmap = maps_of(maps, manifold).inverse
    if option == "last-iterate":
        return Displacement(logmap(x, last))
    drawn = logmap(x, chosen_iterate(iterates, draws, manifold.ndim))
    if option == "random-iterate":
        return Displacement(drawn)
    return DisplacementAndIterate(logmap(x, last), drawn)


class RSGD(Frozen):
    """K steps of Riemannian stochastic gradient descent."""

    kind: Literal["rsgd"] = "rsgd"
    step_size: float = Field(gt=0)
    local_steps: int = Field(default=1, ge=1)
    minibatch: Minibatch = Poisson(batch_size=32)
    output: Option = "last-iterate"
    maps: MapChoice = "exact"
    """"retraction" replaces Exp and its inverse (RFedAvg as its rivals ran it)."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        up = DisplacementAndIterate if self.output == "random-output" else Displacement
        return (Phase("train", Point, up),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Nothing is remembered between rounds."""
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
        """Algorithm 2 from the broadcast point."""
        assert isinstance(down, Point)
        maps = maps_of(self.maps, manifold)
        x, iterates = down.x, []  # line 1
        for _ in range(self.local_steps):
            iterates.append(x)
            eta = oracle.gradient(x, self.minibatch, self.stddev)  # lines 3-4
            x = maps.forward(x, -self.step_size * eta)  # line 5
        up = upload(self.output, down.x, iterates, x, manifold, draws, self.maps)  # lines 7-8
        return up, None

    def sensitivity(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """L2 sensitivity of one clipped mean gradient."""
        assert mechanism.l2_norm_clip is not None
        return mechanism.sensitivity(
            mechanism.l2_norm_clip, self.minibatch.expected_size(num_examples)
        )

    def stddev(self, mechanism: ExampleMechanism, num_examples: int) -> float:
        """sigma_i: standard deviation of the noise of one gradient."""
        return mechanism.stddev(self.sensitivity(mechanism, num_examples), num_examples)

    def releases(
        self, mechanism: ExampleMechanism, num_examples: int
    ) -> tuple[GaussianRelease, ...]:
        """``local_steps`` noised gradients."""
        if mechanism.l2_norm_clip is None:
            return ()
        return (
            mechanism.release(
                label="gradient",
                count=self.local_steps,
                stddev=self.stddev(mechanism, num_examples),
                sensitivity=self.sensitivity(mechanism, num_examples),
                sampling=self.minibatch.sampling(num_examples),
            ),
        )

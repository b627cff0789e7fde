"""Riemannian SGD: the client update of PriRFed with Algorithm 2 (RGD, RSGD, DP-RGD, DP-RSGD).

Huang, Huang, Jawanpuria, Mishra: Federated Learning on Riemannian Manifolds with Differential
Privacy, Algorithm 2; Han, Mishra, Jawanpuria, Gao: Differentially private Riemannian optimization
(2024), Algorithm 1. Server update: manifed/algorithms/tangent_mean.py.

Symbols: x^(t) Point.x, K local_steps, alpha step_size, b_i minibatch, eta_k the oracle's gradient
(tau l2_norm_clip and sigma_i live in its mechanism), Exp manifold.expmap.
Invariant: every iterate is on the manifold; what leaves is tangent at the broadcast point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from manifed.algorithms.gradient_steps import GradientSteps
from manifed.algorithms.interface import Memory, Phase, Work
from manifed.algorithms.payloads import Displacement, DisplacementAndIterate, Payload, Point
from manifed.manifolds.base import Manifold, MapChoice
from manifed.oracles.minibatch import Minibatch, Poisson
from manifed.oracles.oracle import Draws, Oracle

Option = Literal["last-iterate", "random-iterate", "random-output"]
"""Option 1; Option 2 as printed; Option 2 as its proof needs it (spec 000 §7.2.4)."""


@dataclass
class Output:
    """What Options 1 and 2 send, as tangent vectors at the broadcast point x.

    The index of Option 2 is drawn first, independently for each client of a cohort, and only the
    iterate at that index is kept.
    """

    option: Option
    x: Tensor
    count: int
    """Iterates, of which one is drawn uniformly; the last one does not count."""
    draws: Draws
    ndim: int

    def __post_init__(self) -> None:
        self._kept = self.x
        self._index: Tensor | None = None
        if self.option != "last-iterate":
            index = self.draws.index(self.count)
            self._index = index.reshape(*index.shape, *[1] * self.ndim)

    def see(self, k: int, x: Tensor) -> None:
        """Keep the iterate x number k = 0, 1, ..., count - 1 where it is the drawn one."""
        if self._index is not None:
            self._kept = torch.where(self._index == k, x, self._kept)

    def payload(self, last: Tensor, logmap: Callable[[Tensor, Tensor], Tensor]) -> Payload:
        """The upload; log is taken here and not at the server, whose mean is of tangent vectors."""
        if self.option == "last-iterate":
            return Displacement(logmap(self.x, last))
        drawn = logmap(self.x, self._kept)
        if self.option == "random-iterate":
            return Displacement(drawn)
        return DisplacementAndIterate(logmap(self.x, last), drawn)


def one_exchange(option: Option) -> Phase:
    """The point down, and up what an option sends: one tangent vector, or two."""
    up = DisplacementAndIterate if option == "random-output" else Displacement
    return Phase("train", Point, up, uploads=("tangent",) * len(up.names()))


class RSGD(GradientSteps):
    """K steps of Riemannian stochastic gradient descent."""

    kind: Literal["rsgd"] = "rsgd"
    minibatch: Minibatch = Poisson(batch_size=32)
    """The examples of one step."""
    output: Option = "last-iterate"
    """What of its local iterates a client sends."""
    maps: MapChoice = "exact"
    """"retraction" replaces Exp and its inverse (RFedAvg as its rivals ran it)."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        return (one_exchange(self.output),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Nothing is remembered between rounds."""
        return None

    @property
    def client_work(self) -> Work:
        """K steps, and a logarithm for each vector that goes up."""
        steps, inverse = self.local_steps, 2 if self.output == "random-output" else 1
        return Work.of_moves(self.maps, steps, inverse, gradients=steps)

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
        x = down.x.detach()  # line 1
        if self.output == "last-iterate" and manifold.is_whole_space:
            u = oracle.descended(x, self.step_size, self.local_steps)
            if u is not None:  # lines 2-8 in one product
                return Displacement(u), None
        maps = manifold.maps(self.maps)
        output = Output(self.output, x, self.local_steps, draws, manifold.ndim)
        for k in range(self.local_steps):  # line 2
            output.see(k, x)
            eta = oracle.gradient(x)  # lines 3-4
            x = maps.forward(x, -self.step_size * eta)  # line 5
        return output.payload(x, maps.inverse), None  # lines 7-8

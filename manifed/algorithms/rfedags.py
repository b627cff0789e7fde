r"""RFedAGS: averaging gradient streams, for clients that take part with different probabilities.

Huang, Huang, Jawanpuria, Mishra: Riemannian Federated Learning via Averaging Gradient Streams
(arXiv 2409.07223, ICLR 2026), with the authors' public code where the text leaves a choice open.

A client takes K local steps from the broadcast point and uploads its gradient stream, the sum of
these steps, each transported back; the server moves along the weighted streams of those present:
    zeta_i = - sum_k alpha Tr_{x_{i,k} -> x}( eta_{i,k} ),    x_{i,k+1} = Exp_{x_{i,k}}(-alpha eta),
    x^(t+1) = Exp_{x^(t)}( eta_g sum_{i in S_t} weight_i / (n p_i) zeta_i ).
Symbols: x^(t) Point.x and state["x"], K local_steps, alpha step_size, eta the oracle's gradient,
Exp and Tr the ``maps``, zeta_i Displacement.u, S_t the clients present, n all clients, p_i
``participation`` (or the share of rounds in which i was present, state["present"] counts them),
weight_i ``client_weights`` over their mean, eta_g server_step_size.
Invariants: state["x"] is on the manifold; zeta_i is tangent at x^(t); where the p_i are right, the
server's direction is, given the streams, the weighted mean over *all* clients in expectation.

No logarithm is taken anywhere, and x_{i,K}, which nobody reads, is never computed. With K = 1 a
stream is -alpha times a gradient at x^(t): federated Riemannian gradient descent. On R^d, and with
everybody present, it is FedAvg.

Private versions (not in the paper). Example level: a stream is a function of noised gradients, so
it is charged as `rsgd` with as many steps; weights and p_i are constants. p_i estimated from the
cohorts of a run would carry who took part into later rounds, which the price against an adversary
who sees no cohorts takes for unseen, so with drawn cohorts p_i is then given. Client level: each
stream is clipped in T_{x^(t)} and the server noises sum_{i in S_t} zeta_i / (expected size of S_t),
which is the rule above for equal weights and the cohort's own p (manifed/privacy/mechanism.py).
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.gradient_steps import GradientSteps
from manifed.algorithms.interface import Collected, Memory, Phase, ServerState, Work
from manifed.algorithms.payloads import Displacement, Payload, Point
from manifed.algorithms.tangent_mean import AtPoint
from manifed.manifolds.base import Manifold, MapChoice
from manifed.oracles.oracle import Draws, Oracle

Probability = Annotated[float, Field(gt=0, le=1)]


class RFedAGS(GradientSteps, AtPoint):
    """``local_steps`` gradient steps a client; the server averages the streams of those present."""

    kind: Literal["rfedags"] = "rfedags"
    maps: MapChoice = "exact"
    """"retraction" replaces Exp, and Tr by the projection on the tangent space."""
    server_step_size: float = Field(default=1.0, gt=0)
    """Of the server's step along the mean."""
    participation: Probability | tuple[Probability, ...] | None = None
    """p_i, one for all clients or one each; None: the share of rounds in which a client was there
    (at client level: the cohort's own)."""
    client_weights: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """weight_i up to a factor, say N_i; None: all equal, as in the paper."""

    # -- the client --------------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        return (Phase("train", Point, Displacement, uploads=("tangent",)),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Nothing is remembered between rounds."""
        return None

    @property
    def client_work(self) -> Work:
        """K gradients; a step and a transport for each but one of them."""
        between = self.local_steps - 1
        return Work.of_moves(self.maps, between, 0, gradients=self.local_steps, transports=between)

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """The gradient stream from the broadcast point."""
        assert isinstance(down, Point)
        maps, start = manifold.maps(self.maps), down.x.detach()
        step = -self.step_size * oracle.gradient(start)
        x, stream = start, step
        for _ in range(1, self.local_steps):
            x = maps.forward(x, step)
            step = -self.step_size * oracle.gradient(x)
            stream = stream + maps.transport(x, start, step)
        return Displacement(stream), None

    # -- the server --------------------------------------------------------------------------
    @property
    def weights(self) -> Literal["uniform"]:
        """Of the mean that a mechanism noises; `direction` has its own."""
        return "uniform"

    @property
    def server_work(self) -> Work:
        """One step."""
        return Work.of_moves(self.maps, 1, 0)

    def initial(self, x: Tensor) -> ServerState:
        """x^(0), and no client seen yet; the counts get their rows in the first step."""
        return ServerState({"x": x, "present": x.new_zeros(0)})

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """Exp along the streams of those present; at client level along what was released."""
        x = state["x"]
        if collected.uploads is None:
            along = collected.mean["u"]
            return state.replace(x=manifold.maps(self.maps).forward(x, self._scaled(along)))
        counts = state["present"]
        if counts.shape[0] != collected.num_clients:
            counts = x.new_zeros(collected.num_clients)
        rows = torch.tensor(collected.partitions, dtype=torch.long, device=x.device)
        counts = counts.index_add(0, rows, torch.ones_like(counts[rows]))
        streams = collected.uploads.tensors()["u"]
        share = self.shares(counts, server_round)[rows].reshape(-1, *[1] * x.dim())
        along = (share.to(streams.dtype) * streams).sum(0)
        moved = manifold.maps(self.maps).forward(x, self._scaled(along))
        return state.replace(x=moved, present=counts)

    def shares(self, counts: Tensor, server_round: int) -> Tensor:
        """weight_i / (n p_i) of all clients (n,), who were there ``counts`` (n,) times so far.

        Infinite where p_i is estimated and i never came; the rows of those present are finite.
        """
        n = counts.shape[0]
        found = counts / server_round  # the authors' code counts this round too
        if self.participation is not None:
            found = torch.as_tensor(self.participation, dtype=counts.dtype).to(counts).expand(n)
        if self.client_weights is None:
            return 1 / (n * found)
        weights = torch.tensor(self.client_weights, dtype=counts.dtype).to(counts)
        return weights / weights.mean() / (n * found)

    def _scaled(self, along: Tensor) -> Tensor:
        return self.server_step_size * along

"""Gossip on a manifold: every node has a point of its own, and what is mixed stays on the manifold.

Chen, Garcia, Hong, Shahrampour: Decentralized Riemannian Gradient Descent on the Stiefel Manifold
(2021) for the setting; Tron, Afsari, Vidal: Riemannian Consensus for Manifolds With Bounded
Curvature (2013) for the tangent mean. As in `manifed.algorithms.gossip` a round is a step and then
a mixing; here

    x_i^(t+1/2) = Exp_{x_i}(-eta_t g_i),   x_i = x_i^(t), g_i the oracle's gradient,
    x_i^(t+1) = Exp_{x_i}(sum_j W_ij Exp_{x_i}^{-1}(x_j^(t+1/2)))    consensus = "tangent-mean",
    x_i^(t+1) = P(sum_j W_ij x_j^(t+1/2))                            consensus = "projection",

P projx. Vectors are taken at a node's own model, which the server knows, so with complete mixing
all nodes keep one model and a round is one of PriRFed's (Algorithms 1 and 2, uniform weights), and
on R^d both are plain gossip. Without masks: tangent vectors at different points do not cancel.

Invariant: every model is on the manifold; points that agree are not moved by mixing.
"""

from typing import Literal

from pydantic import model_validator
from torch import Tensor

from manifed.algorithms.gossip import OnGraph
from manifed.algorithms.interface import Collected, Memory, ServerState, Work
from manifed.algorithms.payloads import Payload, Point
from manifed.manifolds.base import Manifold, MapChoice
from manifed.oracles.oracle import Draws, Oracle


class ManifoldGossip(OnGraph):
    """A Riemannian step at every node, and a mixing of points; the server mixes."""

    kind: Literal["manifold-gossip"] = "manifold-gossip"
    consensus: Literal["tangent-mean", "projection"] = "tangent-mean"
    """Mean in the tangent space at a node's own point, or the projection of the ambient mean."""
    maps: MapChoice = "exact"
    """Exponential map and logarithm, or the retraction and its inverse."""

    @model_validator(mode="after")
    def _server_mixes(self) -> "ManifoldGossip":
        if self.mixing != "server":
            raise ValueError(
                f"training.mixing: expected 'server' with 'manifold-gossip', got {self.mixing!r}"
            )
        return self

    # -- the client --------------------------------------------------------------------------
    @property
    def client_work(self) -> Work:
        """A gradient and a move a local step."""
        return Work.of_moves(self.maps, self.local_steps, 0, gradients=self.local_steps)

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """x_i^(t + 1/2)."""
        assert isinstance(down, Point)
        x, forward = down.x.detach(), manifold.maps(self.maps).forward
        eta = self.step_size_in(draws.server_round)
        for _ in range(self.local_steps):
            x = forward(x, -eta * oracle.gradient(x))
        return Point(x), None

    # -- the server --------------------------------------------------------------------------
    @property
    def server_work(self) -> Work:
        """Of the tangent mean: a move of each node, and a logarithm for each of its weights."""
        if self.consensus == "projection":
            return Work()
        nodes = self.network.graph.num_nodes
        sent = sum(len(rows) for rows, _, _ in self.network.layers)
        return Work.of_moves(self.maps, nodes, nodes + sent)

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """x_i^(t+1) of every node."""
        assert isinstance(collected.uploads, Point)
        halves = collected.uploads.x
        if self.consensus == "projection":
            return state.replace(x=manifold.projx(self.network.mixed(halves)))
        return state.replace(x=self._tangent_means(state["x"], halves, manifold))

    def _tangent_means(self, x: Tensor, halves: Tensor, manifold: Manifold) -> Tensor:
        """Exp_{x_i}(sum_j W_ij Exp_{x_i}^{-1}(y_j)), (n, *point), over the neighbours alone."""
        maps, net = manifold.maps(self.maps), self.network
        flat = [1] * manifold.ndim
        own = net.shares[:, 0].to(x).reshape(-1, *flat)
        total = own * maps.inverse(x, halves)
        for rows, others, weights in net.layers:
            here = rows.to(x.device)
            share = weights.to(x).reshape(-1, *flat)
            total[here] += share * maps.inverse(x[here], halves[others.to(x.device)])
        return maps.forward(x, total)

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """P of the mean of all models."""
        return manifold.projx(state["x"].mean(0))

"""Decentralised SGD on a graph: every node has its own model and mixes it with its neighbours.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized
Algorithms? (2017), Algorithm 1, as Allouah et al. (DECOR) write it, eqs. (3) and (4).

Symbols: x_i^(t) row i of state["x"], eta_t step_size / (1 + t / decay_rounds), g_i the oracle's
gradient (with privacy clipped and noised there), W the mixing matrix of the graph.
Invariant: W is symmetric and doubly stochastic, so mixing leaves the mean of all models as it is.

In a Flower star the server carries the messages, sees them all, and mixes. One message goes to each
node and one comes back in a round.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.algorithm import (
    ClientUpdate,
    GradientSteps,
    Here,
    Phase,
    ServerUpdate,
    Space,
    There,
)
from manifed.algorithms.payloads import Down, PerClient, Point, State
from manifed.fields import Positive, WholeNumber
from manifed.graphs import Graph, GraphSpec, metropolis_hastings
from manifed.manifolds.base import Manifold
from manifed.oracles.noisy_oracle import Oracle

_MixingWeights = Literal["metropolis-hastings", "complete"]


@dataclass(frozen=True)
class _Network:
    """A graph and who mixes with whom, as index tables; nodes are partitions."""

    graph: Graph
    weights: Any
    """W, (n, n); of 32 nodes or more by its entries."""

    def mixed(self, x: Tensor) -> Tensor:
        """W X, (n, *point); by its entries a row is their sum in the order of the nodes."""
        if isinstance(self.weights, np.ndarray):
            return (torch.as_tensor(self.weights).to(x) @ x.flatten(1)).reshape(x.shape)
        found = self.weights @ x.flatten(1).numpy(force=True)
        return torch.as_tensor(found).to(x).reshape(x.shape)


@lru_cache(maxsize=32)
def _network(
    spec: GraphSpec, num_nodes: int, seed: int, mixing_weights: _MixingWeights
) -> _Network:
    """The network of a config, built once in a process."""
    graph = spec.build(num_nodes, seed)
    if mixing_weights == "complete":
        return _Network(graph, np.full((num_nodes, num_nodes), 1.0 / num_nodes))
    weights = metropolis_hastings(graph)
    return _Network(graph, weights.toarray() if num_nodes < 32 else weights)


class _OfGraph(ClientUpdate):
    """Training whose nodes stand on a graph."""

    graph: GraphSpec
    """The communication graph."""
    graph_seed: WholeNumber = 0
    """Seed of a random graph."""
    num_nodes: int | None = Field(default=None, ge=1, lt=1 << 20)
    """Number of nodes. None: federation.num_clients. Node i is partition i."""

    @property
    def network(self) -> _Network:
        """The graph and its mixing matrix.

        Raises:
            ValueError: there is no such graph, or nobody said how many nodes there are.
        """
        if self.num_nodes is None:
            raise ValueError("training.num_nodes: required outside a config, got None")
        spec: Any = self.graph  # frozen, so pydantic hashes it
        weights = getattr(self, "mixing_weights", "metropolis-hastings")
        return _network(spec, self.num_nodes, self.graph_seed, weights)

    def check(self, setting: Any) -> None:
        """Refuse a graph that there is not, or of other nodes than the clients."""
        clients = setting.federation.num_clients
        if self.num_nodes not in (None, clients):
            raise ValueError(
                f"training.num_nodes: expected federation.num_clients = {clients}, got "
                f"{self.num_nodes}; leave it out"
            )
        try:
            _ = self.network
        except ValueError as error:
            raise ValueError(f"training.{str(error).removeprefix('training.')}") from None
        super().check(setting)


class ModelOfEachNode(_OfGraph, ServerUpdate):
    """Server side that keeps a model for every node of a graph and mixes them."""

    mixing_weights: _MixingWeights = "metropolis-hastings"
    """"complete" is the plain mean on any graph."""

    space: ClassVar[Space] = "ambient"
    mean_weights = "uniform"
    """1/n, whatever the shards: eq. (1)."""
    needs_everyone = True
    """A missing node is a round that was not mixed."""
    without_client_level = "the server mixes models that it sees"

    def start(self, x: Tensor) -> State:
        """Every node starts from x, which everybody knows."""
        n = self.network.graph.num_nodes
        return {"x": x.expand(n, *x.shape).clone()}

    def base(self, state: State, manifold: Manifold) -> Tensor:
        """Returns a point of the right shape; uploads are points, so any will do."""
        return state["x"][0]

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Takes the nodes' uploads as their new models; a subclass may mix them."""
        return state | {"x": here.collected.rows}

    def node_models(self, state: State, manifold: Manifold) -> Tensor | None:
        """The model of every node, (n, *point)."""
        return state["x"]

    def model(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the mean of all nodes' models, which mixing does not move."""
        return state["x"].mean(0)

    def check(self, setting: Any) -> None:
        """Refuse a graph in parts, and models that are no vectors."""
        super().check(setting)
        found = self.network.graph
        if self.mixing_weights != "complete" and found.num_parts > 1:
            raise ValueError(
                f"training.graph: expected a connected graph, got {found.num_parts} parts, "
                "which never mix; add edges between them"
            )
        self.check_mixes(setting.manifold)

    def check_mixes(self, manifold: Manifold) -> None:
        """Refuse a manifold whose points the server cannot mix."""
        if not manifold.is_whole_space:
            raise ValueError(
                f"training.kind: {self.kind!r} mixes models as vectors, so it needs a problem "
                f"on R^d, got one on {manifold.name}; use 'rsgd', or manifed_extras.manifold_gossip"
            )


class ByGraph(GradientSteps, _OfGraph):
    """Base of gossip algorithms with gradient steps whose size may fall with the round."""

    decay_rounds: Positive | None = None
    """Round t + 1 has step size step_size / (1 + t / decay_rounds). None: constant."""

    def step_size_in(self, server_round: int) -> float:
        """Returns eta_t of round 1, 2, ..., with t = server_round - 1."""
        if self.decay_rounds is None:
            return self.step_size
        return self.step_size / (1.0 + (server_round - 1) / self.decay_rounds)


class OnGraph(ByGraph, ModelOfEachNode):
    """Base of gossip with and without masks: nodes step from their models, the server mixes."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange: a node's model goes down, its half step comes up."""
        return (Phase("mix", Point, Point, uploads=("point",), aggregation="none"),)

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Any:
        """Returns x_i^(t + 1/2), the half step of this node from its own model."""
        eta = self.step_size_in(here.round)
        for _ in range(self.local_steps):
            x = x - eta * oracle.gradient(x)
        return Point(x)

    def down(self, state: State, phase: str) -> Down:
        """Returns each node's own model, a row for every node."""
        return PerClient(Point(state["x"]))

    def server(self, state: State, mean: Tensor, here: There) -> State:
        """Mixes the half steps: x_i^(t+1) = sum_j W_ij x_j^(t + 1/2)."""  # (4)
        return state | {"x": self.network.mixed(here.collected.rows)}


class Gossip(OnGraph):
    """D-SGD on a graph. With privacy.kind = "example-level" each node noises its gradients."""

    kind: Literal["gossip"] = "gossip"

"""Decentralised SGD on a graph: every node has a model of its own and mixes it with its neighbours.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized
Algorithms? (2017), Algorithm 1, as Allouah et al. (DECOR) write it, eqs. (3) and (4).

Symbols: x_i^(t) row i of state["x"], eta_t step_size / (1 + t / decay_rounds), g_i the oracle's
gradient (with privacy clipped and noised there), W the mixing matrix of the graph.
Invariant: W is symmetric and doubly stochastic, so mixing leaves the mean of all models as it is.

In a Flower star the server carries the messages. With ``mixing = "server"`` it mixes them itself;
with "client" it hands every node the half steps of its neighbours, and the node mixes. One message
goes to each node and one comes back in a round; what the server sees is the same.
"""

import warnings
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, Final, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from manifed.algorithms.gradient_steps import GradientSteps
from manifed.algorithms.interface import Collected, Memory, Phase, ServerState, Space, Work
from manifed.algorithms.payloads import Layout, Payload, PerClient, Point
from manifed.graphs.graph import Graph, Matrix
from manifed.graphs.mixing import Weights, check_mixing, complete_mixing, metropolis_hastings
from manifed.graphs.specs import GraphSpec
from manifed.manifolds.base import Manifold
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.events import Frozen

MixingWeights = Literal["metropolis-hastings", "complete"]
Indices = NDArray[np.int64]
_SPARSE_FROM: Final = 32
_SPARSE_BELOW: Final = 8
"""W is multiplied by its entries from so many nodes on, if at most one in so many is not zero
(benchmarks/workers.py --only sizes measures both products)."""


@dataclass(frozen=True)
class Neighbourhood(Payload):
    """Down, where nodes mix: a node's own half step and those of its neighbours.

    A node with fewer neighbours than another one gets its own half step in the places left over.
    """

    num_neighbors: ClassVar[int] = 0
    x: Tensor
    neighbors: Tensor
    """Shape (num_neighbors, *point)."""

    @classmethod
    def layout(cls, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Layout]:
        """As many arrays of a point's shape as a node has neighbours at most."""
        return {"x": (shape, dtype), "neighbors": ((cls.num_neighbors, *shape), dtype)}


@cache
def neighbourhood(num_neighbors: int) -> type[Neighbourhood]:
    """The payload with places for so many neighbours."""
    name = f"Neighbourhood{num_neighbors}"
    return type(name, (Neighbourhood,), {"num_neighbors": num_neighbors})


@dataclass(frozen=True)
class Network:
    """A graph and who mixes with whom, as index tables; nodes are partitions."""

    graph: Graph
    weights: Weights
    """W, (n, n); of a graph by its entries."""

    @cached_property
    def mixing(self) -> Tensor:
        """W as a tensor, (n, n): by its entries where their product is the quicker one.

        Then a row of W X is its entries' sum in the order of the nodes, whoever else is mixed.
        """
        n, weights = self.weights.shape[0], self.weights
        if isinstance(weights, np.ndarray):
            return torch.as_tensor(weights)
        if n < _SPARSE_FROM or weights.nnz * _SPARSE_BELOW > n * n:
            return torch.as_tensor(weights.toarray())
        with warnings.catch_warnings():  # torch says that its format may change
            warnings.simplefilter("ignore")
            return torch.sparse_csr_tensor(
                torch.as_tensor(weights.indptr, dtype=torch.int32),
                torch.as_tensor(weights.indices, dtype=torch.int32),
                torch.as_tensor(weights.data),
                size=(n, n),
            )

    def mixed(self, x: Tensor) -> Tensor:
        """W X, (n, *point)."""
        mixing = self.mixing
        if x.dtype != mixing.dtype or x.device != mixing.device:
            mixing = mixing.to(x)
        return mixing @ x if x.dim() == 2 else (mixing @ x.flatten(1)).reshape(x.shape)

    @cached_property
    def others(self) -> Tensor:
        """Whose half steps a node is sent, itself where it has fewer, (n, k)."""
        rows, columns, places, _ = self._sent
        n, widest = self.weights.shape[0], int(places.max(initial=-1)) + 1
        found = np.repeat(np.arange(n)[:, None], widest, axis=1)
        found[rows, places] = columns
        return torch.as_tensor(found)

    @cached_property
    def shares(self) -> Tensor:
        """The weights of a node's own half step and of those it is sent, (n, 1 + k)."""
        rows, _, places, weights = self._sent
        found = np.zeros((self.weights.shape[0], 2 + int(places.max(initial=-1))))
        found[:, 0] = self.weights.diagonal()
        found[rows, 1 + places] = weights
        return torch.as_tensor(found)

    @cached_property
    def layers(self) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """The nodes that have a first neighbour, who it is, its weight; a second one; and so on."""
        rows, columns, places, weights = (torch.as_tensor(column) for column in self._sent)
        widest = int(places.max()) + 1 if len(places) else 0
        chosen = (places == k for k in range(widest))
        return tuple((rows[here], columns[here], weights[here]) for here in chosen)

    @cached_property
    def _sent(self) -> tuple[Indices, Indices, Indices, Matrix]:
        """Node, other node, its place among the others of that node, weight: all that is sent."""
        from scipy.sparse import coo_array

        found = coo_array(self.weights)
        sent = (found.row != found.col) & (found.data != 0)
        rows, columns = found.row[sent].astype(np.int64), found.col[sent].astype(np.int64)
        counts = np.bincount(rows, minlength=self.weights.shape[0])
        places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, columns, places, found.data[sent].astype(np.float64)


@lru_cache(maxsize=32)
def network(spec: GraphSpec, num_nodes: int, seed: int, mixing_weights: MixingWeights) -> Network:
    """The network of a config, built once in a process.

    Raises:
        ValueError: there is no such graph.
    """
    graph = spec.build(num_nodes, seed)
    if mixing_weights == "complete":
        return Network(graph, complete_mixing(num_nodes))
    weights = metropolis_hastings(graph)
    check_mixing(weights, graph)
    return Network(graph, weights)


class ModelOfEachNode(Frozen):
    """The half of a server update that keeps a model for every node of a graph."""

    @property
    def network(self) -> Network:
        """The graph and its mixing matrix."""
        raise NotImplementedError

    @property
    def space(self) -> Space:
        """Models are vectors of R^d."""
        return "ambient"

    @property
    def weights(self) -> Literal["uniform"]:
        """1/n, whatever the shards: eq. (1)."""
        return "uniform"

    @property
    def needs_everyone(self) -> bool:
        """A missing node is a round that was not mixed."""
        return True

    @property
    def server_work(self) -> Work:
        """No map of the geometry."""
        return Work()

    def initial(self, x: Tensor) -> ServerState:
        """Every node starts from x, which everybody knows."""
        n = self.network.graph.num_nodes
        return ServerState({"x": x.expand(n, *x.shape).clone()})

    def base(self, state: ServerState, manifold: Manifold) -> Tensor:
        """Any point: uploads are points themselves."""
        return state["x"][0]


class ByGraph(GradientSteps):
    """Training whose nodes stand on a graph, and whose steps may become shorter."""

    graph: GraphSpec
    """Who talks to whom."""
    graph_seed: int = Field(default=0, ge=0)
    """Read by random graphs only."""
    num_nodes: int | None = Field(default=None, ge=1, lt=1 << 20)
    """None in a config: federation.num_clients. Node i is partition i."""
    decay_rounds: float | None = Field(default=None, gt=0)
    """Eta_t = step_size / (1 + t / decay_rounds) in round t + 1; None: constant."""

    def network_of(self, mixing_weights: MixingWeights) -> Network:
        """The graph and a mixing matrix of it.

        Raises:
            ValueError: there is no such graph, or nobody said how many nodes there are.
        """
        if self.num_nodes is None:
            raise ValueError("training.num_nodes: required outside a config, got None")
        spec = cast("Any", self.graph)  # frozen, so pydantic hashes it
        return network(spec, self.num_nodes, self.graph_seed, mixing_weights)

    @property
    def built_graph(self) -> Graph:
        """The graph itself; errors as `network_of`."""
        return self.network_of("metropolis-hastings").graph

    def step_size_in(self, server_round: int) -> float:
        """Eta_t of a round 1, 2, ..., t = server_round - 1."""
        if self.decay_rounds is None:
            return self.step_size
        return self.step_size / (1.0 + (server_round - 1) / self.decay_rounds)


class OnGraph(ByGraph, ModelOfEachNode):
    """What gossip with and without masks shares: a model for every node, the mixing, the server."""

    mixing: Literal["server", "client"] = "server"
    """Who computes sum_j W_ij x_j: the server, or each node from what the server hands on."""
    mixing_weights: MixingWeights = "metropolis-hastings"
    """"complete" is the plain mean whatever the graph: the central special case."""

    @property
    def network(self) -> Network:
        """The graph and its mixing matrix; errors as `network_of`."""
        return self.network_of(self.mixing_weights)

    # -- the client --------------------------------------------------------------------------
    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange: a model (or a neighbourhood) down, a half step up."""
        if self.mixing == "server":
            return (Phase("mix", Point, Point, uploads=("point",), aggregation="none"),)
        down = neighbourhood(self.network.others.shape[1])
        return (Phase("mix", down, Point, ("point", "any"), ("point",), "none"),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Nothing is remembered between rounds: the server has the models."""
        return None

    @property
    def client_work(self) -> Work:
        """A gradient a local step."""
        return Work(gradients=self.local_steps)

    def mixed_here(self, down: Payload, draws: Draws, ndim: int) -> Tensor:
        """x_i^(t), shape ``(..., *point)``: what came down, mixed where that is the node's part."""
        if isinstance(down, Point):
            return down.x.detach()
        assert isinstance(down, Neighbourhood)
        who = draws.partition if isinstance(draws.partition, int) else list(draws.partition)
        shares = self.network.shares[who].to(down.x)
        axis = -1 - ndim
        models = torch.cat([down.x.detach().unsqueeze(axis), down.neighbors], axis)
        return (shares.reshape(*shares.shape, *[1] * ndim) * models).sum(axis)  # (4)

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """x_i^(t + 1/2): the steps of this node from its own model."""
        x = self.mixed_here(down, draws, manifold.ndim)
        eta = self.step_size_in(draws.server_round)
        for _ in range(self.local_steps):
            x = x - eta * oracle.gradient(x)
        return Point(x), None

    # -- the server --------------------------------------------------------------------------
    def down(self, state: ServerState, phase: str) -> PerClient:
        """A row for every node."""
        x = state["x"]
        if self.mixing == "server":
            return PerClient(Point(x))
        others = self.network.others
        return PerClient(neighbourhood(others.shape[1])(x, x[others.to(x.device)]))

    def step(
        self,
        state: ServerState,
        phase: str,
        collected: Collected,
        server_round: int,
        manifold: Manifold,
    ) -> ServerState:
        """x_i^(t+1) = sum_j W_ij x_j^(t + 1/2), or the half steps themselves to be handed on."""
        assert isinstance(collected.uploads, Point)
        halves = collected.uploads.x
        return state.replace(x=halves if self.mixing == "client" else self.network.mixed(halves))

    def node_models(self, state: ServerState, manifold: Manifold) -> Tensor:
        """x_i^(t) of every node, (n, *point)."""
        return state["x"] if self.mixing == "server" else self.network.mixed(state["x"])

    def model(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The mean of all models: mixing does not move it."""
        return state["x"].mean(0)

    def output(self, state: ServerState, manifold: Manifold) -> Tensor:
        """The mean of all models."""
        return self.model(state, manifold)


class Gossip(OnGraph):
    """Plain D-SGD; with privacy.kind = "example-level" each node noises its own gradients."""

    kind: Literal["gossip"] = "gossip"

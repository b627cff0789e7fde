"""Communication graphs: Laplacians, mixing matrices, and the tables by which configs name them.

Nodes are 0..n-1; an edge is a pair (i, j) with i < j. Matrices are float64 numpy arrays of shape
(n, n). Paper: Allouah et al., "The Privacy Power of Correlated Noise in Decentralized Learning"
(DECOR), sections 4 and 5.1.

Mixing matrices: symmetric and doubly stochastic, zero where there is no edge (Definition 2).

W of a graph is kept by its entries (scipy's csr_array, columns ascending): of a ring of 10 000
nodes these are 30 000 numbers, where all n^2 would take 800 MB. What looks at a mixing matrix takes
either form.

The configuration of graphs are frozen models, discriminated on ``kind``; networkx builds them.
"""

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import model_validator

from manifed.durable import read_regular
from manifed.fields import BY_KIND, Frozen, PositiveCount, Probability

Matrix = NDArray[np.float64]

MOST_SUBSETS = 4_000
"""Coalitions that are enumerated; with more of them a proved bound takes over."""


@dataclass(frozen=True)
class Graph:
    """An undirected graph without loops; ``edges`` are sorted pairs (i, j), i < j, each once."""

    num_nodes: int
    edges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, num_nodes: int, edges: Iterable[tuple[int, int]]) -> "Graph":
        """Makes the graph of these pairs, in any order and direction; repeated ones count once."""
        return cls(num_nodes, tuple(sorted({(min(e), max(e)) for e in edges})))

    @cached_property
    def neighbors(self) -> tuple[tuple[int, ...], ...]:
        """The neighbours N_i of every node i, in order, without i itself."""
        found: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for i, j in self.edges:
            found[i].append(j)
            found[j].append(i)
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """The number of neighbours of each node."""
        return tuple(map(len, self.neighbors))

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The lesser and the greater end of every edge, (2, |E|)."""
        return np.array(self.edges, dtype=np.int64).reshape(-1, 2).T

    @cached_property
    def adjacency(self) -> Matrix:
        """The adjacency matrix: 1 where there is an edge, (n, n)."""
        found, (i, j) = np.zeros((self.num_nodes, self.num_nodes)), self.ends
        found[i, j] = found[j, i] = 1.0
        return found

    @cached_property
    def laplacian(self) -> Matrix:
        """The Laplacian Deg - Adj, (n, n)."""
        return np.diag(self.adjacency.sum(1)) - self.adjacency

    @property
    def incidence(self) -> Matrix:
        """K with L = K K^T: a column for an edge (i, j), +1 at i and -1 at j, (n, |E|)."""
        nodes, (i, j) = np.eye(self.num_nodes), self.ends
        return np.subtract(nodes[:, i], nodes[:, j], order="C")

    @cached_property
    def num_parts(self) -> int:
        """The number of connected components."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        shape = (self.num_nodes, self.num_nodes)
        joined: Any = csr_array((np.ones(len(self.edges)), self.ends), shape=shape)
        return connected_components(joined, directed=False, return_labels=False)

    def without(self, nodes: Iterable[int]) -> "Graph":
        """Returns what is left when ``nodes`` leave; the others keep their order, counted anew."""
        gone = set(nodes)
        kept = [i for i in range(self.num_nodes) if i not in gone]
        place = {node: k for k, node in enumerate(kept)}
        edges = tuple((place[i], place[j]) for i, j in self.edges if i in place and j in place)
        return Graph(len(kept), edges)


def _connectivity(graph: Graph) -> float:
    """a(G), the second-smallest eigenvalue of the Laplacian; 0 exactly when G is disconnected."""
    if graph.num_nodes == 1 or graph.num_parts > 1:
        return 0.0
    import scipy.linalg

    found = scipy.linalg.eigvalsh(graph.laplacian, subset_by_index=[1, 1])
    return float(max(found[0], 0.0))


def connectivity_bound(graph: Graph, q: int) -> tuple[float, bool]:
    """Returns a lower bound of a_q(G) and whether it is exact.

    a_q(G) is the least a(G) after any ``q`` nodes have left.

    Exact for as many nodes as can be enumerated. Each further one takes at most 1 from the
    algebraic connectivity: a(G - v) >= a(G) - 1 (Fiedler, "Algebraic connectivity of graphs",
    1973, 3.2). A node of degree d is cut off by d nodes, so a_q = 0 for q >= the least degree,
    unless nobody else is left.
    """
    n = graph.num_nodes
    if not 0 <= q < n:
        raise ValueError(f"Expected 0 <= q < num_nodes = {n}, got {q}")
    if min(graph.degrees) <= q < n - 1:
        return 0.0, True
    counted = q
    while math.comb(n, counted) > MOST_SUBSETS or (counted and n > 200):
        counted -= 1
    subsets = itertools.combinations(range(n), counted)
    found = min(_connectivity(graph.without(gone)) for gone in subsets)
    return max(found - (q - counted), 0.0), counted == q


def metropolis_hastings(graph: Graph) -> Any:
    """Returns the Metropolis-Hastings mixing matrix, (n, n).

    W_ij = 1 / (1 + max(deg i, deg j)) on edges; the rest of each row stands on the diagonal.

    The paper prints 1 / (deg(i) + 1) without a diagonal, which is neither symmetric nor stochastic.
    On regular graphs this matrix is what it means: (Adj + I) / (deg + 1).
    """
    from scipy.sparse import csr_array

    n = graph.num_nodes
    degrees = np.array(graph.degrees, dtype=np.float64)
    i, j = np.concatenate([graph.ends, graph.ends[::-1]], axis=1)
    values = 1.0 / (1.0 + np.maximum(degrees[i], degrees[j]))
    own = 1.0 - np.bincount(i, values, n)
    places = np.append(i, np.arange(n)), np.append(j, np.arange(n))
    found = csr_array((np.append(values, own), places), shape=(n, n))
    found.sort_indices()
    return found


# -- as a config names them -----------------------------------------------------------------------
_MOST_PAIRS = 1 << 22
"""Edges of one graph, and pairs of nodes that draws of a random one look at: some seconds."""
_LONGEST_FILE = 1 << 26
"""Bytes of a file of edges."""


class _NamedGraph(Frozen):
    """A graph that networkx makes; a random one is drawn until it is connected."""

    def pairs(self, num_nodes: int) -> int:
        """How many edges there are, or pairs of nodes that a draw looks at; one a node here.

        Raises:
            ValueError: when there is no such graph.
        """
        return num_nodes

    @abstractmethod
    def drawn(self, nx: Any, num_nodes: int, rng: Generator) -> Any:
        """The graph that the package ``nx`` makes, or one draw of a random one."""

    def build(self, num_nodes: int, seed: int = 0) -> Graph:
        """Builds the graph of ``num_nodes`` nodes; ``seed`` is read by random graphs only.

        Nodes are in networkx's own order; loops (of a ring of one) are left out.

        Raises:
            ValueError: when there is no such graph, it takes long to build (a config is read before
                anybody has agreed to it), or none of many draws is connected.
        """
        pairs = self.pairs(num_nodes)
        if pairs > _MOST_PAIRS:
            raise ValueError(
                f"graph: expected at most {_MOST_PAIRS} edges (or pairs of nodes to draw from), "
                f"got {pairs}; take fewer nodes"
            )
        import networkx as nx

        rng = np.random.default_rng([seed, 3])  # data take purpose 1, partitions 2
        draws = max(1, min(1000, _MOST_PAIRS // max(pairs, 1)))
        for _ in range(draws):
            built = self.drawn(nx, num_nodes, rng)
            place = {node: k for k, node in enumerate(built.nodes)}
            edges = [(place[i], place[j]) for i, j in built.edges if i != j]
            found = Graph.of(len(place), edges)
            if found.num_parts == 1:
                return found
        name, value = next((name, value) for name, value in self if name != "kind")
        raise ValueError(
            f"graph.{name}: expected one with a connected draw out of {draws}, got {value:g} for "
            f"{num_nodes} nodes; it takes about log(n) / n = "
            f"{math.log(max(num_nodes, 2)) / num_nodes:.3g} of all edges"
        )


class Ring(_NamedGraph):
    """Node i is joined to i - 1 and i + 1."""

    kind: Literal["ring"] = "ring"

    def drawn(self, nx: Any, num_nodes: int, rng: Generator) -> Any:
        """Returns a cycle."""
        return nx.cycle_graph(num_nodes)


class Torus(_NamedGraph):
    """A grid whose edges wrap around."""

    kind: Literal["torus"] = "torus"
    rows: PositiveCount | None = None
    """Rows of the grid. None: a square."""

    def pairs(self, num_nodes: int) -> int:
        """Returns the number of edges, two per node."""
        return 2 * num_nodes

    def drawn(self, nx: Any, num_nodes: int, rng: Generator) -> Any:
        """Returns a grid, row by row."""
        rows = self.rows or math.isqrt(num_nodes)
        if num_nodes % rows or (self.rows is None and rows * rows != num_nodes):
            raise ValueError(
                f"graph.rows: expected a divisor of the {num_nodes} nodes, got "
                f"{self.rows or 'none, and the number is no square'}"
            )
        return nx.grid_2d_graph(rows, num_nodes // rows, periodic=True)


class _OfPairs(_NamedGraph):
    """A graph whose edges are all pairs of nodes, or drawn from them."""

    def pairs(self, num_nodes: int) -> int:
        """All pairs of nodes."""
        return num_nodes * (num_nodes - 1) // 2


class Complete(_OfPairs):
    """Every node is joined to all others."""

    kind: Literal["complete"] = "complete"

    def drawn(self, nx: Any, num_nodes: int, rng: Generator) -> Any:
        """Returns the graph of all edges."""
        return nx.complete_graph(num_nodes)


class Star(_NamedGraph):
    """Node 0 is joined to all others."""

    kind: Literal["star"] = "star"

    def drawn(self, nx: Any, num_nodes: int, rng: Generator) -> Any:
        """Returns a hub and its leaves."""
        return nx.star_graph(num_nodes - 1)


class Exponential(_NamedGraph):
    """Node i is joined to i +- 1, 2, 4, 8, ... (mod n)."""

    kind: Literal["exponential"] = "exponential"

    def pairs(self, num_nodes: int) -> int:
        """Returns a bound of the number of edges, log2(n) per node."""
        return num_nodes * num_nodes.bit_length()

    def drawn(self, nx: Any, num_nodes: int, rng: Generator) -> Any:
        """Returns a circulant graph of the powers of two."""
        offsets = [1 << k for k in range(max(num_nodes - 1, 1).bit_length()) if 1 << k < num_nodes]
        return nx.circulant_graph(num_nodes, offsets)


class ErdosRenyi(_OfPairs):
    """A random graph with independent edges, redrawn until it is connected."""

    kind: Literal["erdos-renyi"] = "erdos-renyi"
    probability: Probability
    """Probability of an edge."""

    def drawn(self, nx: Any, num_nodes: int, rng: Generator) -> Any:
        """Returns a draw of G(n, p)."""
        return nx.gnp_random_graph(num_nodes, self.probability, seed=rng)


class RandomRegular(_NamedGraph):
    """A random graph with equal degrees, redrawn until it is connected."""

    kind: Literal["random-regular"] = "random-regular"
    degree: PositiveCount
    """Neighbours per node."""

    def pairs(self, num_nodes: int) -> int:
        """Returns the number of edges, half the sum of the degrees."""
        if self.degree >= num_nodes or self.degree * num_nodes % 2:
            raise ValueError(
                f"graph.degree: expected less than the {num_nodes} nodes and an even product with "
                f"them, got {self.degree}"
            )
        return self.degree * num_nodes // 2

    def drawn(self, nx: Any, num_nodes: int, rng: Generator) -> Any:
        """Returns a draw of a regular graph."""
        return nx.random_regular_graph(self.degree, num_nodes, seed=rng)


class EdgeList(Frozen):
    """A graph given by its edges, or by a file with a line ``i j`` per edge."""

    kind: Literal["edges"] = "edges"
    edges: tuple[tuple[int, int], ...] | None = None
    """Pairs of nodes, numbered from 0."""
    path: Path | None = None
    """The file, in place of ``edges``. ``#`` begins a comment."""

    @model_validator(mode="after")
    def _has_one(self) -> "EdgeList":
        if (self.edges is None) == (self.path is None):
            raise ValueError("graph: expected either edges or path with kind = 'edges'")
        return self

    def build(self, num_nodes: int, seed: int = 0) -> Graph:
        """Builds the graph that is written down; errors as those of the named graphs."""
        named = _read(self.path) if self.path else self.edges or ()
        for i, j in named:
            if i == j or not (0 <= i < num_nodes and 0 <= j < num_nodes):
                raise ValueError(
                    f"graph.edges: expected two nodes out of 0..{num_nodes - 1}, got ({i}, {j})"
                )
        return Graph.of(num_nodes, named)


GraphSpec = Annotated[
    Ring | Torus | Complete | Star | Exponential | ErdosRenyi | RandomRegular | EdgeList,
    BY_KIND,
]


def _read(path: Path) -> tuple[tuple[int, int], ...]:
    try:
        lines = read_regular(path, _LONGEST_FILE).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"graph.path: {path}: cannot be read ({error})") from None
    found: list[tuple[int, int]] = []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
            raise ValueError(f"graph.path: {path}, line {number}: expected two nodes 'i j'")
        found.append((int(words[0]), int(words[1])))
    return tuple(found)

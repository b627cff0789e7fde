"""An undirected graph as data, its Laplacian, and what its spectrum says.

Nodes are 0..n-1; an edge is a pair (i, j) with i < j. Matrices are float64 numpy arrays of shape
(n, n). Paper: Allouah et al., "The Privacy Power of Correlated Noise in Decentralized Learning"
(DECOR), sections 4 and 5.1.

Mixing matrices: symmetric and doubly stochastic, zero where there is no edge (Definition 2).

W of a graph is kept by its entries (scipy's csr_array, columns ascending): of a ring of 10 000
nodes these are 30 000 numbers, where all n^2 would take 800 MB. What looks at a mixing matrix takes
either form.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

MOST_SUBSETS: Final = 4_000
"""Coalitions that are enumerated; with more of them a proved bound takes over."""


@dataclass(frozen=True)
class Graph:
    """An undirected graph without loops; ``edges`` are sorted pairs (i, j), i < j, each once."""

    num_nodes: int
    edges: tuple[tuple[int, int], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.num_nodes, self.edges))

    @classmethod
    def of(cls, num_nodes: int, edges: Iterable[tuple[int, int]]) -> "Graph":
        """The graph of these pairs, in any order and direction; repeated ones count once."""
        return cls(num_nodes, tuple(sorted({(min(e), max(e)) for e in edges})))

    @cached_property
    def neighbors(self) -> tuple[tuple[int, ...], ...]:
        """N_i for every node i, in order; i itself is not in it."""
        found: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for i, j in self.edges:
            found[i].append(j)
            found[j].append(i)
        return tuple(tuple(sorted(each)) for each in found)

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """Number of neighbours of each node."""
        return tuple(len(each) for each in self.neighbors)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The lesser and the greater end of every edge, (2, |E|)."""
        return np.array(self.edges, dtype=np.int64).reshape(-1, 2).T

    @cached_property
    def adjacency(self) -> Matrix:
        """1 where there is an edge, (n, n)."""
        found, (i, j) = np.zeros((self.num_nodes, self.num_nodes)), self.ends
        found[i, j] = found[j, i] = 1.0
        return found

    @cached_property
    def laplacian(self) -> Matrix:
        """Deg - Adj, (n, n)."""
        return np.diag(self.adjacency.sum(1)) - self.adjacency

    @property
    def incidence(self) -> Matrix:
        """K with L = K K^T: a column for an edge (i, j), +1 at i and -1 at j, (n, |E|)."""
        found, (i, j), k = np.zeros((self.num_nodes, len(self.edges))), self.ends, len(self.edges)
        found[i, range(k)], found[j, range(k)] = 1.0, -1.0
        return found

    @cached_property
    def components(self) -> tuple[tuple[int, ...], ...]:
        """The connected components, each in order."""
        left, found = set(range(self.num_nodes)), []
        while left:
            reached, frontier = set[int](), {min(left)}
            while frontier:
                reached |= frontier
                frontier = {j for i in frontier for j in self.neighbors[i]} - reached
            left -= reached
            found.append(tuple(sorted(reached)))
        return tuple(found)

    @property
    def is_connected(self) -> bool:
        """Whether there is a path between any two nodes."""
        return len(self.components) == 1

    def without(self, nodes: Iterable[int]) -> "Graph":
        """What is left when ``nodes`` leave; the others keep their order and are counted anew."""
        gone = set(nodes)
        kept = [i for i in range(self.num_nodes) if i not in gone]
        place = {node: k for k, node in enumerate(kept)}
        edges = tuple((place[i], place[j]) for i, j in self.edges if i in place and j in place)
        return Graph(len(kept), edges)


def algebraic_connectivity(graph: Graph) -> float:
    """a(G), the second-smallest eigenvalue of the Laplacian; 0 exactly when G is disconnected."""
    if graph.num_nodes == 1 or not graph.is_connected:
        return 0.0
    import scipy.linalg

    found = scipy.linalg.eigvalsh(graph.laplacian, subset_by_index=[1, 1])
    return float(max(found[0], 0.0))


def connectivity_without(graph: Graph, q: int) -> float:
    """a_q(G): the least algebraic connectivity after any ``q`` nodes have left, by enumeration."""
    subsets = itertools.combinations(range(graph.num_nodes), q)
    return min(algebraic_connectivity(graph.without(gone)) for gone in subsets)


def connectivity_bound(graph: Graph, q: int) -> tuple[float, bool]:
    """A lower bound of a_q(G), and whether it is a_q(G) itself.

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
    found = connectivity_without(graph, counted)
    return max(found - (q - counted), 0.0), counted == q


Weights = Any
"""A `Matrix`, or scipy's csr_array of its entries, which comes without types."""
_TOLERANCE = 1e-12


def metropolis_hastings(graph: Graph) -> Weights:
    """W_ij = 1 / (1 + max(deg i, deg j)) on edges, the rest of each row on the diagonal, (n, n).

    The paper prints 1 / (deg(i) + 1) without a diagonal, which is neither symmetric nor stochastic
    (spec 004 §7-A2); on regular graphs this is what it means: (Adj + I) / (deg + 1).
    """
    from scipy.sparse import csr_array

    n, ends = graph.num_nodes, graph.ends
    degrees, nodes = np.array(graph.degrees, dtype=np.float64), np.arange(n)
    i, j = np.concatenate([ends, ends[::-1]], axis=1)
    values = 1.0 / (1.0 + np.maximum(degrees[i], degrees[j]))
    own = 1.0 - np.bincount(i, values, n)
    places = np.append(i, nodes), np.append(j, nodes)
    found = csr_array((np.append(values, own), places), shape=(n, n))
    found.sort_indices()
    return found

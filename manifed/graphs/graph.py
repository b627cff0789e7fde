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
DENSE: Final = 4096
"""Up to so many nodes the Laplacian's eigenvalue is that of the whole matrix."""
RESTARTS: Final = 100
"""Of Lanczos' method, before a matrix is factored to find eigenvalues that lie close together."""


@dataclass(frozen=True)
class Graph:
    """An undirected graph without loops; ``edges`` are sorted pairs (i, j), i < j, each once.

    Raises:
        ValueError: for an edge that is a loop, is out of range, out of order or there twice.
    """

    num_nodes: int
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        n = self.num_nodes
        if n < 1:
            raise ValueError(f"Expected num_nodes >= 1, got {n}")
        for i, j in self.edges:
            if not 0 <= i < j < n:
                raise ValueError(f"Expected an edge (i, j) with 0 <= i < j < {n}, got ({i}, {j})")
        if list(self.edges) != sorted(set(self.edges)):
            raise ValueError("Expected edges in order and each once; use Graph.of")

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
        """What is left when ``nodes`` leave; the others keep their order and are counted anew.

        Raises:
            ValueError: for a node that is not there, or when nobody is left.
        """
        gone = set(nodes)
        if not gone <= set(range(self.num_nodes)):
            raise ValueError(f"Expected nodes in 0..{self.num_nodes - 1}, got {sorted(gone)}")
        kept = [i for i in range(self.num_nodes) if i not in gone]
        place = {node: k for k, node in enumerate(kept)}
        edges = tuple((place[i], place[j]) for i, j in self.edges if i in place and j in place)
        return Graph(len(kept), edges)


def algebraic_connectivity(graph: Graph) -> float:
    """a(G), the second-smallest eigenvalue of the Laplacian; 0 exactly when G is disconnected."""
    if graph.num_nodes == 1 or not graph.is_connected:
        return 0.0
    if graph.num_nodes > DENSE:
        return max(_second_smallest(graph), 0.0)
    import scipy.linalg

    found = scipy.linalg.eigvalsh(graph.laplacian, subset_by_index=[1, 1])
    return float(max(found[0], 0.0))


def _second_smallest(graph: Graph) -> float:
    """The eigenvalue of the Laplacian by its entries, for a connected graph."""
    from scipy.sparse import csgraph, csr_array
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    n, (i, j) = graph.num_nodes, graph.ends
    places = np.append(i, j), np.append(j, i)
    entries = csr_array((np.ones(2 * len(i)), places), shape=(n, n))
    laplacian: Any = csgraph.laplacian(entries)
    lowered = -laplacian
    begin = np.random.default_rng(0).standard_normal(n)
    asked: dict[str, Any] = {"k": 2, "v0": begin, "return_eigenvectors": False}
    try:
        found: Any = eigsh(lowered, which="LA", maxiter=RESTARTS, **asked)
    except ArpackNoConvergence:  # as of a long ring, whose eigenvalues crowd at the largest
        found = eigsh(lowered.tocsc(), sigma=1e-6, **asked)
    return -float(found.min())


def connectivity_without(graph: Graph, q: int) -> float:
    """a_q(G): the least algebraic connectivity after any ``q`` nodes have left, by enumeration.

    Raises:
        ValueError: unless 0 <= q < n, or for more than 4000 subsets.
    """
    n = graph.num_nodes
    if not 0 <= q < n:
        raise ValueError(f"Expected 0 <= q < num_nodes = {n}, got {q}")
    if math.comb(n, q) > MOST_SUBSETS:
        raise ValueError(
            f"Expected at most {MOST_SUBSETS} subsets of {q} out of {n} nodes, got "
            f"{math.comb(n, q)}; connectivity_bound is a proved lower bound"
        )
    subsets = itertools.combinations(range(n), q)
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


def complete_mixing(num_nodes: int) -> Matrix:
    """11^T / n: everybody gets the mean, (n, n)."""
    return np.full((num_nodes, num_nodes), 1.0 / num_nodes)


def check_mixing(weights: Weights, graph: Graph | None = None) -> None:
    """Refuse what is no mixing matrix; of ``graph`` where one is given.

    Raises:
        ValueError: naming what is violated, where and by how much.
    """
    from scipy.sparse import csr_array

    n = weights.shape[0]
    if weights.shape != (n, n):
        raise ValueError(f"Expected a square mixing matrix, got shape {weights.shape}")
    found = csr_array(weights)
    entries = found.data
    if not (np.isfinite(entries) & (entries >= 0) & (entries <= 1 + _TOLERANCE)).all():
        raise ValueError("Expected mixing weights in [0, 1], got others")
    if (skew := float(abs(found - found.T).max())) > _TOLERANCE:
        raise ValueError(f"Expected a symmetric mixing matrix, got a difference of {skew:.3g}")
    off = np.abs(np.asarray(found.sum(1)).reshape(-1) - 1.0)
    if off.max() > _TOLERANCE * n:
        row = int(off.argmax())
        raise ValueError(f"Expected rows that sum to 1, got row {row} off by {off[row]:.3g}")
    if graph is None:
        return
    if graph.num_nodes != n:
        raise ValueError(f"Expected a mixing matrix of {graph.num_nodes} nodes, got {n}")
    placed = found.tocoo()
    i, j = graph.ends
    rows, columns = placed.row.astype(np.int64), placed.col.astype(np.int64)
    known = np.isin(np.minimum(rows, columns) * n + np.maximum(rows, columns), i * n + j)
    strangers = ~known & (rows != columns) & (placed.data != 0)
    if strangers.any():
        at = int(strangers.argmax())
        raise ValueError(
            f"Expected weight 0 where there is no edge, got {placed.data[at]:.3g} at "
            f"({rows[at]}, {columns[at]})"
        )

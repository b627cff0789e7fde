"""Mixing matrices: symmetric and doubly stochastic, zero where there is no edge (Definition 2).

W of a graph is kept by its entries (scipy's csr_array, columns ascending): of a ring of 10 000
nodes these are 30 000 numbers, where all n^2 would take 800 MB. What looks at a mixing matrix takes
either form.
"""

from typing import Any, Final

import numpy as np

from manifed.graphs.graph import Graph, Matrix, second_largest

Weights = Any
"""A `Matrix`, or scipy's csr_array of its entries, which comes without types."""
_TOLERANCE = 1e-12
_DENSE: Final = 1000
"""Up to so many nodes eigenvalues are those of the whole matrix."""
_AT_ONCE: Final = 1 << 20
"""Entries of rows that are held at a time: a star's hub is in every edge."""


def metropolis_hastings(graph: Graph) -> Weights:
    """W_ij = 1 / (1 + max(deg i, deg j)) on edges, the rest of each row on the diagonal, (n, n).

    The paper prints 1 / (deg(i) + 1) without a diagonal, which is neither symmetric nor stochastic
    (spec 004 §7-A2); on regular graphs this is what it means: (Adj + I) / (deg + 1).
    """
    from scipy.sparse import csr_array

    n, ends = graph.num_nodes, np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    degrees, nodes = np.array(graph.degrees, dtype=np.float64), np.arange(n)
    i, j = np.concatenate([ends, ends[:, ::-1]]).T
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
    n = weights.shape[0]
    if weights.shape != (n, n):
        raise ValueError(f"Expected a square mixing matrix, got shape {weights.shape}")
    found = _by_entries(weights)
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
    i, j = np.array(graph.edges, dtype=np.int64).reshape(-1, 2).T
    rows, columns = placed.row.astype(np.int64), placed.col.astype(np.int64)
    known = np.isin(np.minimum(rows, columns) * n + np.maximum(rows, columns), i * n + j)
    strangers = ~known & (rows != columns) & (placed.data != 0)
    if strangers.any():
        at = int(strangers.argmax())
        raise ValueError(
            f"Expected weight 0 where there is no edge, got {placed.data[at]:.3g} at "
            f"({rows[at]}, {columns[at]})"
        )


def consensus_rate(weights: Weights) -> float:
    """P of assumption A5: 1 less the second-largest eigenvalue of W W^T; 1 for complete mixing."""
    from scipy.sparse import block_array
    from scipy.sparse.csgraph import connected_components
    from scipy.sparse.linalg import aslinearoperator

    n, found = weights.shape[0], _by_entries(weights)
    if n == 1:
        return 1.0
    by_turns = block_array([[None, found], [found.T, None]])  # connected where W W^T is
    if connected_components(by_turns, directed=False, return_labels=False) > 1:
        return 0.0  # each part has the eigenvalue 1, and Lanczos' method finds one of them
    if n <= _DENSE:
        second = np.linalg.eigvalsh((found @ found.T).toarray())[-2]
    else:  # W W^T has n^2 entries where one node is everybody's neighbour
        operator = aslinearoperator(found)
        second = second_largest(operator @ operator, 1.0, lambda: found @ found.T)
    return float(max(1.0 - second, 0.0))


def heterogeneity(graph: Graph, weights: Weights) -> float:
    """H_G(W) of eq. (11): the mean of |W_i - W_k|^2 / 2 over the edges {i, k}; 0 without edges."""
    if not graph.edges:
        return 0.0
    (i, k), found = np.array(graph.edges).T, _by_entries(weights)
    counts = np.diff(found.indptr)
    part = np.cumsum(counts[i] + counts[k]) // _AT_ONCE
    total = 0.0
    for edges in np.split(np.arange(len(i)), np.flatnonzero(np.diff(part)) + 1):
        apart = found[i[edges]] - found[k[edges]]  # rows for columns: W is symmetric
        total += float((apart.data**2).sum())
    return total / (2 * len(graph.edges))


def distance_to_mean(weights: Weights) -> float:
    """|W - 11^T / n|_F^2, what mixing leaves of independent noise."""
    found, n = _by_entries(weights), weights.shape[0]
    zeros = float(n) ** 2 - found.nnz
    return float(((found.data - 1.0 / n) ** 2).sum() + zeros / n**2)


def _by_entries(weights: Weights) -> Weights:
    from scipy.sparse import csr_array

    return csr_array(weights)

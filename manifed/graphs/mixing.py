"""Mixing matrices: symmetric and doubly stochastic, zero where there is no edge (Definition 2).

W of a graph is kept by its entries (scipy's csr_array, columns ascending): of a ring of 10 000
nodes these are 30 000 numbers, where all n^2 would take 800 MB. What looks at a mixing matrix takes
either form.
"""

from typing import Any

import numpy as np

from manifed.graphs.graph import Graph, Matrix

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

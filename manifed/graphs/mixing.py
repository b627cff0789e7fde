"""Mixing matrices: symmetric and doubly stochastic, zero where there is no edge (Definition 2)."""

import numpy as np

from manifed.graphs.graph import Graph, Matrix

_TOLERANCE = 1e-12


def metropolis_hastings(graph: Graph) -> Matrix:
    """W_ij = 1 / (1 + max(deg i, deg j)) on edges, the rest of each row on the diagonal, (n, n).

    The paper prints 1 / (deg(i) + 1) without a diagonal, which is neither symmetric nor stochastic
    (spec 004 §7-A2); on regular graphs this is what it means: (Adj + I) / (deg + 1).
    """
    degrees = np.array(graph.degrees, dtype=np.float64)
    weights = graph.adjacency / (1.0 + np.maximum(degrees[:, None], degrees[None, :]))
    return weights + np.diag(1.0 - weights.sum(1))


def complete_mixing(num_nodes: int) -> Matrix:
    """11^T / n: everybody gets the mean, (n, n)."""
    return np.full((num_nodes, num_nodes), 1.0 / num_nodes)


def check_mixing(weights: Matrix, graph: Graph | None = None) -> None:
    """Refuse what is no mixing matrix; of ``graph`` where one is given.

    Raises:
        ValueError: naming what is violated, where and by how much.
    """
    n = weights.shape[0]
    if weights.shape != (n, n):
        raise ValueError(f"Expected a square mixing matrix, got shape {weights.shape}")
    if not np.isfinite(weights).all() or weights.min() < 0 or weights.max() > 1 + _TOLERANCE:
        raise ValueError("Expected mixing weights in [0, 1], got others")
    if (skew := float(np.abs(weights - weights.T).max())) > _TOLERANCE:
        raise ValueError(f"Expected a symmetric mixing matrix, got a difference of {skew:.3g}")
    off = np.abs(weights.sum(1) - 1.0)
    if off.max() > _TOLERANCE * n:
        row = int(off.argmax())
        raise ValueError(f"Expected rows that sum to 1, got row {row} off by {off[row]:.3g}")
    if graph is None:
        return
    if graph.num_nodes != n:
        raise ValueError(f"Expected a mixing matrix of {graph.num_nodes} nodes, got {n}")
    strangers = (graph.adjacency == 0) & ~np.eye(n, dtype=bool) & (weights != 0)
    if strangers.any():
        i, j = (int(k) for k in np.argwhere(strangers)[0])
        raise ValueError(f"Expected weight 0 where there is no edge, got {weights[i, j]:.3g} at "
                         f"({i}, {j})")  # fmt: skip


def consensus_rate(weights: Matrix) -> float:
    """P of assumption A5: 1 less the second-largest eigenvalue of W W^T; 1 for complete mixing."""
    if weights.shape[0] == 1:
        return 1.0
    return float(1.0 - np.linalg.eigvalsh(weights @ weights.T)[-2])


def heterogeneity(graph: Graph, weights: Matrix) -> float:
    """H_G(W) of eq. (11): the mean of |W_i - W_k|^2 / 2 over the edges {i, k}; 0 without edges."""
    if not graph.edges:
        return 0.0
    i, k = np.array(graph.edges).T
    return float(((weights[:, i] - weights[:, k]) ** 2).sum() / (2 * len(graph.edges)))


def distance_to_mean(weights: Matrix) -> float:
    """|W - 11^T / n|_F^2, what mixing leaves of independent noise."""
    return float(((weights - 1.0 / weights.shape[0]) ** 2).sum())

"""Trees on the hyperbolic plane: random recursive trees, Sarkar's embedding, spectral features.

Points are on the
hyperboloid, shape (n, 3), time coordinate first.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parents = NDArray[np.int64]
Disk = NDArray[np.complex128]


def random_recursive_tree(num_nodes: int, rng: np.random.Generator) -> Parents:
    """parents[i] uniform in 0..i-1 for i > 0, and -1 for the root 0."""
    later = [int(rng.integers(0, i)) for i in range(1, num_nodes)]
    return np.array([-1, *later], dtype=np.int64)


def depths(parents: Parents) -> Parents:
    """Number of edges from the root; every parent must come before its children."""
    found = np.zeros(len(parents), dtype=np.int64)
    for node in range(1, len(parents)):
        found[node] = found[parents[node]] + 1
    return found


def subtree_sizes(parents: Parents) -> Parents:
    """Number of nodes in the subtree of each node, itself included."""
    found = np.ones(len(parents), dtype=np.int64)
    for node in range(len(parents) - 1, 0, -1):
        found[parents[node]] += found[node]
    return found


def closure_edges(parents: Parents) -> NDArray[np.int64]:
    """All (descendant, ancestor) pairs, shape (m, 2)."""
    pairs = []
    for node in range(1, len(parents)):
        ancestor = int(parents[node])
        while ancestor >= 0:
            pairs.append((node, ancestor))
            ancestor = int(parents[ancestor])
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def sarkar(parents: Parents, *, radius: float = 2.5) -> Array:
    """Sarkar's embedding with equal edges, the deepest node at most ``radius`` from the root.

    Sarkar: Low Distortion Delaunay Embedding of Trees in Hyperbolic Plane (2011). Seen from a node,
    its children and its parent are equally spaced in angle; all edges have length radius / depth.
    """
    levels = depths(parents)
    if levels.max(initial=0) == 0:
        raise ValueError("Expected a tree with at least one edge")
    edge = np.tanh(radius / levels.max() / 2)
    children = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    z = np.zeros(len(parents), dtype=np.complex128)
    for node, offspring in enumerate(children):
        if not offspring:
            continue
        is_root = parents[node] < 0
        spokes = len(offspring) + (0 if is_root else 1)
        towards = (
            0.0 if is_root else float(np.angle(_from_origin(-z[node], z[parents[node] :][:1]))[0])
        )
        turns = np.arange(len(offspring)) + (0 if is_root else 1)
        angles = towards + 2 * np.pi * turns / spokes
        z[offspring] = _from_origin(z[node], edge * np.exp(1j * angles))
    return poincare_to_lorentz(np.stack([z.real, z.imag], axis=-1))


def poincare_to_lorentz(p: Array) -> Array:
    """(1 + |p|^2, 2 p) / (1 - |p|^2), shape (..., d + 1), from the open unit ball."""
    squared = np.square(p).sum(-1, keepdims=True)
    return np.concatenate([1 + squared, 2 * p], axis=-1) / (1 - squared)


def laplacian_eigenmap(edges: NDArray[np.int64], num_nodes: int, num_features: int = 3) -> Array:
    """Belkin and Niyogi's features of the undirected graph, shape (num_nodes, num_features).

    Eigenvectors of the normalised Laplacian past the first, divided by the square roots of the
    degrees, as scikit-learn's SpectralEmbedding(affinity="precomputed") does (self-loops do not
    count); the largest entry of each is positive, so the result is deterministic.
    """
    adjacency = np.zeros((num_nodes, num_nodes))
    adjacency[edges[:, 0], edges[:, 1]] = 1.0
    adjacency[edges[:, 1], edges[:, 0]] = 1.0
    np.fill_diagonal(adjacency, 0.0)
    root = np.sqrt(np.maximum(adjacency.sum(1), 1.0))
    laplacian = np.eye(num_nodes) - adjacency / root[:, None] / root[None, :]
    import scipy.linalg

    _, vectors = scipy.linalg.eigh(laplacian, subset_by_index=(1, num_features))
    features = vectors / root[:, None]
    largest = np.take_along_axis(features, np.abs(features).argmax(0)[None], axis=0)
    return features * np.sign(largest)


def tree_of_closure(pairs: NDArray[np.int64], num_nodes: int) -> tuple[NDArray[np.int64], Parents]:
    """An order of the nodes, ancestors first, and in that order each node's parent.

    ``pairs`` are all (descendant, ancestor) of a directed acyclic graph with one root. A node hangs
    from its deepest ancestor, the one with the most ancestors of its own (the first listed, where
    several are).
    """
    above = np.bincount(pairs[:, 0], minlength=num_nodes)
    order = np.argsort(above, kind="stable")
    if above[order[0]] != 0 or (num_nodes > 1 and above[order[1]] == 0):
        raise ValueError("Expected a closure with exactly one root")
    parent = np.full(num_nodes, -1, dtype=np.int64)
    for child, ancestor in pairs:
        if parent[child] < 0 or above[ancestor] > above[parent[child]]:
            parent[child] = ancestor
    position = np.argsort(order)
    found = np.where(parent[order] < 0, -1, position[parent[order]])
    return order, found.astype(np.int64)


def _from_origin(a: complex, z: Disk) -> Disk:
    """The isometry of the disk that takes 0 to a."""
    return (z + a) / (1 + np.conj(a) * z)

"""The constants of a graph and its mixing that DECOR's bounds are made of, for people to read."""

from dataclasses import dataclass

from manifed.graphs.graph import Graph, algebraic_connectivity, connectivity_bound
from manifed.graphs.mixing import (
    Weights,
    check_mixing,
    consensus_rate,
    distance_to_mean,
    heterogeneity,
)


@dataclass(frozen=True)
class Connectivity:
    """a_q(G): what is left of the algebraic connectivity when the worst q nodes have left."""

    nodes_gone: int
    value: float
    is_exact: bool
    """False: a proved lower bound, because there are too many subsets to enumerate."""


@dataclass(frozen=True)
class Constants:
    """Of one graph with one mixing matrix W."""

    nodes: int
    edges: int
    least_degree: int
    greatest_degree: int
    components: int
    algebraic_connectivity: float
    """a(G), the second-smallest eigenvalue of the Laplacian."""
    without: tuple[Connectivity, ...]
    """a_q(G) for q = 1, 2, ..."""
    consensus_rate: float
    """p of assumption A5."""
    heterogeneity: float
    """H_G(W) of eq. (11): the share of the masks' square that is left after mixing."""
    distance_to_mean: float
    """|W - 11^T / n|_F^2."""


def constants_of(graph: Graph, weights: Weights, collusion: int = 2) -> Constants:
    """The constants, with a_q for q from 1 to ``collusion`` (less where nobody would be left).

    Raises:
        ValueError: ``weights`` is no mixing matrix. It may mix nodes that share no edge: that is
            the central special case.
    """
    if weights.shape[0] != graph.num_nodes:
        raise ValueError(
            f"Expected a mixing matrix of {graph.num_nodes} nodes, got {weights.shape[0]}"
        )
    check_mixing(weights)
    most = min(collusion, graph.num_nodes - 1)
    return Constants(
        nodes=graph.num_nodes,
        edges=len(graph.edges),
        least_degree=min(graph.degrees),
        greatest_degree=max(graph.degrees),
        components=len(graph.components),
        algebraic_connectivity=algebraic_connectivity(graph),
        without=tuple(Connectivity(q, *connectivity_bound(graph, q)) for q in range(1, most + 1)),
        consensus_rate=consensus_rate(weights),
        heterogeneity=heterogeneity(graph, weights),
        distance_to_mean=distance_to_mean(weights),
    )

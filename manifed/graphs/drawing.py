"""A picture of a graph: nodes by number, darker edges where mixing gives more weight."""

import io

import networkx as nx
from matplotlib.figure import Figure

from manifed.graphs.graph import Graph
from manifed.graphs.mixing import Weights

_FEW_NODES = 64
"""Larger graphs are drawn without numbers, on a circle."""


def png_of(graph: Graph, weights: Weights, caption: str) -> bytes:
    """The bytes of a PNG; the same arguments give the same picture."""
    drawn = nx.Graph()
    drawn.add_nodes_from(range(graph.num_nodes))
    drawn.add_edges_from(graph.edges)
    is_small = graph.num_nodes <= _FEW_NODES
    is_laid_out = is_small and graph.is_connected and len(graph.edges) >= graph.num_nodes - 1
    places = nx.kamada_kawai_layout(drawn) if is_laid_out else nx.circular_layout(drawn)
    if graph.edges and min(graph.degrees) == max(graph.degrees) == 2:  # a ring is round
        places = nx.circular_layout(drawn)
    heaviest = max((weights[i, j] for i, j in graph.edges), default=1.0) or 1.0
    figure = Figure(figsize=(6.0, 6.4), layout="constrained")
    axes = figure.subplots()
    for i, j in graph.edges:
        across, up = zip(places[i], places[j], strict=True)
        shade = 0.25 + 0.75 * float(weights[i, j]) / float(heaviest)
        axes.plot(across, up, color="#0072B2", linewidth=1.2, alpha=shade, zorder=1)
    xs, ys = zip(*(places[i] for i in range(graph.num_nodes)), strict=True)
    size = 260 if is_small else 12
    axes.scatter(xs, ys, s=size, color="#F4F4F4", edgecolors="#222222", zorder=2)
    if is_small:
        for i in range(graph.num_nodes):
            axes.text(xs[i], ys[i], str(i), ha="center", va="center", fontsize=8, zorder=3)
    axes.set_axis_off()
    axes.set_aspect("equal")
    figure.supxlabel(caption, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140, metadata={"Software": None})
    return buffer.getvalue()

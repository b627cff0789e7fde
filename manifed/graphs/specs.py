"""The configuration of graphs: frozen models, discriminated on ``kind``; networkx builds them."""

import math
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from manifed.durable import read_regular
from manifed.graphs.graph import Graph

_MOST_PAIRS = 1 << 22
"""Edges of one graph, and pairs of nodes that draws of a random one look at: some seconds."""
_LONGEST_FILE = 1 << 26
"""Bytes of a file of edges."""


class GraphSource(BaseModel):
    """What every graph's configuration can do."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @abstractmethod
    def build(self, num_nodes: int, seed: int = 0) -> Graph:
        """The graph of ``num_nodes`` nodes; ``seed`` is read by random graphs only.

        Raises:
            ValueError: when there is no such graph, it takes long to build (a config is read before
                anybody has agreed to it), or none of many draws is connected.
        """


class _NamedGraph(GraphSource):
    """A graph that networkx makes; a random one is drawn until it is connected."""

    def pairs(self, num_nodes: int) -> int:
        """How many edges there are, or pairs of nodes that a draw looks at; one a node here.

        Raises:
            ValueError: when there is no such graph.
        """
        return num_nodes

    @abstractmethod
    def drawn(self, nx: Any, num_nodes: int, rng: np.random.Generator) -> Any:
        """The graph that the package ``nx`` makes, or one draw of a random one."""

    def build(self, num_nodes: int, seed: int = 0) -> Graph:
        """The graph, with nodes in networkx's own order; loops (of a ring of one) are left out."""
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
            if found.is_connected:
                return found
        name, value = next((name, value) for name, value in self if name != "kind")
        raise ValueError(
            f"graph.{name}: expected one with a connected draw out of {draws}, got {value:g} for "
            f"{num_nodes} nodes; it takes about log(n) / n = "
            f"{math.log(max(num_nodes, 2)) / num_nodes:.3g} of all edges"
        )


class Ring(_NamedGraph):
    """Node i beside i - 1 and i + 1."""

    kind: Literal["ring"] = "ring"

    def drawn(self, nx: Any, num_nodes: int, rng: np.random.Generator) -> Any:
        """A cycle."""
        return nx.cycle_graph(num_nodes)


class Torus(_NamedGraph):
    """A grid whose edges wrap around; a square one unless ``rows`` is given."""

    kind: Literal["torus"] = "torus"
    rows: int | None = Field(default=None, ge=1)
    """Rows of the grid; None: a square."""

    def pairs(self, num_nodes: int) -> int:
        """Two a node."""
        return 2 * num_nodes

    def drawn(self, nx: Any, num_nodes: int, rng: np.random.Generator) -> Any:
        """A grid, row by row."""
        rows = self.rows or math.isqrt(num_nodes)
        if num_nodes % rows or (self.rows is None and rows * rows != num_nodes):
            raise ValueError(
                f"graph.rows: expected a divisor of the {num_nodes} nodes, got "
                f"{self.rows or 'none, and the number is no square'}"
            )
        return nx.grid_2d_graph(rows, num_nodes // rows, periodic=True)


class Complete(_NamedGraph):
    """Everybody beside everybody."""

    kind: Literal["complete"] = "complete"

    def pairs(self, num_nodes: int) -> int:
        """All."""
        return num_nodes * (num_nodes - 1) // 2

    def drawn(self, nx: Any, num_nodes: int, rng: np.random.Generator) -> Any:
        """All edges."""
        return nx.complete_graph(num_nodes)


class Star(_NamedGraph):
    """Node 0 beside all others."""

    kind: Literal["star"] = "star"

    def drawn(self, nx: Any, num_nodes: int, rng: np.random.Generator) -> Any:
        """A hub and its leaves."""
        return nx.star_graph(num_nodes - 1)


class Exponential(_NamedGraph):
    """Node i beside i +- 1, 2, 4, 8, ... (mod n): about 2 log2(n) neighbours."""

    kind: Literal["exponential"] = "exponential"

    def pairs(self, num_nodes: int) -> int:
        """At most log2(n) a node."""
        return num_nodes * num_nodes.bit_length()

    def drawn(self, nx: Any, num_nodes: int, rng: np.random.Generator) -> Any:
        """A circulant graph of the powers of two."""
        offsets = [1 << k for k in range(max(num_nodes - 1, 1).bit_length()) if 1 << k < num_nodes]
        return nx.circulant_graph(num_nodes, offsets)


class ErdosRenyi(_NamedGraph):
    """Each edge with ``probability``, drawn again until the graph is connected."""

    kind: Literal["erdos-renyi"] = "erdos-renyi"
    probability: float = Field(gt=0, le=1)
    """The probability of each edge."""

    def pairs(self, num_nodes: int) -> int:
        """All are looked at."""
        return num_nodes * (num_nodes - 1) // 2

    def drawn(self, nx: Any, num_nodes: int, rng: np.random.Generator) -> Any:
        """A draw of G(n, p)."""
        return nx.gnp_random_graph(num_nodes, self.probability, seed=rng)


class RandomRegular(_NamedGraph):
    """Everybody has ``degree`` neighbours, drawn again until the graph is connected."""

    kind: Literal["random-regular"] = "random-regular"
    degree: int = Field(ge=1)
    """Neighbours of each node."""

    def pairs(self, num_nodes: int) -> int:
        """Half of the degrees."""
        if self.degree >= num_nodes or self.degree * num_nodes % 2:
            raise ValueError(
                f"graph.degree: expected less than the {num_nodes} nodes and an even product with "
                f"them, got {self.degree}"
            )
        return self.degree * num_nodes // 2

    def drawn(self, nx: Any, num_nodes: int, rng: np.random.Generator) -> Any:
        """A draw of a regular graph."""
        return nx.random_regular_graph(self.degree, num_nodes, seed=rng)


class EdgeList(GraphSource):
    """The edges themselves, or a file with a line ``i j`` for each; ``#`` begins a comment."""

    kind: Literal["edges"] = "edges"
    edges: tuple[tuple[int, int], ...] | None = None
    """Pairs of nodes, which count from 0."""
    path: Path | None = None
    """A file with one pair of nodes a line, in place of ``edges``."""

    @model_validator(mode="after")
    def _has_one(self) -> "EdgeList":
        if (self.edges is None) == (self.path is None):
            raise ValueError("graph: expected either edges or path with kind = 'edges'")
        return self

    def build(self, num_nodes: int, seed: int = 0) -> Graph:
        """The graph that is written down."""
        del seed
        named = self.edges if self.path is None else _read(self.path)
        assert named is not None
        for i, j in named:
            if i == j or not (0 <= i < num_nodes and 0 <= j < num_nodes):
                raise ValueError(
                    f"graph.edges: expected two nodes out of 0..{num_nodes - 1}, got ({i}, {j})"
                )
        return Graph.of(num_nodes, named)


GraphSpec = Annotated[
    Ring | Torus | Complete | Star | Exponential | ErdosRenyi | RandomRegular | EdgeList,
    Field(discriminator="kind"),
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

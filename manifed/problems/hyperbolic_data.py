"""Configuration of the hyperbolic data sets: a random tree, and the WordNet mammals."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from manifed.problems import hyperbolic_trees as trees
from manifed.problems import readers
from manifed.problems.dataset import Dataset, DataSource, ExampleKind, build, generator


class HyperbolicTree(DataSource):
    """A random recursive tree embedded by Sarkar's construction, with spectral features.

    Stand-in for the published embedding of the WordNet mammals. One internal node is the query:
    ``held_out``, or the non-root node with the largest subtree.
    """

    kind: Literal["hyperbolic-tree"] = "hyperbolic-tree"
    provides: ClassVar[ExampleKind] = "hyperbolic-pairs"
    num_nodes: int = Field(default=1180, ge=4)
    """Nodes of the tree."""
    num_features: int = Field(default=3, ge=1)
    """Columns of the features."""
    radius: float = Field(default=2.5, gt=0)
    """Most edges from the root to a node, times the length of an edge."""
    edge: Annotated[float, Field(gt=0)] | None = None
    """Length of an edge, in place of ``radius``: trees of any depth are then equally curved."""
    held_out: int | None = Field(default=None, ge=0)
    """The query; None: the node below the root with the largest subtree."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``target`` of all nodes but the query; the query's own in ``meta``."""
        del data_dir
        parents = trees.random_recursive_tree(self.num_nodes, generator(seed, "data"))
        query = self.held_out
        if query is None:
            query = 1 + int(trees.subtree_sizes(parents)[1:].argmax())
        if query >= self.num_nodes:
            raise ValueError(f"Expected held_out < num_nodes = {self.num_nodes}, got {query}")
        edges = trees.closure_edges(parents)
        features = trees.laplacian_eigenmap(edges, self.num_nodes, self.num_features)
        depths = trees.depths(parents)
        radius = self.radius if self.edge is None else self.edge * int(depths.max())
        return hold_out(features, trees.sarkar(parents, radius=radius), depths, query)


class HyperbolicCloud(DataSource):
    """Points exp_o(spread * N(0, I)) around the origin of the hyperboloid, with normal features."""

    kind: Literal["hyperbolic-cloud"] = "hyperbolic-cloud"
    provides: ClassVar[ExampleKind] = "hyperbolic-pairs"
    num_examples: int = Field(default=1000, ge=1)
    """Examples in all."""
    dimension: int = Field(default=10, ge=1)
    """Of hyperbolic space; points have one coordinate more."""
    num_features: int = Field(default=3, ge=1)
    """Columns of the features."""
    spread: float = Field(default=0.5, gt=0)
    """Deviation of the tangent vectors around the centre."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` (n, num_features) and ``target`` (n, dimension + 1)."""
        del data_dir
        rng = generator(seed, "data")
        u = self.spread * rng.standard_normal((self.num_examples, self.dimension))
        radius = np.linalg.norm(u, axis=1, keepdims=True)
        points = np.hstack([np.cosh(radius), np.sinh(radius) * u / radius])
        features = rng.standard_normal((self.num_examples, self.num_features))
        return build(
            {"feature": features, "target": points}, feature_ndim={"feature": 1, "target": 1}
        )


class _Mammals(DataSource):
    """The mammals subtree of WordNet, one of them held out."""

    provides: ClassVar[ExampleKind] = "hyperbolic-pairs"
    query: str = "primate"
    """The name held out; "primate" finds "primate.n.02"."""
    is_graph_public: bool = False
    """Declares the closure public, and with it the features and the embedding, which look at all
    of it. What privacy then protects is which nodes the clients hold."""

    def mixes_records(self) -> str | None:
        """Features and embedding of a node move with every edge of the graph."""
        if self.is_graph_public:
            return None
        return (
            "data.is_graph_public: features and embedding are computed from the whole graph, of "
            "all clients; expected true with privacy (a declaration that the graph is public), got "
            "false"
        )

    def _place(self, names: list[str]) -> int:
        found = [i for i, name in enumerate(names) if name.split(".")[0] == self.query]
        found = found or [i for i, name in enumerate(names) if name == self.query]
        if len(found) != 1:
            raise ValueError(
                f"Expected query to name one mammal, got {self.query!r} for {len(found)}"
            )
        return found[0]


class WordnetEmbedding(_Mammals):
    """The embedding that PriRFed predicts, as published: 1180 synsets, features, points."""

    kind: Literal["wordnet-embedding"] = "wordnet-embedding"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``target`` of all synsets but the query, in order of the file."""
        del seed
        names, features, points = readers.wordnet_embedding(data_dir)
        points = trees.poincare_to_lorentz(points)
        return hold_out(features, points, None, self._place(names), {"names": names})


class WordnetMammals(_Mammals):
    """The closure's spectral features, and a Sarkar embedding of our own.

    Each synset hangs from its deepest hypernym and the resulting tree is embedded by Sarkar's
    construction. The shipped closure has 1170 synsets and 6448 pairs, PriRFed's 1180 and 6540.
    """

    kind: Literal["wordnet-mammals"] = "wordnet-mammals"
    num_features: int = Field(default=3, ge=1)
    """Columns of the features."""
    radius: float = Field(default=2.5, gt=0)
    """Most edges from the root to a node, times the length of an edge."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``target`` of all synsets but the query; the query's own in ``meta``."""
        del seed
        names, pairs = readers.wordnet_mammals(data_dir)
        order, parents = trees.tree_of_closure(pairs, len(names))
        names = [names[i] for i in order]
        query = self._place(names)
        rank = np.argsort(order)
        features = trees.laplacian_eigenmap(rank[pairs], len(names), self.num_features)
        points = trees.sarkar(parents, radius=self.radius)
        return hold_out(features, points, trees.depths(parents), query, {"names": names})


def hold_out(
    features: NDArray[np.float64],
    points: NDArray[np.float64],
    depths: NDArray[np.int64] | None,
    query: int,
    meta: dict[str, Any] | None = None,
) -> Dataset:
    """All nodes but ``query`` as examples, labelled by depth if known; its own pair in ``meta``."""
    kept = np.flatnonzero(np.arange(len(points)) != query)
    return build(
        {"feature": features[kept], "target": points[kept]},
        feature_ndim={"feature": 1, "target": 1},
        labels=None if depths is None else depths[kept],
        meta={
            **({} if meta is None else meta),
            "query": query,
            "query_feature": torch.tensor(features[query]),
            "query_target": torch.tensor(points[query]),
        },
    )

"""Configuration of the hyperbolic data sets: a random tree, and the WordNet mammals."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from manifed.problems import hyperbolic_trees as trees
from manifed.problems import readers
from manifed.problems.dataset import Dataset, DataSource, ExampleKind, build, generator


class HyperbolicTree(DataSource):
    """A random recursive tree embedded by Sarkar's construction, with spectral features.

    Stand-in for the WordNet mammals and their pretrained embedding. One internal node is the query:
    ``held_out``, or the non-root node with the largest subtree.
    """

    kind: Literal["hyperbolic-tree"] = "hyperbolic-tree"
    provides: ClassVar[ExampleKind] = "hyperbolic-pairs"
    num_nodes: int = Field(default=1180, ge=4)
    """Nodes of the tree."""
    num_features: int = Field(default=3, ge=1)
    """Columns of the features."""
    radius: float = Field(default=2.5, gt=0)
    """Largest distance of a node from the origin in the embedding."""
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
        points = trees.sarkar(parents, radius=self.radius)
        return hold_out(features, points, trees.depths(parents), query)


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


class WordnetMammals(DataSource):
    """The mammals subtree of WordNet: its closure's spectral features and a Sarkar embedding.

    PriRFed uses a pretrained Poincaré embedding, which is a download; the targets here are our own:
    each synset hangs from its deepest hypernym and the resulting tree is embedded by Sarkar's
    construction. The shipped closure has 1170 synsets and 6448 pairs, the paper's 1180 and 6540.
    The name held out is ``query`` ("primate" finds "primate.n.02").
    """

    kind: Literal["wordnet-mammals"] = "wordnet-mammals"
    provides: ClassVar[ExampleKind] = "hyperbolic-pairs"
    query: str = "primate"
    """Part of the name of the node that is held out."""
    num_features: int = Field(default=3, ge=1)
    """Columns of the features."""
    radius: float = Field(default=2.5, gt=0)
    """Largest distance of a node from the origin in the embedding."""
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

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``target`` of all synsets but the query; the query's own in ``meta``."""
        del seed
        names, pairs = readers.wordnet_mammals(data_dir)
        order, parents = trees.tree_of_closure(pairs, len(names))
        names = [names[i] for i in order]
        found = [i for i, name in enumerate(names) if name.split(".")[0] == self.query]
        found = found or [i for i, name in enumerate(names) if name == self.query]
        if len(found) != 1:
            raise ValueError(
                f"Expected query to name one mammal, got {self.query!r} for {len(found)}"
            )
        rank = np.argsort(order)
        features = trees.laplacian_eigenmap(rank[pairs], len(names), self.num_features)
        points = trees.sarkar(parents, radius=self.radius)
        return hold_out(features, points, trees.depths(parents), found[0], {"names": names})


def hold_out(
    features: NDArray[np.float64],
    points: NDArray[np.float64],
    depths: NDArray[np.int64],
    query: int,
    meta: dict[str, Any] | None = None,
) -> Dataset:
    """All nodes but ``query`` as examples, labelled by depth; the query's own pair in ``meta``."""
    kept = np.flatnonzero(np.arange(len(points)) != query)
    return build(
        {"feature": features[kept], "target": points[kept]},
        feature_ndim={"feature": 1, "target": 1},
        labels=depths[kept],
        meta={
            **({} if meta is None else meta),
            "query": query,
            "query_feature": torch.tensor(features[query]),
            "query_target": torch.tensor(points[query]),
        },
    )

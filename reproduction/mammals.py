"""Hyperbolic data of figures: a random tree, and the mammals of WordNet.

PriRFed predicts a published embedding of the WordNet mammals, which is a download; a random tree
stands in for it. A config names them as ``kind = "reproduction.mammals:WordnetMammals"``.
"""

import io
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveFloat

from manifed.durable import MOST_BYTES
from manifed.fields import Positive, PositiveCount
from manifed.problems.data import Dataset, DataSource, ExampleKind, build, generator
from manifed.problems.real import DataDamaged, content, find
from reproduction import trees


def lines(path: Path) -> list[str]:
    """The lines of a text file; errors as `content`, and for what is no UTF-8, with its line."""
    raw = content(path)
    try:
        return raw.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataDamaged(path, "expected UTF-8", line) from None


class HyperbolicTree(DataSource):
    """A random recursive tree embedded by Sarkar's construction, with spectral features.

    Stand-in for the published embedding of the WordNet mammals. One internal node is the query:
    ``held_out``, or the non-root node with the largest subtree.
    """

    kind: Literal["reproduction.mammals:HyperbolicTree"] = "reproduction.mammals:HyperbolicTree"
    provides: ClassVar[ExampleKind] = "hyperbolic-pairs"
    num_nodes: int = Field(default=1180, ge=4)
    """Nodes of the tree."""
    num_features: PositiveCount = 3
    """Columns of the features."""
    radius: PositiveFloat = 2.5
    """Most edges from the root to a node, times the length of an edge."""
    edge: Positive | None = None
    """Length of an edge, in place of ``radius``: trees of any depth are then equally curved."""
    held_out: NonNegativeInt | None = None
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

    def mixes_records(self) -> str | None:
        """None: a node is what the recipe hands out."""
        return None


class Mammals(DataSource):
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


class WordnetEmbedding(Mammals):
    """The embedding that PriRFed predicts, as published: 1180 synsets, features, points."""

    kind: Literal["reproduction.mammals:WordnetEmbedding"] = "reproduction.mammals:WordnetEmbedding"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``target`` of all synsets but the query, in order of the file."""
        del seed
        names, features, points = wordnet_embedding(data_dir)
        points = trees.poincare_to_lorentz(points)
        return hold_out(features, points, None, self._place(names), {"names": names})


class WordnetMammals(Mammals):
    """The closure's spectral features, and a Sarkar embedding of our own.

    Each synset hangs from its deepest hypernym and the resulting tree is embedded by Sarkar's
    construction. The shipped closure has 1170 synsets and 6448 pairs, PriRFed's 1180 and 6540.
    """

    kind: Literal["reproduction.mammals:WordnetMammals"] = "reproduction.mammals:WordnetMammals"
    num_features: PositiveCount = 3
    """Columns of the features."""
    radius: PositiveFloat = 2.5
    """Most edges from the root to a node, times the length of an edge."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """``feature`` and ``target`` of all synsets but the query; the query's own in ``meta``."""
        del seed
        names, pairs = wordnet_mammals(data_dir)
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
        labels=None if depths is None else depths[kept],
        meta={
            **({} if meta is None else meta),
            "query": query,
            "query_feature": torch.tensor(features[query]),
            "query_target": torch.tensor(points[query]),
        },
    )


def wordnet_mammals(data_dir: Path | None) -> tuple[list[str], NDArray[np.int64]]:
    """The mammals' names in first-seen order and the closure's (descendant, ancestor) pairs.

    The pairs of a node with itself, which the file also lists, are left out.

    Raises:
        DataDamaged: with the first line that has not two names.
    """
    path = find("wordnet-mammals", data_dir, "wordnet_mammals/wordnet_mammals.tsv")
    index = {}
    pairs = []
    for number, line in enumerate(lines(path), start=1):
        child, ancestor, *_ = [*line.split("\t"), "", ""]
        if not child or not ancestor:
            raise DataDamaged(path, "expected child<tab>parent", number)
        i = index.setdefault(child, len(index))
        j = index.setdefault(ancestor, len(index))
        if i != j:
            pairs.append((i, j))
    if not pairs:
        raise DataDamaged(path, "expected pairs of names, got none")
    return list(index), np.array(pairs, dtype=np.int64)


def arrays_of(path: Path, *names: str) -> list[NDArray[Any]]:
    """The arrays of these names in an archive of numpy.

    Raises:
        DataDamaged: it is none, lacks one, holds objects, or unpacks to more than `MOST_BYTES`.
    """
    try:
        with np.load(io.BytesIO(content(path)), allow_pickle=False) as archive:
            if sum(one.file_size for one in archive.zip.infolist()) > MOST_BYTES:
                raise DataDamaged(path, f"expected at most {MOST_BYTES} bytes unpacked, got more")
            return [archive[name] for name in names]
    except DataDamaged:
        raise
    except Exception as error:  # a broken zip, deflate stream or header: numpy raises of any kind
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        raise DataDamaged(path, f"expected arrays {listed}") from error


def wordnet_embedding(
    data_dir: Path | None,
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
    """The mammals' names, features (n, r) and points of the Poincaré disk (n, 2), as published.

    Raises:
        DataDamaged: no archive of numpy, or not one finite row of each for every name.
    """
    path = find("wordnet-embedding", data_dir, "wordnet_hsp/wordnet_hsp.npz")
    names, features, points = arrays_of(path, "names", "features", "poincare")
    kinds = (names.dtype.kind, features.dtype.kind, points.dtype.kind)
    shapes = (names.ndim, features.shape[:-1], points.shape)
    if kinds != ("U", "f", "f") or shapes != (1, names.shape, (*names.shape, 2)):
        raise DataDamaged(path, "expected a row of features and a point of the disk for each name")
    if not np.isfinite(features).all() or not (np.square(points).sum(-1) < 1).all():
        raise DataDamaged(path, "expected finite features, and points inside the unit disk")
    return [str(name) for name in names], features, points

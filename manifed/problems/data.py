"""Data sets: the loaded examples, the base of their config tables, and partitions."""

import hashlib
import importlib
import json
import os
import re
import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from manifed.errors import described
from manifed.fields import Document, Frozen, Positive, PositiveCount, Values
from manifed.problems.examples import Examples

ExampleKind = Literal[
    "rows", "spd-matrices", "labelled-spd-matrices", "sphere-points", "hyperbolic-pairs",
    "regression", "classification", "columns", "labelled-rows",
]  # fmt: skip
Array = NDArray[np.float64]
_Indices = NDArray[np.int64]
NUM_EXAMPLES = "num_examples"
"""In the ``meta`` of data that every site has at home: N_i, a public constant."""


@dataclass(frozen=True)
class Dataset:
    """A data set: all examples of a federation before they are partitioned.

    ``labels`` (n,) serve the label-skewed partitions, ``sources`` (n,) the natural one;
    ``checksum`` is a SHA-256 of the arrays; ``meta`` holds what belongs to no example (a query, a
    true basis).
    """

    examples: Examples
    checksum: str
    labels: _Indices | None = None
    sources: _Indices | None = None
    meta: Values = field(default_factory=Document)


class DataSource(Frozen):
    """Base of the tables that name a data set in a config."""

    if TYPE_CHECKING:
        kind: Any
        """The name in the config."""
    later: ClassVar[tuple[str, ...]] = ()
    """Keys that are no part of a config's hash where they say nothing: hashes are older."""

    @property
    @abstractmethod
    def provides(self) -> ExampleKind:
        """The kind of examples that the data set has."""

    @abstractmethod
    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Loads the data set; ``data_dir`` is for real data, ``seed`` for random data.

        Raises:
            DataMissing: A file is not below ``data_dir``.
        """

    def mixes_records(self) -> str | None:
        """Returns the setting that lets one client's record change another's; None if none does.

        A clip bounds what a record moves through its own gradient only, so privacy refuses it. A
        record of random data is what the recipe hands out.
        """
        return None


@runtime_checkable
class SiteData(Protocol):
    """Base of data that every site has at home: the config has shapes, each site its file."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of a simulation, one for each client; empty at a site."""
        ...

    @property
    def meta(self) -> Values:
        """The facts of the config that belong to no single example."""
        ...

    def blank(self) -> Examples:
        """Returns one valid made-up example of the declared shape."""
        ...

    def read(self, path: Path) -> Examples:
        """Reads the examples of one site's file.

        Raises:
            ValueError: with file, line and column, for the owner of the file alone.
        """
        ...


def build(
    arrays: Mapping[str, Array],
    *,
    labels: _Indices | None = None,
    sources: _Indices | None = None,
    meta: Values | None = None,
) -> Dataset:
    """Makes a data set of float64 tensors (n, *feature), with the checksum of its arrays."""
    tensors = {key: torch.tensor(np.ascontiguousarray(array)) for key, array in arrays.items()}
    for key, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(
                f"Expected finite numbers in {key!r}, got NaN or infinity; clean the data"
            )
    digest = checksum(*arrays.values(), *(() if labels is None else (labels,)))
    return Dataset(Examples(tensors), digest, labels, sources, meta or {})


def checksum(*arrays: NDArray[Any]) -> str:
    """Returns the SHA-256 over shapes, types and bytes of the arrays, in hexadecimal digits."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def generator(seed: int, purpose: Literal["data", "partition"]) -> Generator:
    """Returns the numpy generator of one purpose; purposes never share draws."""
    return np.random.default_rng([seed, {"data": 1, "partition": 2}[purpose]])


# -- partitions ------------------------------------------------------------------------------------
_MOST_DRAWS = 1000


class PartitionRule(Frozen):
    """Base of the rules that partition a data set among clients."""

    if TYPE_CHECKING:
        kind: Any
        """The name in the config."""

    @abstractmethod
    def split(self, dataset: Dataset, num_partitions: int, rng: Generator) -> list[_Indices]:
        """Returns one index array for each client, disjoint."""


class Equal(PartitionRule):
    """Shards of equal size, shuffled or consecutive."""

    kind: Literal["equal"] = "equal"
    shard_size: PositiveCount | None = None
    """Examples per client. None: divide all."""
    is_shuffled: bool = True
    """False: consecutive blocks."""

    def split(self, dataset: Dataset, num_partitions: int, rng: Generator) -> list[_Indices]:
        """One index array per client, of one size (to one example)."""
        count = len(dataset.examples)
        used = _used(count, num_partitions, self.shard_size)
        order = rng.permutation(count) if self.is_shuffled else np.arange(count)
        return np.array_split(order[:used], num_partitions)


class Sorted(PartitionRule):
    """Examples sorted by label, in consecutive blocks.

    One block per client in order is the split of Zhang et al. section 5.1; with several each client
    gets random ones, so a few classes.
    """

    kind: Literal["sorted"] = "sorted"
    blocks_per_client: PositiveCount = 1
    """Blocks per client."""
    shard_size: PositiveCount | None = None
    """Examples per client. None: divide all."""

    def split(self, dataset: Dataset, num_partitions: int, rng: Generator) -> list[_Indices]:
        """One index array per client."""
        labels = _required(dataset.labels, self.kind, "labels")
        used = _used(len(labels), num_partitions, self.shard_size)
        order = np.argsort(labels, kind="stable").astype(np.int64)[:used]
        each = self.blocks_per_client
        count = num_partitions * each
        if count > used:
            raise ValueError(f"Expected at most {used} blocks of examples, got {count}")
        pieces = np.array_split(order, count)
        if each == 1:
            return pieces
        deal = rng.permutation(count).reshape(num_partitions, each)
        return [np.concatenate([pieces[piece] for piece in hand]) for hand in deal]


class Dirichlet(PartitionRule):
    """Class proportions from Dirichlet(alpha). Every client gets an example.

    Hsu, Qi, Brown 2019. Drawn again, a thousand times at most, until nobody is empty.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Positive = 0.5
    """Small: few classes per client. Large: clients are alike."""

    def split(self, dataset: Dataset, num_partitions: int, rng: Generator) -> list[_Indices]:
        """One index array per client."""
        labels = _required(dataset.labels, self.kind, "labels")
        _used(len(labels), num_partitions, None)
        for _ in range(_MOST_DRAWS):
            parts: list[list[_Indices]] = [[] for _ in range(num_partitions)]
            for value in np.unique(labels):
                members = rng.permutation(np.flatnonzero(labels == value).astype(np.int64))
                shares = rng.dirichlet(np.full(num_partitions, self.alpha))
                cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(int)
                for part, piece in zip(parts, np.split(members, cuts), strict=True):
                    part.append(piece)
            shards = [np.concatenate(part) for part in parts]
            if min(map(len, shards)):
                return shards
        raise ValueError(
            f"No draw in {_MOST_DRAWS} gave every client an example with alpha={self.alpha} and "
            f"{num_partitions} clients; raise alpha"
        )


class Natural(PartitionRule):
    """Each client gets the examples that were drawn for it."""

    kind: Literal["natural"] = "natural"

    def split(self, dataset: Dataset, num_partitions: int, rng: Generator) -> list[_Indices]:
        """One index array per client, in the order of the sorted source values."""
        sources = _required(dataset.sources, self.kind, "sources")
        _, counts = np.unique(sources, return_counts=True)
        if len(counts) != num_partitions:
            raise ValueError(
                f"Expected num_partitions to equal the data's {len(counts)} sources, "
                f"got {num_partitions}"
            )
        order = np.argsort(sources, kind="stable").astype(np.int64)  # one pass, not one a source
        return np.split(order, np.cumsum(counts)[:-1])


def _required(values: NDArray[Any] | None, kind: str, what: str) -> NDArray[Any]:
    if values is None:
        raise ValueError(
            f"Partition {kind!r} needs {what}, and this data set has none; use kind 'equal'"
        )
    return values


def _used(num_examples: int, num_partitions: int, shard_size: int | None) -> int:
    """How many examples are dealt out, at least one to each client."""
    if not 1 <= num_partitions <= num_examples:
        raise ValueError(
            f"Expected 1 <= num_partitions <= {num_examples} examples, got {num_partitions}"
        )
    if shard_size is None:
        return num_examples
    if shard_size * num_partitions > num_examples:
        raise ValueError(
            f"Expected 1 <= shard_size <= {num_examples // num_partitions} "
            f"({num_examples} examples, {num_partitions} clients), got {shard_size}"
        )
    return shard_size * num_partitions


_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
FOLDERS = "MANIFED_PLUGIN_FOLDERS"
"""The environment variable by which the processes that this one starts look where it does."""


def look_in(places: Iterable[str]) -> None:
    """Adds folders in which the names in configs are looked up, after Python's own path.

    The processes that this one starts from now on do the same.
    """
    os.environ[FOLDERS] = json.dumps(list(dict.fromkeys(places)))


def looked_in() -> list[str]:
    """Returns the folders of the newest `look_in`, here or in the process that started this one."""
    return json.loads(os.environ.get(FOLDERS) or "[]")


def named(name: str, what: str) -> Any:
    """Imports and returns the object ``package.module:name``; ``what`` names it in errors.

    Raises:
        ValueError: not of that form, not importable, or no function where ``what`` is "function";
            in one line.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected 'package.module:{what}', got {name!r}")
    where, _, attribute = name.partition(":")
    sys.path += [folder for folder in looked_in() if folder not in sys.path]
    try:
        module = importlib.import_module(where)
    except Exception as error:
        raise ValueError(
            f"expected a module that can be imported, got {where!r} ({described(error)}); install "
            "its package where this runs, or put it beside the config file"
        ) from None
    found = getattr(module, attribute, None)
    if what == "function" and (not callable(found) or isinstance(found, type)):
        raise ValueError(f"expected a function, got {name!r}, which is {type(found).__name__}")
    return found


def source_sha256(module: str) -> str:
    """Hashes the modules of a module's package, by name; its own file if it has none.

    The package is the outermost folder with an ``__init__.py``.

    Raises:
        ValueError: a module without a file.
    """
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        raise ValueError(f"expected a module with a file, got {module!r}")
    root = Path(file)
    while (root.parent / "__init__.py").exists():
        root = root.parent
    files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root.parent).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()

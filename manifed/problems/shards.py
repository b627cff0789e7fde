"""Makes the shards of a config: loads its data, partitions and prepares them.

Clients and evaluation call the same functions with the same arguments and so see the same data; a
networked client takes its own shard by index.
"""

import os
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manifed.problems.data import NUM_EXAMPLES, Dataset, DataSource, PartitionRule, generator
from manifed.problems.examples import Examples
from manifed.problems.problem import ProblemSource
from manifed.problems.synthetic import StreamData


def check_pair(problem: ProblemSource, data: DataSource) -> None:
    """Refuses a data set whose examples the problem cannot read.

    Raises:
        ValueError: naming what the problem needs.
    """
    if data.provides not in problem.reads:
        raise ValueError(
            f"Problem {problem.kind!r} needs {problem.needs}, but data {data.kind!r} provides "
            f"{data.provides}; choose another data.kind"
        )
    if data.kind != "file":
        return
    asked = getattr(problem, "num_classes", None)
    declared = getattr(data, "classes", ())
    if asked is not None and asked != len(declared):
        raise ValueError(
            f"problem.num_classes: expected len(data.classes) = {len(declared)}, got {asked}"
        )
    if problem.kind == "hyperbolic-prediction" and not getattr(data, "query", ()):
        raise ValueError("data.features, data.query: required by 'hyperbolic-prediction'")


def data_folder() -> Path | None:
    """Returns the folder of data sets that do not ship with scikit-learn; None if none is named."""
    named = os.environ.get("MANIFED_DATA")
    return Path(named) if named else None


dataset: Any = lru_cache(maxsize=4)(lambda data, seed, data_dir=None: data.load(data_dir, seed))
"""All examples of a data set, before they are partitioned, by data set, seed and data folder.

A process that keeps some shards calls its ``cache_clear``: it needs no more of them.
"""


def some_shards(
    problem: ProblemSource,
    data: DataSource,
    partition: PartitionRule,
    num_partitions: int,
    seed: int,
    data_dir: Path | None = None,
    members: range | None = None,
) -> tuple[Examples, ...]:
    """Returns the prepared examples of the clients ``members`` (None: all), in order.

    Nothing but the data set is kept.

    Raises:
        ValueError: The problem cannot read the data, or the partition cannot be made.
        DataMissing: A file is not below ``data_dir``.
    """
    check_pair(problem, data)
    members = range(num_partitions) if members is None else members
    if isinstance(data, StreamData):
        prepare = partial(problem.prepare, meta={NUM_EXAMPLES: data.num_examples})
        return tuple(data.shard(seed, i, prepare) for i in members)
    whole, lists = divided(data, partition, num_partitions, seed, data_dir)
    parts = (whole.examples.take(torch.from_numpy(lists[i])) for i in members)
    return tuple(problem.prepare(part, whole.meta) for part in parts)


shards: Callable[..., tuple[Examples, ...]] = lru_cache(maxsize=4)(some_shards)
"""`some_shards` of all clients, kept."""


def divided(
    data: DataSource,
    partition: PartitionRule,
    num_partitions: int,
    seed: int,
    data_dir: Path | None,
) -> tuple[Dataset, list[NDArray[np.int64]]]:
    """Loads a data set, and says which of its examples each client has."""
    whole = dataset(data, seed, data_dir)
    return whole, partition.split(whole, num_partitions, generator(seed, "partition"))

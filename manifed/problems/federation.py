"""From configuration to shards: load, partition, prepare. Cached per process.

Clients and evaluation call the same functions with the same arguments and so see the same data; a
networked client takes its own shard by index.
"""

import os
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from manifed.problems import finite_sum
from manifed.problems.base import Examples
from manifed.problems.dataset import Dataset, generator
from manifed.problems.problem_specs import NUM_EXAMPLES
from manifed.problems.spec import DataSpec, PartitionSpec, ProblemSpec, check_pair
from manifed.problems.streams import StreamData

DATA_VARIABLE = "MANIFED_DATA"


def data_folder() -> Path | None:
    """The folder of data sets that do not ship with scikit-learn; None when none is named."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else None


def dataset(data: DataSpec, seed: int, data_dir: Path | None = None) -> Dataset:
    """All examples, before they are partitioned."""
    return _dataset(data, seed, data_dir)  # pyright: ignore[reportArgumentType] (frozen: hashable)


def shards(
    problem: ProblemSpec,
    data: DataSpec,
    partition: PartitionSpec,
    num_partitions: int,
    seed: int,
    data_dir: Path | None = None,
) -> tuple[Examples, ...]:
    """Every client's examples as the problem wants them, in the order of the partition ids.

    Raises:
        ValueError: The problem cannot read the data, or the partition cannot be made.
        DataMissing: A file is not below ``data_dir``.
    """
    key = (problem, data, partition, num_partitions, seed, data_dir)
    return _shards(*key)  # pyright: ignore[reportArgumentType] (frozen: hashable)


def pooled(
    problem: ProblemSpec,
    data: DataSpec,
    partition: PartitionSpec,
    num_partitions: int,
    seed: int,
    data_dir: Path | None = None,
) -> tuple[Examples, Tensor]:
    """All clients' examples in one, and the weight p_i / N_i of each, p_i = N_i / sum_l N_l."""
    return finite_sum.pool(shards(problem, data, partition, num_partitions, seed, data_dir))


def some_shards(
    problem: ProblemSpec,
    data: DataSpec,
    partition: PartitionSpec,
    num_partitions: int,
    seed: int,
    data_dir: Path | None,
    members: range,
) -> tuple[Examples, ...]:
    """`shards` of the clients ``members`` alone; nothing but the data set is kept."""
    check_pair(problem, data)
    if isinstance(data, StreamData):
        meta = {NUM_EXAMPLES: data.num_examples}
        prepare = partial(problem.prepare, meta=meta)
        return tuple(data.shard(seed, i, prepare) for i in members)
    whole = dataset(data, seed, data_dir)
    lists = partition.split(whole, num_partitions, generator(seed, "partition"))
    parts = (whole.examples.take(torch.from_numpy(lists[i])) for i in members)
    return tuple(problem.prepare(part, whole.meta) for part in parts)


def sizes_of_shards(
    data: DataSpec, partition: PartitionSpec, num_partitions: int, seed: int, data_dir: Path | None
) -> tuple[int, ...]:
    """How many examples each of `shards` has."""
    whole = dataset(data, seed, data_dir)
    lists = partition.split(whole, num_partitions, generator(seed, "partition"))
    return tuple(len(one) for one in lists)


def forget_datasets() -> None:
    """Let go of whole data sets: a process that keeps some shards needs no more of them."""
    _dataset.cache_clear()


@lru_cache(maxsize=4)
def _dataset(data: DataSpec, seed: int, data_dir: Path | None) -> Dataset:
    return data.load(data_dir, seed)


@lru_cache(maxsize=4)
def _shards(
    problem: ProblemSpec,
    data: DataSpec,
    partition: PartitionSpec,
    num_partitions: int,
    seed: int,
    data_dir: Path | None,
) -> tuple[Examples, ...]:
    everybody = range(num_partitions)
    return some_shards(problem, data, partition, num_partitions, seed, data_dir, everybody)

"""Configuration of the partitions (laws: manifed/problems/partition.py)."""

from abc import abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from manifed.problems import partition
from manifed.problems.dataset import Dataset, Frozen
from manifed.problems.partition import Indices


class PartitionRule(Frozen):
    """What every partition's configuration can do."""

    @abstractmethod
    def split(
        self, dataset: Dataset, num_partitions: int, rng: np.random.Generator
    ) -> list[Indices]:
        """One index array per client, disjoint."""
        raise NotImplementedError


class EqualSpec(PartitionRule):
    """Shards of equal size, shuffled or as consecutive blocks."""

    kind: Literal["equal"] = "equal"
    shard_size: int | None = Field(default=None, ge=1)
    """Examples a client; None divides all."""
    is_shuffled: bool = True
    """False: consecutive blocks."""

    def split(
        self, dataset: Dataset, num_partitions: int, rng: np.random.Generator
    ) -> list[Indices]:
        """One index array per client."""
        return partition.equal(
            len(dataset.examples),
            num_partitions,
            rng,
            shard_size=self.shard_size,
            is_shuffled=self.is_shuffled,
        )


class SortedSpec(PartitionRule):
    """Label-skewed: sorted by label, one or several consecutive blocks per client."""

    kind: Literal["sorted"] = "sorted"
    blocks_per_client: int = Field(default=1, ge=1)
    """How many consecutive blocks a client gets."""
    shard_size: int | None = Field(default=None, ge=1)
    """Examples a client; None divides all."""

    def split(
        self, dataset: Dataset, num_partitions: int, rng: np.random.Generator
    ) -> list[Indices]:
        """One index array per client."""
        return partition.sort_by_label(
            _required(dataset.labels, self.kind, "labels"),
            num_partitions,
            rng,
            blocks_per_client=self.blocks_per_client,
            shard_size=self.shard_size,
        )


class DirichletSpec(PartitionRule):
    """Class proportions drawn from Dirichlet(alpha), every client at least ``min_size``."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(default=0.5, gt=0)
    """Small: each client has few classes; large: all are alike."""
    min_size: int = Field(default=1, ge=1)
    """The least number of examples of a client."""

    def split(
        self, dataset: Dataset, num_partitions: int, rng: np.random.Generator
    ) -> list[Indices]:
        """One index array per client."""
        labels = _required(dataset.labels, self.kind, "labels")
        return partition.dirichlet(
            labels, num_partitions, rng, alpha=self.alpha, min_size=self.min_size
        )


class NaturalSpec(PartitionRule):
    """Each client the examples that were drawn for it."""

    kind: Literal["natural"] = "natural"

    def split(
        self, dataset: Dataset, num_partitions: int, rng: np.random.Generator
    ) -> list[Indices]:
        """One index array per client."""
        del rng
        return partition.natural(_required(dataset.sources, self.kind, "sources"), num_partitions)


def _required(values: NDArray[Any] | None, kind: str, what: str) -> NDArray[Any]:
    if values is None:
        raise ValueError(
            f"Partition {kind!r} needs {what}, and this data set has none; use kind 'equal'"
        )
    return values

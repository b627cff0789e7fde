"""A loaded data set, and the base of the frozen models that describe one."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from manifed.problems.base import Examples
from manifed.problems.readers import checksum

ExampleKind = Literal[
    "rows", "spd-matrices", "labelled-spd-matrices", "sphere-points", "hyperbolic-pairs",
    "regression", "classification", "columns", "labelled-rows",
]  # fmt: skip

FEATURE_NDIM = {
    "z": 1, "feature": 1, "target": 0, "label": 0, "column": 1, "mask": 1,
}  # fmt: skip


class Frozen(BaseModel):
    """An immutable value object that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Dataset:
    """All examples of a federation before they are partitioned.

    ``labels`` (n,) serve the label-skewed partitions, ``sources`` (n,) the natural one;
    ``checksum`` is a SHA-256 of the arrays; ``meta`` holds what belongs to no example (a query, a
    true basis).
    """

    examples: Examples
    checksum: str
    labels: NDArray[np.int64] | None = None
    sources: NDArray[np.int64] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])


class DataSource(Frozen):
    """What every data set's configuration can do."""

    @property
    @abstractmethod
    def provides(self) -> ExampleKind:
        """The kind of its examples."""
        raise NotImplementedError

    @abstractmethod
    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """The data set; ``data_dir`` is read by real data only, ``seed`` by random data only.

        Raises:
            DataMissing: A file is not below ``data_dir``.
        """
        raise NotImplementedError

    def mixes_records(self) -> str | None:
        """Which setting lets one record change another's, of any client; None: no setting does.

        A clip bounds what a record moves through its own gradient only, so privacy refuses it. A
        record of random data is what the recipe hands out.
        """
        return None


@runtime_checkable
class SiteData(Protocol):
    """Data that every site has at home: shapes are in the config, records in its own file."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Of a simulation alone: a file for each client."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """What belongs to no example, and is in the config."""
        ...

    def blank(self) -> Examples:
        """One valid made-up example of the declared shape."""
        ...

    def read(self, path: Path) -> Examples:
        """The examples of one site's file.

        Raises:
            ValueError: with file, line and column, for the owner of the file alone.
        """
        ...


def build(
    arrays: Mapping[str, NDArray[np.float64]],
    *,
    feature_ndim: Mapping[str, int] | None = None,
    labels: NDArray[np.int64] | None = None,
    sources: NDArray[np.int64] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Dataset:
    """A data set of float64 tensors, with the checksum of its arrays."""
    ndims = FEATURE_NDIM if feature_ndim is None else feature_ndim
    tensors = {key: torch.tensor(np.ascontiguousarray(array)) for key, array in arrays.items()}
    for key, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(
                f"Expected finite numbers in {key!r}, got NaN or infinity; clean the data"
            )
    digest = checksum(*arrays.values(), *([] if labels is None else [labels]))
    return Dataset(
        examples=Examples(tensors, {key: ndims[key] for key in tensors}),
        checksum=digest,
        labels=labels,
        sources=sources,
        meta={} if meta is None else meta,
    )


def generator(seed: int, purpose: Literal["data", "partition"]) -> np.random.Generator:
    """The numpy stream of one purpose; purposes never share draws."""
    return np.random.default_rng([seed, {"data": 1, "partition": 2}[purpose]])

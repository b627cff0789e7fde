"""A worker: some stacks of clients in a process of their own, in which Ray calls its methods."""

import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manifed.algorithms.interface import Phase
from manifed.algorithms.payloads import Payload, PerClient
from manifed.federation.aggregation import chunk_sums
from manifed.federation.chunks import Chunking
from manifed.federation.client import ClientSide
from manifed.federation.header import Header
from manifed.federation.replies import Failure, Replies
from manifed.federation.stacked import StackedTransport
from manifed.federation.uploads import Expectation, refuse_bad_rows
from manifed.problems.federation import forget_datasets

Arrays = dict[str, NDArray[Any]]
Build = Callable[[range], ClientSide]
"""Builds the client side of some neighbours, in the process that calls it."""


@dataclass(frozen=True)
class Wanted:
    """How a worker checks its clients' uploads, and what share each has in the mean."""

    expected: Expectation
    shares: NDArray[Any]


@dataclass(frozen=True)
class Answer:
    """A worker's part of `Replies`: rows, or sums of chunks."""

    partitions: NDArray[Any] | None
    """None: all that were asked."""
    fields: Arrays
    failures: dict[int, Failure]
    bytes_up: int
    origins: frozenset[str]
    chunks: tuple[int, ...]


class Worker:
    """Some stacks of clients in a process of their own; each method is one call of the driver."""

    def __init__(self, build: Build, owned: range, chunking: Chunking, device: str) -> None:
        torch.set_num_threads(1)
        self._came_with = _peak_mb()
        stacks = chunking.stacks[owned.start : owned.stop]
        members = range(stacks[0].start, stacks[-1].stop)
        self._transport = StackedTransport.of_stacks(build(members), owned, chunking, device)
        forget_datasets()
        self._device, self._members = device, tuple(members)
        self._last: Payload | None = None

    def process(self) -> int:
        """The worker's process, once its clients are there."""
        return os.getpid()

    def exchange(
        self,
        header: Header,
        phase: Phase,
        down: Arrays,
        is_each: bool,  # Ray hands arguments over by position
        asked: NDArray[Any] | None,
        last_accepted: Mapping[int, int],
        wanted: Wanted | None,
    ) -> Answer:
        """The replies of the clients ``asked``, checked and summed by chunk where it is wanted."""
        self._last = None
        partitions = self._members if asked is None else tuple(asked.tolist())
        sent = phase.down(*tensors(down).values())
        came = self._transport.exchange(
            header, phase, PerClient(sent) if is_each else sent, partitions, last_accepted
        )
        if wanted is not None:
            came = refuse_bad_rows(wanted.expected, came)
        self._last = came.uploads
        is_all = came.partitions == partitions
        fields = arrays(came.uploads.tensors())
        if wanted is not None:
            shares = torch.from_numpy(wanted.shares.copy())
            if not is_all:
                place = {i: row for row, i in enumerate(partitions)}
                shares = shares[[place[i] for i in came.partitions]]
            fields = _sums(came, shares.to(self._device))
        return Answer(
            None if is_all else np.asarray(came.partitions, dtype=np.int64),
            fields,
            dict(came.failures),
            came.bytes_up,
            came.noise_origins,
            came.chunks,
        )

    def rows(self) -> Arrays:
        """The uploads of the last exchange, one row a client."""
        assert self._last is not None
        return arrays(self._last.tensors())

    def grown_mb(self) -> float:
        """The most memory that this process held beyond what it came with, in MiB."""
        return _peak_mb() - self._came_with


def _peak_mb() -> float:
    """The most memory that this process ever held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _sums(came: Replies, shares: Tensor) -> Arrays:
    """The sums of the chunks, one row each."""
    found = chunk_sums(came.uploads.tensors(), shares, came.chunks)
    names = came.uploads.names() if found else ()
    return arrays({name: torch.stack([one[name] for one in found]) for name in names})


def arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """As Ray carries them: in one piece, without a copy where that can be."""
    return {name: t.detach().cpu().as_subclass(Tensor).numpy() for name, t in tensors.items()}


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Tensors of their own: what Ray hands over must not be written."""
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

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

from manifed.algorithms.interface import UploadPlace
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
class Told:
    """What all workers are told alike in one exchange, in what pickles fast."""

    header: Header
    """Says the exchange by name: payloads made for a graph's degree are classes of a process."""
    down: Arrays
    """Empty where every client is sent something of its own."""
    expected: tuple[NDArray[Any], Mapping[str, UploadPlace]] | None
    """Base and places of an `Expectation`, where uploads are checked and summed."""


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
        side = build(members)
        self._transport = StackedTransport.of_stacks(side, owned, chunking, device)
        forget_datasets()
        self._device, self._members, self._setup = device, tuple(members), side.setup
        self._last: Payload | None = None

    def process(self) -> int:
        """The worker's process, once its clients are there."""
        return os.getpid()

    def exchange(
        self,
        told: Told,
        own: Arrays | None,  # Ray hands arguments over by position
        asked: NDArray[Any] | None,
        last_accepted: Mapping[int, int],
        shares: NDArray[Any] | None,
    ) -> Answer:
        """The replies of the clients ``asked``; by ``shares`` summed by chunk, where told so."""
        self._last, (_, phase) = None, self._setup.phase(told.header.phase)
        partitions = self._members if asked is None else tuple(asked.tolist())
        sent = phase.down(*tensors(told.down if own is None else own).values())
        down = sent if own is None else PerClient(sent)
        came = self._transport.exchange(told.header, phase, down, partitions, last_accepted)
        if told.expected is not None:
            base, places = told.expected
            expected = Expectation(torch.from_numpy(base.copy()), places, self._setup.manifold)
            came = refuse_bad_rows(expected, came)
        self._last = came.uploads
        is_all = came.partitions == partitions
        fields = arrays(came.uploads.tensors())
        if shares is not None:
            weights = torch.from_numpy(shares.copy())
            if not is_all:
                place = {i: row for row, i in enumerate(partitions)}
                weights = weights[[place[i] for i in came.partitions]]
            fields = _sums(came, weights.to(self._device))
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

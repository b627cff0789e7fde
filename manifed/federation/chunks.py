"""Which clients are computed together, and what such neighbours hold.

Batched kernels round by what is in a batch. So a chunk is decided by what is public: clients lie
in stacks of neighbours, a chunk is those of one stack who are asked, and never more than fit. Who
computes a stack, in this process or in another, changes no bit of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from manifed.algorithms.held_out import EVALUATE
from manifed.algorithms.interface import Memory, Phase, remembers_setup, setup_phases_of
from manifed.algorithms.payloads import Down, Payload, PerClient
from manifed.errors import ConfigError
from manifed.federation.client import ClientSide, Seat, run_update
from manifed.federation.header import Header
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples

_CACHE_BYTES = 16 * 2**20
"""What the local steps of one chunk read again and again: larger chunks would fall out of cache."""
_POINTS_OF_A_STEP = 16
"""Gradients, noise, a kept iterate and their temporaries, in sizes of a point."""
_KEPT_POINTS = 3
"""Uploads of a round, of at most two tensors, and once more while they are averaged."""


@dataclass(frozen=True)
class Chunking:
    """How many neighbours lie in a stack, and how many of them one call takes at most."""

    num_clients: int
    in_a_stack: int
    at_a_time: int

    @staticmethod
    def of(
        side: ClientSide, device: str, memory_budget_mb: int, chunk_clients: int | None = None
    ) -> "Chunking":
        """As many in a call as fit and stay in a cache, and as ``chunk_clients`` allows.

        Sizes are the public N_i: how many examples there really are is a client's secret. Where
        few of the clients are asked in a round, a stack holds as many more. Where a client is the
        unit of privacy there are stacks of one alone.

        Raises:
            ConfigError: the budget cannot hold one client's update beside what is kept of all.
        """
        clients = len(side.shards)
        most = _clients_at_a_time(side, device, memory_budget_mb)
        if side.unit == "client":
            return Chunking(clients, 1, 1)
        most = min(most, clients, chunk_clients or most)
        stacks = math.ceil(clients * side.rate / most)
        return Chunking(clients, math.ceil(clients / max(1, stacks)), most)

    @property
    def stacks(self) -> list[range]:
        """The clients of every stack."""
        ends = [*range(0, self.num_clients, self.in_a_stack), self.num_clients]
        return [range(begin, end) for begin, end in pairwise(ends)]

    def cut(self, partitions: Sequence[int], rows: list[int]) -> list[list[int]]:
        """``rows`` of ``partitions``, by chunk: those of one stack, in shares of one size."""
        if self.in_a_stack == self.num_clients and len(rows) <= self.at_a_time:
            return [rows] if rows else []
        found: list[list[int]] = []
        for _, same in groupby(rows, key=lambda row: partitions[row] // self.in_a_stack):
            stack = list(same)
            size = math.ceil(len(stack) / math.ceil(len(stack) / self.at_a_time))
            found += [stack[begin : begin + size] for begin in range(0, len(stack), size)]
        return found

    def shared(self, side: ClientSide, workers: int) -> list[range]:
        """The stacks of each worker, neighbours, balanced by the examples of a local step.

        Raises:
            ConfigError: there are fewer stacks than workers.
        """
        stacks = self.stacks
        if workers > len(stacks):
            raise ConfigError(
                f"engine.workers: expected at most {len(stacks)}, the number of chunks of "
                f"{self.in_a_stack} clients, got {workers}; lower engine.chunk_clients"
            )
        cost = [sum(side.examples_in_a_step(i) for i in members) for members in stacks]
        done = list(accumulate(cost, initial=0.0))
        ends = [0]
        for worker in range(1, workers):
            aim = done[-1] * worker / workers
            near = min(range(len(done)), key=lambda k: abs(done[k] - aim))
            least, most = ends[-1] + 1, len(stacks) - (workers - worker)
            ends.append(min(max(near, least), most))
        return [range(begin, end) for begin, end in pairwise([*ends, len(stacks)])]


def _clients_at_a_time(side: ClientSide, device: str, memory_budget_mb: int) -> int:
    """How many clients one stacked call takes: as many as fit, and stay in a processor's cache."""
    most = max(side.public_size(i) for i in range(len(side.shards)))
    shard = _shard_bytes(side.shards[0], most)
    point = math.prod(side.point_shape) * side.dtype.itemsize
    blank = side.setup.training.initial_memory(torch.zeros(side.point_shape, dtype=side.dtype))
    remembered = blank.num_bytes() if blank is not None else 0
    upload = max(point, *(_upload_size(side, phase) for phase in side.setup.training.phases))
    remembered += side.bytes_of_answers(most)
    kept = len(side.shards) * (shard + remembered + _KEPT_POINTS * upload)
    working = shard + point * side.gradients_in_a_step(most)
    each = shard + working + upload * _POINTS_OF_A_STEP
    budget = memory_budget_mb * 2**20
    if kept + each > budget:
        raise ConfigError(
            f"Expected engine.memory_budget_mb >= {math.ceil((kept + each) / 2**20)} for the data "
            f"and memory of {len(side.shards)} clients, got {memory_budget_mb}; raise it, or set "
            "engine.execution to 'messages'"
        )
    fits = int((budget - kept) / each)
    return min(fits, max(1, int(_CACHE_BYTES / working))) if device == "cpu" else fits


def _shard_bytes(like: Examples, num_examples: int) -> int:
    """Bytes of so many examples like these; a stream keeps none."""
    if like.stream is not None:
        return sum(t.nbytes for t in like.tensors.values())
    features = ((t, t.shape[t.dim() - like.feature_ndim[k] :]) for k, t in like.tensors.items())
    return num_examples * sum(math.prod(shape) * t.element_size() for t, shape in features)


def _upload_size(side: ClientSide, phase: Phase) -> int:
    """Bytes of the largest tensor that goes up, which need not be of the shape of a point."""
    layout = phase.up.layout(side.point_shape, side.dtype).values()
    return max(math.prod(shape) * dtype.itemsize for shape, dtype in layout)


class Asked(NamedTuple):
    """One exchange, as `Transport.exchange` was asked for it."""

    header: Header
    down: Down
    partitions: tuple[int, ...]
    last_accepted: Mapping[int, int]
    source: NoiseSource
    """Of this exchange alone: fresh in a release."""

    def header_of(self, client: int) -> Header:
        """The header of one client's message."""
        accepted = self.last_accepted.get(client, 0)
        return replace(self.header, partition_id=client, last_accepted_round=accepted)


class Stack:
    """Neighbours whose shards lie in one stack of tensors, and what they remember."""

    def __init__(self, side: ClientSide, members: range, device: str) -> None:
        """``side`` is that of ``members`` alone, in their order."""
        self._setup, self._device, self._first = side.setup, device, members.start
        self._members = tuple(members)
        self.examples = Examples.stack(list(side.shards)).to(device)
        held = list(side.hold_outs)
        self._held = Examples.stack(held).to(device) if held else self.examples
        self._sizes = tuple(side.public_size(i) for i in range(len(members)))
        training = side.setup.training
        self._has_setup, self._lasts = bool(setup_phases_of(training)), remembers_setup(training)
        self._forgets = False
        """Whether its algorithm remembers nothing, as the first look at it told."""
        self.memory: Memory | None = None
        self.tags: dict[int, tuple[int, int]] = {}
        """The round and attempt that wrote a client's memory."""

    def run(self, asked: Asked, at: list[int], chunk: tuple[int, ...]) -> Payload:
        """The uploads of ``chunk``, the clients in the rows ``at`` of what was asked."""
        header, sizes = asked.header, self._sizes
        examples = self._held if header.phase == EVALUATE.name else self.examples
        if chunk != self._members:
            examples = examples.of_clients(self._rows(chunk))
            sizes = tuple(sizes[i - self._first] for i in chunk)
        down = _spread(asked.down, at)
        if self._device != "cpu":
            down = down.to(self._device)
        memory = self._remember(asked, down, chunk)
        seat = Seat(chunk, header.server_round, header.attempt, header.phase)
        made = run_update(
            self._setup, seat, down, memory, examples, sizes, asked.source, self._device
        )
        if made.memory is not None:
            self._write(made.memory, header, chunk)
        return made.bare

    def _rows(self, chunk: tuple[int, ...]) -> slice | Tensor:
        """Where the clients of ``chunk`` lie in the stacks: a view when they are neighbours."""
        first = chunk[0] - self._first
        if chunk[-1] - chunk[0] == len(chunk) - 1:
            return slice(first, first + len(chunk))
        return torch.tensor(chunk, device=self._device) - self._first

    # -- memory ------------------------------------------------------------------------------
    def _remember(self, asked: Asked, down: Payload, chunk: tuple[int, ...]) -> Memory | None:
        if self._forgets:
            return None
        x: Tensor = next(iter(down.tensors().values()))
        training = self._setup.training
        if self._has_setup:  # what it learns there need not look like a point
            each = [training.initial_memory(row) for row in x]
            blank = each[0] and type(each[0]).stack([one for one in each if one])
        else:
            blank = training.initial_memory(x)
        self._forgets = blank is None
        if blank is None or self.memory is None:
            return blank
        valid = [
            i in self.tags and (self._lasts or asked.header_of(i).continues(*self.tags[i]))
            for i in chunk
        ]
        rows = self._rows(chunk)
        known = [old[rows] for old in self.memory.tensors().values()]
        if not all(valid):
            keep = torch.tensor(valid, device=self._device)
            known = [
                torch.where(keep.reshape(-1, *[1] * (new.dim() - 1)), old, new)
                for old, new in zip(known, blank.tensors().values(), strict=True)
            ]
        return type(blank)(*known)

    def _write(self, memory: Memory, header: Header, chunk: tuple[int, ...]) -> None:
        if self.memory is None:
            count = len(self._members)
            zeros = [t.new_zeros(count, *t.shape[1:]) for t in memory.tensors().values()]
            self.memory = type(memory)(*zeros)
        rows = self._rows(chunk)
        for old, new in zip(self.memory.tensors().values(), memory.tensors().values(), strict=True):
            old[rows] = new
        self.tags |= dict.fromkeys(chunk, (header.server_round, header.attempt))


def _spread(down: Down, rows: list[int]) -> Payload:
    """What goes down to the clients of ``rows``, stacked."""
    if isinstance(down, PerClient):
        is_whole = len(rows) == next(iter(down.rows.tensors().values())).shape[0]
        return down.rows if is_whole else down.rows.take(torch.tensor(rows))
    return type(down)(*[t.expand(len(rows), *t.shape) for t in down.tensors().values()])

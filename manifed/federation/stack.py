"""The transport that runs stacks of clients in this process.

A stack is a client by itself, computed as a node computes it, to the last bit, or neighbours whose
updates are one call: their shards are padded and stacked once, and noise comes from each client's
own address. Batched kernels round by what is in a batch, so a chunk is decided by what is public:
clients lie in stacks of neighbours, a chunk is those of one stack who are asked, and never more
than fit. Who computes a stack, in this process or in another, changes no bit of it.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, pairwise
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from manifed.algorithms.payloads import (
    BadBroadcast,
    Memory,
    Partitions,
    Payload,
    PerClient,
    check_broadcast,
)
from manifed.errors import ConfigError
from manifed.federation.client import ClientSide, Seat, run_update
from manifed.federation.exchange import Asked, Failure, Replies
from manifed.federation.held_out import EVALUATE
from manifed.federation.rounds import rows_at_once
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples, Mapped
from manifed.problems.problem import Problem

_T = TypeVar("_T")


@dataclass(frozen=True)
class Chunking:
    """Sizes of stacks: how many neighbours lie in one, and how many one call takes at most."""

    num_clients: int
    in_a_stack: int
    at_once: int
    is_streamed: bool = False
    """Whether shards are stacked anew for each call, and uploads are added up as they come."""

    @staticmethod
    def of(
        side: ClientSide,
        device: str,
        memory_budget_mb: int | None,
        at_once: int | None,
        threads: int = 1,
    ) -> "Chunking":
        """Puts as many clients in a call as ``at_once``, the memory budget and the cache allow.

        Sizes are the public N_i: how many examples there really are is a client's secret. Where
        few of the clients are asked in a round, a stack holds as many more. Where a client is the
        unit of privacy, or has keys of its own, there are stacks of one alone. What does not fit in
        the budget as a whole is streamed, where it may be.

        Raises:
            ConfigError: the budget cannot hold one client's update beside what is kept of all.
        """
        clients = len(side.shards)
        most = clients
        is_streamed = False
        if memory_budget_mb is not None:
            fits, is_streamed = _clients_at_once(side, device, memory_budget_mb, threads)
            most = min(clients, fits)
        is_alone = side.unit == "client" or side.setup.training.memory_is_required
        if is_alone or at_once == 1:
            return Chunking(clients, 1, 1, is_streamed)
        most = min(most, at_once or most)
        stacks = math.ceil(clients * (1.0 if is_streamed else side.rate) / most)
        return Chunking(clients, math.ceil(clients / max(1, stacks)), most, is_streamed)

    @property
    def stacks(self) -> list[range]:
        """The clients of every stack."""
        ends = [*range(0, self.num_clients, self.in_a_stack), self.num_clients]
        return [range(begin, end) for begin, end in pairwise(ends)]

    def cut(self, partitions: Sequence[int], rows: list[int]) -> list[list[int]]:
        """Cuts ``rows`` of ``partitions`` into chunks, each within one stack and equally large."""
        found = list[list[int]]()
        for _, same in groupby(rows, key=lambda row: partitions[row] // self.in_a_stack):
            stack = list(same)
            size = math.ceil(len(stack) / math.ceil(len(stack) / self.at_once))
            found += [stack[begin : begin + size] for begin in range(0, len(stack), size)]
        return found

    def shared(self, workers: int) -> list[range]:
        """Divides the stacks among workers: neighbours together, shares as equal as can be.

        Raises:
            ConfigError: there are fewer stacks than workers.
        """
        count = len(self.stacks)
        if workers > count:
            raise ConfigError(
                f"engine.workers: expected at most {count}, the number of chunks of "
                f"{self.in_a_stack} clients, got {workers}; lower engine.chunk_clients"
            )
        ends = [count * worker // workers for worker in range(workers + 1)]
        return [range(begin, end) for begin, end in pairwise(ends)]


def _clients_at_once(
    side: ClientSide, device: str, memory_budget_mb: int, threads: int
) -> tuple[int, bool]:
    """How many clients one stacked call takes, and whether shards and uploads must be streamed.

    As many as fit, so many threads beside each other, and stay in a processor's cache.
    """
    training = side.setup.training
    clients = len(side.shards)
    like = side.shards[0]
    shape = side.point_shape
    dtype = side.dtype
    most = max(side.public_size(i) for i in range(clients))
    shard = sum(t.nbytes for t in like.tensors.values())
    present = 0
    if like.stream is None:  # of which each client keeps a copy, and a flag for each row
        shapes = like.shapes
        shard = most * sum(math.prod(shapes[k]) * t.itemsize for k, t in like.tensors.items())
        present = 8 * most
    point = math.prod(shape) * dtype.itemsize
    upload = max(
        point,
        *(
            math.prod(own) * kind.itemsize
            for phase in training.phases
            for own, kind in phase.up.layout(shape, dtype).values()
        ),
    )
    blank = training.initial_memory(torch.zeros(shape, dtype=dtype))
    remembered = present + (0 if blank is None else blank.num_bytes())
    # Uploads of a round, of at most two tensors, and once more while they are averaged.
    kept = clients * (shard + remembered + 3 * upload)
    # so many points' worth of per-example gradients, with temporaries, a query may hold
    each = Problem.points_per_example
    setup = side.setup
    rows = [
        (setup.problem.points_per_example if query.form == "gradient" else each)
        * query.expected_size
        for query in setup.queries(most)
    ]
    if (longest := training.largest_batch(most)) is not None:
        rows = [each * longest]
    working = shard + point * max(rows, default=0.0)
    # Gradients, noise, a kept iterate and their temporaries: sixteen sizes of a point.
    needed = threads * (shard + working + 16 * upload)
    budget = memory_budget_mb * 2**20
    is_streamed = side.is_summed and kept + needed > budget
    if is_streamed:
        kept = clients * remembered + 2 * upload * rows_at_once(math.prod(shape))
    if kept + needed > budget:
        raise ConfigError(
            f"Expected engine.memory_budget_mb >= {math.ceil((kept + needed) / 2**20)} for the "
            f"data and memory of {clients} clients, got {memory_budget_mb}; raise it, or set "
            "engine.execution to 'messages'"
        )
    fits = int((budget - kept) / needed)
    # What the local steps of a chunk read again and again stays in 8 MiB of a processor's cache.
    fits = min(fits, max(1, int(8 * 2**20 / working))) if device == "cpu" else fits
    return fits, is_streamed


class _Stack:
    """Neighbours whose shards lie in one stack of tensors, and what they remember.

    Where all stacks are of one client, it is computed without a leading dimension, as by a node.
    """

    def __init__(self, side: ClientSide, members: range, device: str, chunking: Chunking) -> None:
        """``side`` is that of ``members`` alone, in their order."""
        self._setup = side.setup
        self._like = torch.zeros(side.point_shape, dtype=side.dtype)
        self._device = device
        self._members = members
        self._is_alone = chunking.in_a_stack == 1
        shards = side.shards, side.hold_outs
        self.kept = None if chunking.is_streamed else [self._stacked(one) for one in shards]
        self._shards = ((), ()) if self.kept else shards  # those of a stack are not held twice
        self._sizes = [side.public_size(i) for i in range(len(members))]
        self.memory: Memory | None = None
        self._writing = Lock()
        self.tags: dict[int, tuple[int, int]] = {}
        """The round and attempt that wrote a client's memory."""

    def _stacked(self, shards: Sequence[Examples]) -> Examples | None:
        if not shards:
            return None
        return (shards[0] if self._is_alone else Examples.stack(shards)).to(self._device)

    def run(self, asked: Asked, at: list[int], chunk: Partitions, source: NoiseSource) -> Payload:
        """The uploads of ``chunk``, the clients in the rows ``at`` of what was asked."""
        header = asked.header
        down = asked.down
        rows = self._rows(chunk)
        place = int(asked.phase is EVALUATE)
        shards, members = self._shards[place], len(self._members)
        if self.kept is None and isinstance(shards, Mapped):  # of one size: nothing is padded
            shards, members = shards[rows], len(chunk)
        examples = self.kept[place] if self.kept else self._stacked(shards)
        assert examples is not None
        if len(chunk) < members:
            examples = examples.of_clients(rows)
        if isinstance(down, PerClient):
            down = down.rows.take(at[0] if self._is_alone else torch.tensor(at))
        elif not self._is_alone:
            down = down.each(lambda t: t.expand(len(at), *t.shape))
        down = down if self._device == "cpu" else down.to(self._device)
        who = chunk[0] if self._is_alone else chunk
        up, memory, _ = run_update(
            self._setup,
            Seat(who, header.server_round, header.attempt, header.phase),
            down,
            self._remembered(asked, down.point if down.has_point else self._like, chunk),
            examples,
            [self._sizes[i - self._members.start] for i in chunk],
            source,
            self._device,
        )
        if memory is not None:
            with self._writing:
                self._write(memory, rows)
            self.tags |= dict.fromkeys(chunk, (header.server_round, header.attempt))
        return type(up).stack([up]) if self._is_alone else up

    def _rows(self, chunk: Partitions) -> slice | Tensor:
        """Where the clients of ``chunk`` lie in the stacks: a view when they are neighbours."""
        first = chunk[0] - self._members.start
        if chunk[-1] - chunk[0] == len(chunk) - 1:
            return slice(first, first + len(chunk))
        return torch.tensor(chunk, device=self._device) - self._members.start

    # -- memory ------------------------------------------------------------------------------
    def _remembered(self, asked: Asked, x: Tensor, chunk: Partitions) -> Memory | None:
        """What each of a chunk remembers, given what came down; its initial memory if too old."""
        training = self._setup.training
        known = self.memory
        if training.setup_phases and not self._is_alone:  # what is learnt there is no point
            each = [one for row in x if (one := training.initial_memory(row)) is not None]
            blank = type(each[0]).stack(each) if each else None
        else:
            blank = training.initial_memory(x)
        if blank is None or known is None:
            return blank
        tags = self.tags
        last = asked.last_accepted
        valid = [
            i in tags
            and (
                training.remembers_setup
                or asked.header._replace(last_accepted_round=last.get(i, 0)).continues(*tags[i])
            )
            for i in chunk
        ]
        if self._is_alone:
            return known if valid[0] else blank
        old = known.take(self._rows(chunk))
        if all(valid):
            return old
        keep = torch.tensor(valid, device=self._device)
        both = zip(vars(old).values(), vars(blank).values(), strict=True)
        return type(blank)(
            *[torch.where(keep.reshape(-1, *[1] * (a.dim() - 1)), a, b) for a, b in both]
        )

    def _write(self, memory: Memory, rows: slice | Tensor) -> None:
        if self._is_alone:
            self.memory = memory
            return
        if self.memory is None:
            self.memory = memory.each(lambda t: t.new_zeros(len(self._members), *t.shape[1:]))
        for name, old in vars(self.memory).items():
            old[rows] = memory[name]


class StackTransport:
    """Transport that runs the clients of one side in this process and keeps their memory."""

    def __init__(
        self,
        side: ClientSide,
        *,
        at_once: int | None = 1,
        device: str = "cpu",
        memory_budget_mb: int | None = None,
        chunking: Chunking | None = None,
        owned: range | None = None,
        threads: int = 1,
    ) -> None:
        """One client after the other, or stacks of at most ``at_once``; None: as many as fit.

        Args:
            side: the clients'; with ``owned``, that of the clients of these stacks alone.
            at_once: at most so many clients in one call.
            device: where clients are computed.
            memory_budget_mb: bounds the stacked shards, memory, uploads and temporaries.
            chunking: what is computed together, where that is decided already.
            owned: the stacks that are run here.
            threads: how many calls run beside each other.

        Raises:
            ConfigError: the budget cannot hold one client's update beside what is kept of all, or
                the problem is computed by one thread alone.
        """
        problem, training = side.setup.problem, side.setup.training
        if threads > 1 and (not problem.allows_threads or training.memory_is_required):
            raise ConfigError(
                f"engine.address: expected none with {type(problem).__name__} and training.kind = "
                f"{training.kind!r}, which one thread computes, got {threads} threads; remove it"
            )
        self._threads = threads
        self.chunking = chunking or Chunking.of(side, device, memory_budget_mb, at_once, threads)
        stacks = self.chunking.stacks
        owned = range(len(stacks)) if owned is None else owned
        first = stacks[owned.start].start
        self.stacks: dict[int, _Stack] = {}
        for i in owned:
            place = range(stacks[i].start - first, stacks[i].stop - first)
            self.stacks[i] = _Stack(side.of(place), stacks[i], device, self.chunking)
        self._source = side.source
        self._manifold = side.setup.problem.manifold

    def exchange(self, asked: Asked) -> Replies:
        """Exchanges as `Transport.exchange`; a stack that fails is tried client by client."""
        partitions = asked.partitions
        source = self._source.fresh()
        failures = self._refusals(asked)
        rows = [row for row, i in enumerate(partitions) if i not in failures]
        done = list[int]()
        parts = list[Payload]()
        sums = asked.sums() if self.chunking.is_streamed else None

        def tried(chunk: list[int]) -> list[tuple[Partitions, Payload]]:
            shares, found = [chunk], []
            stack = self.stacks[partitions[chunk[0]] // self.chunking.in_a_stack]
            for share in shares:
                who = tuple(partitions[row] for row in share)
                try:
                    found.append((who, stack.run(asked, share, who, source)))
                except Exception as error:
                    if len(share) > 1:
                        shares += [[row] for row in share]
                    else:
                        failures[who[0]] = Failure("absent", f"{type(error).__name__}: {error}")
            return found

        for found in self._each(tried, self.chunking.cut(partitions, rows)):
            for who, up in found:
                if sums is None:
                    parts.append(up)
                else:
                    flaws = sums.add(up, who)
                    failures |= {i: Failure("unusable", why) for i, why in flaws.items()}
                done += [i for i in who if i not in failures]
        return Replies(
            tuple(done),
            asked.gathered(parts),
            failures,
            asked.down.bytes_to(len(partitions)),
            frozenset({source.origin} if done else ()),
            mean=sums and sums.mean(),
        )

    def _each(self, made: Callable[[Any], _T], items: Sequence[Any]) -> Iterator[_T]:
        """Makes something of each item, on all threads and in order; few wait to be taken."""
        if self._threads == 1:
            yield from map(made, items)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            waiting = deque[Future[_T]]()
            for item in items:
                waiting.append(pool.submit(made, item))
                if len(waiting) > 2 * self._threads:
                    yield waiting.popleft().result()
            yield from (one.result() for one in waiting)

    def _refusals(self, asked: Asked) -> dict[int, Failure]:
        """Why clients refuse what comes down; one look is enough where it is the same for all.

        Rows that all pass together are looked at together; else each by itself.
        """
        found = dict[int, Failure]()

        def is_refused(clients: Sequence[int], sent: Payload) -> bool:
            try:
                check_broadcast(asked.phase.places, sent, self._manifold)
            except BadBroadcast as bad:
                found.update(dict.fromkeys(clients, Failure("absent", f"BadBroadcast: {bad}")))
            return bool(found)

        who = asked.partitions
        down = asked.down
        if not who:  # and what is sent to nobody may be of another phase
            return found
        if not isinstance(down, PerClient):
            is_refused(who, down)
        elif is_refused(who, down.rows):
            found.clear()
            for row, i in enumerate(who):
                is_refused((i,), down.rows.take(row))
        return found

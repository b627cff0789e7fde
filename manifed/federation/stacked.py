"""Cohort execution: all sampled clients of a round as stacked calls of the same client update.

The trajectory, the byte accounting, the ledger and the reply policy are those of the message path
(tests/flower/test_cohort.py); only the messages are missing. Shards are padded and stacked once,
noise comes from each client's own address, so a result does not depend on who is stacked with whom
beyond rounding; what is in a chunk is decided by the config (chunks.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from torch import Tensor

from manifed.algorithms.broadcast import BadBroadcast, all_pass, check_broadcast
from manifed.algorithms.interface import Phase
from manifed.algorithms.payloads import Down, Payload, PerClient, down_bytes, downs
from manifed.federation.chunks import Asked, Chunking, Stack
from manifed.federation.client import ClientSide
from manifed.federation.header import Header
from manifed.federation.replies import Failure, Replies
from manifed.federation.transport import stacked_or_empty
from manifed.manifolds.base import Manifold


class StackedTransport:
    """Runs cohorts of one client side; keeps the stacked shards and the stacked memory."""

    def __init__(
        self,
        side: ClientSide,
        *,
        device: str,
        memory_budget_mb: int,
        chunk_clients: int | None = None,
    ) -> None:
        """``memory_budget_mb`` bounds the stacked shards, memory, uploads and temporaries.

        Raises:
            ConfigError: when it cannot hold one client's update beside what is kept of all.
        """
        chunking = Chunking.of(side, device, memory_budget_mb, chunk_clients)
        self._hold(side, range(len(chunking.stacks)), chunking, device)

    @classmethod
    def of_stacks(cls, side: ClientSide, owned: range, chunking: Chunking, device: str) -> Self:
        """The same over neighbouring stacks alone; ``side`` is that of their clients."""
        made = cls.__new__(cls)
        made._hold(side, owned, chunking, device)
        return made

    def _hold(self, side: ClientSide, owned: range, chunking: Chunking, device: str) -> None:
        members = chunking.stacks[owned.start : owned.stop]
        first = members[0].start
        places = [range(own.start - first, own.stop - first) for own in members]
        self.stacks = {
            i: Stack(side.of(place), own, device)
            for i, place, own in zip(owned, places, members, strict=True)
        }
        self._chunking, self.chunk_size = chunking, chunking.at_a_time
        self._manifold = side.setup.manifold
        self._turn_source = replace(side, shards=(), hold_outs=()).turn_source

    def shards_bytes(self) -> int:
        """Bytes of the stacked shards."""
        each = (t for stack in self.stacks.values() for t in stack.examples.tensors.values())
        return sum(t.nbytes for t in each)

    def exchange(
        self,
        header: Header,
        phase: Phase,
        down: Down,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
    ) -> Replies:
        """As `Transport.exchange`; a stack that fails is tried again client by client."""
        failures = _refusals(phase, down, partitions, self._manifold)
        rows = list(range(len(partitions)))
        if failures:
            rows = [row for row in rows if partitions[row] not in failures]
        asked = Asked(header, down, partitions, last_accepted, self._turn_source())
        done = _Uploads(len(rows))
        for chunk in self._chunking.cut(partitions, rows):
            stack = self.stacks[partitions[chunk[0]] // self._chunking.in_a_stack]
            done.add(*_chunk_or_singles(stack, asked, chunk, failures))
        uploads = done.stacked() or stacked_or_empty(phase, down, [])
        return Replies(
            tuple(done.partitions),
            uploads,
            failures,
            down_bytes(down, len(partitions)),
            uploads.num_bytes(),
            frozenset({asked.source.origin} if done.partitions else ()),
            chunks=tuple(done.chunks),
        )


def _chunk_or_singles(
    stack: Stack, asked: Asked, rows: list[int], failures: dict[int, Failure]
) -> tuple[tuple[int, ...], list[Payload]]:
    """Who of a chunk replied, and the uploads in one stack, or one by one after an error."""
    chunk = asked.partitions
    if len(rows) < len(chunk):
        chunk = tuple(chunk[row] for row in rows)
    try:
        return chunk, [stack.run(asked, rows, chunk)]
    except Exception as error:
        if len(rows) == 1:
            failures[chunk[0]] = Failure("absent", f"{type(error).__name__}: {error}")
            return (), []
    found = [_chunk_or_singles(stack, asked, [row], failures) for row in rows]
    return tuple(i for some, _ in found for i in some), [up for _, ups in found for up in ups]


def _refusals(
    phase: Phase, down: Down, partitions: tuple[int, ...], manifold: Manifold
) -> dict[int, Failure]:
    """Why clients refuse what comes down; one look is enough where it is the same for all.

    Rows that all pass together are looked at together; else each by itself, for its own refusal.
    """
    if not isinstance(down, PerClient):
        refusal = _refusal(phase, down, manifold) if partitions else None
        return {} if refusal is None else dict.fromkeys(partitions, refusal)
    if partitions and all_pass(phase, down.rows, manifold):
        return {}
    each = [_refusal(phase, sent, manifold) for sent in downs(down, len(partitions))]
    return {i: refusal for i, refusal in zip(partitions, each, strict=True) if refusal is not None}


def _refusal(phase: Phase, down: Payload, manifold: Manifold) -> Failure | None:
    try:
        check_broadcast(phase, down, manifold)
    except BadBroadcast as bad:
        return Failure("absent", f"BadBroadcast: {bad}")
    return None


def _plain(part: Payload) -> Payload:
    """The payload without what its tensors know of manifolds."""
    made = part.tensors().values()
    if any(type(t) is not Tensor for t in made):
        return type(part)(*[t.as_subclass(Tensor) for t in made])
    return part


class _Uploads:
    """Uploads in the order they came, copied into one block: chunks leave no holes in the heap."""

    def __init__(self, capacity: int) -> None:
        self.partitions: list[int] = []
        self.chunks: list[int] = []
        """How many replied of each chunk."""
        self._capacity = capacity
        self._block: Payload | None = None

    def add(self, partitions: Sequence[int], uploads: Sequence[Payload]) -> None:
        """The replies of the next chunk, in one stack or in several."""
        if not uploads:
            return
        self.chunks.append(len(partitions))
        begin = len(self.partitions)
        self.partitions += partitions
        for part in map(_plain, uploads):
            plain = part.tensors().values()
            count = next(iter(plain)).shape[0]
            if count == self._capacity:  # one chunk holds all
                self._block = part
                return
            if self._block is None:
                rows = [t.new_empty(self._capacity, *t.shape[1:]) for t in plain]
                self._block = type(part)(*rows)
            for held, tensor in zip(self._block.tensors().values(), plain, strict=True):
                held[begin : begin + count] = tensor
            begin += count

    def stacked(self) -> Payload | None:
        """All rows added; None when there are none."""
        if self._block is None:
            return None
        count = len(self.partitions)
        if count == self._capacity:
            return self._block
        return type(self._block)(*[t[:count] for t in self._block.tensors().values()])

"""How an exchange reaches the clients: the interface, and the way that stays in this process."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

from torch import Tensor

from manifed.algorithms.broadcast import check_broadcast
from manifed.algorithms.held_out import EVALUATE
from manifed.algorithms.interface import Memory, Phase
from manifed.algorithms.payloads import Down, Payload, PerClient, down_bytes, downs
from manifed.federation.client import ClientSide, Seat, run_update
from manifed.federation.header import Header
from manifed.federation.replies import Failure, Replies
from manifed.federation.uploads import Expectation


class Transport(Protocol):
    """Sends what goes down to some clients and brings their uploads back."""

    def exchange(
        self,
        header: Header,
        phase: Phase,
        down: Down,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
    ) -> Replies:
        """The readable uploads in the order of ``partitions``, and a reason for each other client.

        ``down`` is one payload for all, or a `PerClient` with a row for each of ``partitions``.
        ``last_accepted`` says in which round the server last used a client's reply: a client whose
        memory is of another round starts from its initial one.
        """
        ...


@runtime_checkable
class SumsTransport(Protocol):
    """A transport whose clients' side checks uploads and sums them, chunk by chunk."""

    def exchange_sums(
        self,
        header: Header,
        phase: Phase,
        down: Down,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
        expected: Expectation,
        shares: Tensor,
    ) -> Replies:
        """`Transport.exchange` with checked replies and their sums instead of their rows.

        ``shares`` (C,) are the weights of ``partitions`` in the mean, that of all being one.
        """
        ...


def gives_sums(transport: Transport) -> TypeGuard[SumsTransport]:
    """Whether it is a `SumsTransport`; asked in every round, and found out once a class."""
    return _gives_sums(type(transport))


@cache
def _gives_sums(kind: type[Transport]) -> bool:
    return issubclass(kind, SumsTransport)


class MemoryTransport:
    """One client update after the other, in this process; clients keep their memory as nodes do."""

    def __init__(self, side: ClientSide) -> None:
        self._side = side
        self._memory: dict[int, tuple[tuple[int, int], Memory]] = {}
        """By client: the round and attempt that wrote it, and the memory."""

    def exchange(
        self,
        header: Header,
        phase: Phase,
        down: Down,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
    ) -> Replies:
        """As `Transport.exchange`; an update that raises is that client's failure alone."""
        uploads: dict[int, Payload] = {}
        failures: dict[int, Failure] = {}
        origins: set[str] = set()
        for i, sent in zip(partitions, downs(down, len(partitions)), strict=True):
            mine = replace(header, partition_id=i, last_accepted_round=last_accepted.get(i, 0))
            try:
                uploads[i], origin = self._update(mine, phase, sent)
                origins.add(origin)
            except Exception as error:
                failures[i] = Failure("absent", f"{type(error).__name__}: {error}")
        stacked = stacked_or_empty(phase, down, list(uploads.values()))
        return Replies(
            tuple(uploads),
            stacked,
            failures,
            down_bytes(down, len(partitions)),
            stacked.num_bytes(),
            frozenset(origins),
        )

    def _update(self, header: Header, phase: Phase, down: Payload) -> tuple[Payload, str]:
        side, i = self._side, header.partition_id
        check_broadcast(phase, down, side.setup.manifold)
        written, memory = self._memory.get(i, ((0, 0), None))
        lasts = side.setup.remembers_setup
        if memory is None or not (lasts or header.continues(*written)):
            memory = side.setup.training.initial_memory(next(iter(down.tensors().values())))
        source = side.turn_source()
        shard = side.hold_outs[i] if phase is EVALUATE else side.shards[i]
        seat = Seat(i, header.server_round, header.attempt, header.phase)
        made = run_update(side.setup, seat, down, memory, shard, side.public_size(i), source)
        if made.memory is not None:
            self._memory[i] = ((header.server_round, header.attempt), made.memory)
        return made.bare, source.origin


def stacked_or_empty(phase: Phase, down: Down, uploads: list[Payload]) -> Payload:
    """The uploads in one payload; that of nobody has the fields' shapes after a 0."""
    if uploads:
        return phase.up.stack(uploads)
    whole = down.rows if isinstance(down, PerClient) else down
    x = next(iter(whole.tensors().values()))
    shape = x.shape[1:] if isinstance(down, PerClient) else x.shape
    layout = phase.up.layout(tuple(shape), x.dtype).values()
    return phase.up(*[x.new_zeros(0, *own, dtype=dtype) for own, dtype in layout])

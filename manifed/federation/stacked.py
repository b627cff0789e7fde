"""Cohort execution: all sampled clients of a round as one stacked call of the same client update.

The trajectory, the byte accounting, the ledger and the reply policy are those of the message path
(tests/flower/test_cohort.py); only the messages are missing. Shards are padded and stacked once,
noise comes from each client's own address, so a result does not depend on who is stacked with whom.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manifed.algorithms.broadcast import BadBroadcast, all_pass, check_broadcast
from manifed.algorithms.held_out import EVALUATE
from manifed.algorithms.interface import Memory, Phase, remembers_setup, setup_phases_of
from manifed.algorithms.payloads import Down, Payload, PerClient, down_bytes, downs
from manifed.errors import ConfigError
from manifed.federation.client import ClientSide, Seat, run_update
from manifed.federation.header import Header
from manifed.federation.replies import Failure, Replies
from manifed.federation.transport import stacked_or_empty
from manifed.manifolds.base import Manifold
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples

_CACHE_BYTES = 16 * 2**20
"""What the local steps of one chunk read again and again: larger chunks would fall out of cache."""
_POINTS_OF_A_STEP = 16
"""Gradients, noise, a kept iterate and their temporaries, in sizes of a point."""
_KEPT_POINTS = 3
"""Uploads of a round, of at most two tensors, and once more while they are averaged."""


def _clients_at_a_time(side: ClientSide, device: str, memory_budget_mb: int) -> int:
    """How many clients one stacked call takes: as many as fit, and stay in a processor's cache."""
    fullest = max(side.shards, key=len)
    longest, shard = len(fullest), sum(t.nbytes for t in fullest.tensors.values())
    point = math.prod(side.point_shape) * side.dtype.itemsize
    blank = side.setup.training.initial_memory(torch.zeros(side.point_shape, dtype=side.dtype))
    remembered = blank.num_bytes() if blank is not None else 0
    upload = max(point, *(_upload_size(side, phase) for phase in side.setup.training.phases))
    kept = len(side.shards) * (shard + remembered + _KEPT_POINTS * upload)
    most = max(longest, *(side.public_size(i) for i in range(len(side.shards))))
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


def _upload_size(side: ClientSide, phase: Phase) -> int:
    """Bytes of the largest tensor that goes up, which need not be of the shape of a point."""
    layout = phase.up.layout(side.point_shape, side.dtype).values()
    return max(math.prod(shape) * dtype.itemsize for shape, dtype in layout)


def _public_sizes(side: ClientSide) -> tuple[int, ...]:
    return tuple(side.public_size(i) for i in range(len(side.shards)))


class StackedTransport:
    """Runs cohorts of one client side; keeps the stacked shards and the stacked memory."""

    def __init__(self, side: ClientSide, *, device: str, memory_budget_mb: int) -> None:
        """``memory_budget_mb`` bounds the stacked shards, memory, uploads and temporaries.

        Raises:
            ConfigError: when it cannot hold one client's update beside what is kept of all.
        """
        self._side, self._device = side, device
        self.chunk_size = _clients_at_a_time(side, device, memory_budget_mb)
        self._stacked = Examples.stack(list(side.shards)).to(device)
        self._everybody = tuple(range(len(side.shards)))
        held = list(side.hold_outs)
        self._held = Examples.stack(held).to(device) if held else self._stacked
        training, self._sizes = side.setup.training, _public_sizes(side)
        self._has_setup, self._lasts = bool(setup_phases_of(training)), remembers_setup(training)
        self._memory: Memory | None = None
        self._tags: dict[int, tuple[int, int]] = {}

    def shards_bytes(self) -> int:
        """Bytes of the stacked shards."""
        return sum(t.nbytes for t in self._stacked.tensors.values())

    def exchange(
        self,
        header: Header,
        phase: Phase,
        down: Down,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
    ) -> Replies:
        """As `Transport.exchange`; a stack that fails is tried again client by client."""
        failures = _refusals(phase, down, partitions, self._side.setup.manifold)
        rows = list(range(len(partitions)))
        if failures:
            rows = [row for row in rows if partitions[row] not in failures]
        done, whole = (
            _Uploads(len(rows)),
            _Asked(header, down, partitions, last_accepted, self._side.turn_source()),
        )
        for start in range(0, len(rows), self.chunk_size):
            chunk = rows[start : start + self.chunk_size]
            self._chunk_or_singles(whole, chunk, done, failures)
        uploads = done.stacked() or stacked_or_empty(phase, down, [])
        return Replies(
            tuple(done.partitions),
            uploads,
            failures,
            down_bytes(down, len(partitions)),
            uploads.num_bytes(),
            frozenset({whole.source.origin} if done.partitions else ()),
        )

    def _chunk_or_singles(
        self, whole: "_Asked", rows: list[int], done: "_Uploads", failures: dict[int, Failure]
    ) -> None:
        chunk = whole.partitions
        if len(rows) < len(chunk):
            chunk = tuple(chunk[row] for row in rows)
        try:
            done.add(chunk, self._run(whole, rows, chunk))
        except Exception as error:
            if len(rows) == 1:
                failures[chunk[0]] = Failure("absent", f"{type(error).__name__}: {error}")
                return
            for row in rows:
                self._chunk_or_singles(whole, [row], done, failures)

    def _run(self, whole: "_Asked", at: list[int], chunk: tuple[int, ...]) -> Payload:
        side, header, sizes = self._side, whole.header, self._sizes
        examples = self._held if header.phase == EVALUATE.name else self._stacked
        if chunk != self._everybody:
            examples = examples.of_clients(self._rows(chunk))
            sizes = tuple(sizes[i] for i in chunk)
        down = _spread(whole.down, at).to(self._device)
        memory = self._remember(whole, down, chunk)
        seat = Seat(chunk, header.server_round, header.attempt, header.phase)
        made = run_update(
            side.setup, seat, down, memory, examples, sizes, whole.source, self._device
        )
        if made.memory is not None:
            self._write(made.memory, header, chunk)
        return made.up

    def _rows(self, chunk: tuple[int, ...]) -> slice | Tensor:
        """Where the clients of ``chunk`` lie in the stacks: a view when they are neighbours."""
        if chunk[-1] - chunk[0] == len(chunk) - 1:
            return slice(chunk[0], chunk[-1] + 1)
        return torch.tensor(chunk, device=self._device)

    # -- memory ------------------------------------------------------------------------------
    def _remember(self, whole: "_Asked", down: Payload, chunk: tuple[int, ...]) -> Memory | None:
        x: Tensor = next(iter(down.tensors().values()))
        training = self._side.setup.training
        if self._has_setup:  # what it learns there need not look like a point
            each = [training.initial_memory(row) for row in x]
            blank = each[0] and type(each[0]).stack([one for one in each if one])
        else:
            blank = training.initial_memory(x)
        if blank is None or self._memory is None:
            return blank
        valid = [
            i in self._tags and (self._lasts or whole.header_of(i).continues(*self._tags[i]))
            for i in chunk
        ]
        rows = self._rows(chunk)
        known = [old[rows] for old in self._memory.tensors().values()]
        if not all(valid):
            keep = torch.tensor(valid, device=self._device)
            known = [
                torch.where(keep.reshape(-1, *[1] * (new.dim() - 1)), old, new)
                for old, new in zip(known, blank.tensors().values(), strict=True)
            ]
        return type(blank)(*known)

    def _write(self, memory: Memory, header: Header, chunk: tuple[int, ...]) -> None:
        if self._memory is None:
            count = len(self._side.shards)
            zeros = [t.new_zeros(count, *t.shape[1:]) for t in memory.tensors().values()]
            self._memory = type(memory)(*zeros)
        rows = self._rows(chunk)
        for old, new in zip(
            self._memory.tensors().values(), memory.tensors().values(), strict=True
        ):
            old[rows] = new
        self._tags |= dict.fromkeys(chunk, (header.server_round, header.attempt))


@dataclass(frozen=True)
class _Asked:
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


def _refusals(
    phase: Phase, down: Down, partitions: tuple[int, ...], manifold: Manifold
) -> dict[int, Failure]:
    """Why clients refuse what comes down; one look is enough where it is the same for all.

    Rows that all pass together are looked at together; else each by itself, for its own refusal.
    """
    failures: dict[int, Failure] = {}
    is_one = not isinstance(down, PerClient)
    if isinstance(down, PerClient) and partitions and all_pass(phase, down.rows, manifold):
        return failures
    looks = min(1, len(partitions)) if is_one else len(partitions)
    for i, sent in zip(partitions, downs(down, looks), strict=False):
        try:
            check_broadcast(phase, sent, manifold)
        except BadBroadcast as bad:
            refusal = Failure("absent", f"BadBroadcast: {bad}")
            failures |= dict.fromkeys(partitions if is_one else (i,), refusal)
    return failures


def _spread(down: Down, rows: list[int]) -> Payload:
    """What goes down to the clients of ``rows``, stacked."""
    if isinstance(down, PerClient):
        is_whole = len(rows) == next(iter(down.rows.tensors().values())).shape[0]
        return down.rows if is_whole else down.rows.take(torch.tensor(rows))
    return type(down)(*[t.expand(len(rows), *t.shape) for t in down.tensors().values()])


class _Uploads:
    """Uploads in the order they came, copied into one block: chunks leave no holes in the heap."""

    def __init__(self, capacity: int) -> None:
        self.partitions: list[int] = []
        self._capacity = capacity
        self._block: Payload | None = None

    def add(self, partitions: Sequence[int], uploads: Payload) -> None:
        """The next rows."""
        plain = {name: t.as_subclass(Tensor) for name, t in uploads.tensors().items()}
        if len(partitions) == self._capacity:  # one chunk holds all
            self._block, self.partitions = type(uploads)(*plain.values()), list(partitions)
            return
        if self._block is None:
            rows = [t.new_empty(self._capacity, *t.shape[1:]) for t in plain.values()]
            self._block = type(uploads)(*rows)
        begin = len(self.partitions)
        for name, tensor in plain.items():
            self._block.tensors()[name][begin : begin + len(partitions)] = tensor
        self.partitions += partitions

    def stacked(self) -> Payload | None:
        """All rows added; None when there are none."""
        if self._block is None:
            return None
        count = len(self.partitions)
        if count == self._capacity:
            return self._block
        return type(self._block)(*[t[:count] for t in self._block.tensors().values()])

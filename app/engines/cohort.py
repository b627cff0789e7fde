"""Cohort execution: all sampled clients of a round as one stacked call of the same client half.

The trajectory, the byte accounting, the ledger and the reply policy are those of the message path
(tests/flower/test_cohort.py); only the envelopes are missing. Shards are padded and stacked once,
noise comes from each client's own address, so a result does not depend on who is stacked with whom.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from app.assembly import ClientSide
from clients.local_training import Memory
from clients.turn import Seat, take_turn
from problems.base import Examples
from strategies.replies import Replies
from wire.letters import Header
from wire.payloads import Payload

_CACHE_BYTES = 16 * 2**20
"""Shards of one chunk: a step reads them twice, so they should stay in the cache in between."""


class CohortGrid:
    """Runs cohorts of one client side; keeps the stacked shards and the stacked memory."""

    def __init__(self, side: ClientSide, *, device: str, memory_budget_mb: int) -> None:
        """``memory_budget_mb`` bounds what one stacked call may touch at a time."""
        self._side, self._device = side, device
        self._source = side.turn_source()
        self._stacked = Examples.stack(list(side.shards)).to(device)
        self._sizes = torch.tensor([len(shard) for shard in side.shards], device=device)
        self._memory: Memory | None = None
        self._tags: dict[int, tuple[int, int]] = {}
        self.chunk_size = max(1, min(self._budgeted(memory_budget_mb), self._cached()))

    def _shard_bytes(self) -> float:
        shards = sum(t.numel() * t.element_size() for t in self._stacked.tensors.values())
        return shards / len(self._side.shards)

    def _cached(self) -> int:
        """Clients whose shards stay in a processor's cache over all local steps."""
        if self._device != "cpu":
            return len(self._side.shards)
        return int(_CACHE_BYTES / self._shard_bytes()) or 1

    def _budgeted(self, memory_budget_mb: int) -> int:
        """Clients that fit: the shard twice, and one gradient for each example of a batch."""
        per_shard = self._shard_bytes()
        point = 8 * torch.Size(self._side.point_shape).numel()
        gradients = self._side.gradients_per_step(int(self._sizes.max()))
        return int(memory_budget_mb * 2**20 / (2 * per_shard + point * (16 + gradients)))

    def exchange_cohort(
        self,
        header: Header,
        down: Payload,
        partitions: tuple[int, ...],
        last_accepted: Mapping[int, int],
    ) -> Replies:
        """The uploads of ``partitions``, stacked in that order; failures by client."""
        _, phase = self._side.half.phase(header.phase)
        if not partitions:
            return Replies((), _empty(phase.up, down))
        done: list[tuple[tuple[int, ...], Payload]] = []
        failures: dict[int, str] = {}
        for start in range(0, len(partitions), self.chunk_size):
            chunk = partitions[start : start + self.chunk_size]
            done += self._chunk_or_singles(header, down, chunk, last_accepted, failures)
        kept = tuple(i for chunk, _ in done for i in chunk)
        uploads = _concatenate([up for _, up in done]) if done else _empty(phase.up, down)
        return Replies(
            kept, uploads, failures, down.num_bytes() * len(partitions), uploads.num_bytes()
        )

    def _chunk_or_singles(
        self,
        header: Header,
        down: Payload,
        chunk: tuple[int, ...],
        last_accepted: Mapping[int, int],
        failures: dict[int, str],
    ) -> list[tuple[tuple[int, ...], Payload]]:
        try:
            return [(chunk, self._run(header, down, chunk, last_accepted))]
        except Exception as error:
            if len(chunk) == 1:
                failures[chunk[0]] = f"{type(error).__name__}: {error}"
                return []
        singles: list[tuple[tuple[int, ...], Payload]] = []
        for i in chunk:
            singles += self._chunk_or_singles(header, down, (i,), last_accepted, failures)
        return singles

    def _run(
        self,
        header: Header,
        down: Payload,
        chunk: tuple[int, ...],
        last_accepted: Mapping[int, int],
    ) -> Payload:
        side, size = self._side, len(chunk)
        rows = torch.tensor(chunk, device=self._device)
        is_run = chunk[-1] - chunk[0] == size - 1
        window = slice(chunk[0], chunk[-1] + 1)
        examples = _rows(self._stacked, window if is_run else rows)
        spread = type(down)(
            *[t.to(self._device).expand(size, *t.shape) for t in down.tensors().values()]
        )
        memory = self._remember(header, spread, chunk, last_accepted)
        seat = Seat(chunk, header.server_round, header.attempt, header.phase)
        turn = take_turn(
            side.half, seat, spread, memory, examples, self._sizes[rows], self._source, self._device
        )
        if turn.memory is not None:
            self._write(turn.memory, header, chunk)
        return turn.up

    # -- memory ------------------------------------------------------------------------------
    def _remember(
        self, header: Header, down: Payload, chunk: Sequence[int], last_accepted: Mapping[int, int]
    ) -> Memory | None:
        x: Tensor = next(iter(down.tensors().values()))
        blank = self._side.half.training.initial_memory(x)
        if blank is None or self._memory is None:
            return blank
        this_turn = (header.server_round, header.attempt)
        valid = [
            i in self._tags
            and (self._tags[i] == this_turn or self._tags[i][0] == last_accepted.get(i, 0))
            for i in chunk
        ]
        rows = torch.tensor(chunk, device=self._device)
        keep = torch.tensor(valid, device=self._device)
        merged = [
            torch.where(keep.reshape(-1, *[1] * (new.dim() - 1)), old[rows], new)
            for old, new in zip(
                self._memory.tensors().values(), blank.tensors().values(), strict=True
            )
        ]
        return type(blank)(*merged)

    def _write(self, memory: Memory, header: Header, chunk: Sequence[int]) -> None:
        if self._memory is None:
            count = len(self._side.shards)
            zeros = [t.new_zeros(count, *t.shape[1:]) for t in memory.tensors().values()]
            self._memory = type(memory)(*zeros)
        rows = torch.tensor(chunk, device=self._device)
        for old, new in zip(
            self._memory.tensors().values(), memory.tensors().values(), strict=True
        ):
            old[rows] = new
        self._tags |= dict.fromkeys(chunk, (header.server_round, header.attempt))


def _rows(examples: Examples, rows: slice | Tensor) -> Examples:
    picked = {key: tensor[rows] for key, tensor in examples.tensors.items()}
    return Examples(picked, examples.feature_ndim)


def _concatenate(payloads: list[Payload]) -> Payload:
    if len(payloads) == 1:
        return payloads[0]
    columns = zip(*[p.tensors().values() for p in payloads], strict=True)
    return type(payloads[0])(*[torch.cat(list(column)) for column in columns])


def _empty(kind: type[Payload], down: Payload) -> Payload:
    x = next(iter(down.tensors().values()))
    return kind(*[x.new_zeros(0, *x.shape) for _ in kind.names()])

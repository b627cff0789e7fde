"""Where a random number lives: the 128-bit counter block of AES, field by field.

From the most significant bit: stream 8 | attempt 16 | step 24 | server_round 24 | partition 24 |
block 32. Invariant: the map from in-range fields to 128-bit integers is injective, so two different
addresses never share a block.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple


class Stream(IntEnum):
    """What a number is for; two purposes never share a number."""

    DATA = 0
    INITIAL_POINT = 1
    PARTITION = 2
    COHORT = 3
    MINIBATCH = 4
    GRADIENT_NOISE = 5
    SERVER_NOISE = 6
    ITERATE_CHOICE = 7
    CLIP_QUANTILE = 8
    MASK = 9
    AUDIT = 10


BITS: Final = {"stream": 8, "attempt": 16, "step": 24, "server_round": 24, "partition": 24}
BLOCK_BITS: Final = 32
_ENDS: Final = tuple(1 << bits for bits in BITS.values())


@dataclass(frozen=True, order=True)
class BlockRange:
    """The counter blocks ``first <= block < stop`` of one address, as drawn."""

    stream: Stream
    partition: int
    server_round: int
    attempt: int
    step: int
    first: int
    stop: int


class Address(NamedTuple):
    """The part of an address that a whole cohort shares."""

    stream: Stream
    server_round: int
    attempt: int
    step: int

    def check(self, partitions: tuple[int, ...], stop: int) -> None:
        """Refuse fields out of range, partitions that repeat, and blocks beyond 2^32.

        Raises:
            ValueError: naming the field, its value and its bound.
        """
        if len(partitions) == 1:
            least = most = partitions[0]
        elif partitions:
            least, most = min(partitions), max(partitions)
        else:
            least = most = 0
        fields = (self.stream, self.attempt, self.step, self.server_round, most)
        if least < 0 or any(map(int.__ge__, fields, _ENDS)) or min(fields) < 0:
            self._refuse(least, most)
        if len(partitions) > 1 and len(set(partitions)) != len(partitions):
            raise ValueError(f"Expected distinct partitions (noise is never reused): {partitions}")
        if stop > 1 << BLOCK_BITS:
            raise ValueError(
                f"Expected at most 2**{BLOCK_BITS} blocks at one address, got {stop}; "
                "use another step or a smaller shape"
            )

    def _refuse(self, least: int, most: int) -> None:
        values = (self.stream, self.attempt, self.step, self.server_round, least)
        for name, value in [*zip(BITS, values, strict=True), ("partition", most)]:
            if not 0 <= value < 1 << BITS[name]:
                raise ValueError(f"Expected 0 <= {name} < 2**{BITS[name]}, got {value}")

    def high(self) -> int:
        """The upper 64 bits: stream 8 | attempt 16 | step 24 | upper 16 of server_round."""
        upper = (self.stream << 16 | self.attempt) << 24 | self.step
        return upper << 16 | self.server_round >> 8

    def low(self, partition: int) -> int:
        """The lower 64 bits at block 0: lower 8 of server_round | partition 24 | block 32."""
        return ((self.server_round & 255) << 24 | partition) << BLOCK_BITS

    def counters(self, partition: int, first: int, stop: int) -> bytes:
        """The counter blocks ``first <= block < stop`` of one partition, 16 bytes each."""
        base = self.high() << 64 | self.low(partition)
        return b"".join([(base + block).to_bytes(16, "little") for block in range(first, stop)])

    def blocks(self, partition: int, first: int, stop: int) -> BlockRange:
        """What a recorder is told about them."""
        return BlockRange(
            self.stream, partition, self.server_round, self.attempt, self.step, first, stop
        )


def reused(ranges: Iterable[BlockRange]) -> list[tuple[BlockRange, BlockRange]]:
    """Pairs of draws that share a block; empty when no counter was ever used twice."""
    return [(a, b) for a, b in pairwise(sorted(ranges)) if _overlap(a, b)]


def _overlap(a: BlockRange, b: BlockRange) -> bool:
    same = (a.stream, a.partition, a.server_round, a.attempt, a.step) == (
        b.stream, b.partition, b.server_round, b.attempt, b.step
    )  # fmt: skip
    return same and a.first < b.stop and b.first < a.stop

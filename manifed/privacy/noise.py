"""One source of randomness: AES-256 in counter mode, addressed, read as uniforms and normals.

A number depends only on the key and on its address (stream, partition, server_round, attempt,
step, index), never on the order of the draws or on how clients are grouped in a cohort.

Address. The 128-bit counter block of AES is, from the most significant bit,

    clients  stream 8 | attempt 16 | step 24 | server_round 24 | partition 24 | block 32
    edges    stream 8 | attempt 16 | step 16 | server_round 24 | lesser 20 | greater 20 | block 24

where the streams of clients lie below 128 and those of edges from 128 on: the first bit tells the
layouts apart. Every field is range-checked, so two addresses never meet in one block (injective by
construction); each block holds two 64-bit words. AES-256 of explicit counter blocks is counter
mode, and a whole cohort is one vectorised call. Integers are little-endian on every machine.

A word w gives the uniform u = (k + 1/2) 2^-52 with k = w >> 12: odd multiples of 2^-53, never 0
or 1, symmetric about 1/2. It gives the coin w < floor(2^64 p). It gives the normal
z = Phi^-1((k + 1/2) 2^-53) with k = w >> 11 the top 53 bits, evaluated as sqrt(2) erfinv(2u - 1):
2u - 1 is exact in float64, where u itself would round to 1. Normals lie in [-8.30, 8.30].

Guarantees: under the usual assumption that AES-256 is a pseudo-random permutation, draws at
distinct addresses are indistinguishable from independent ones. *Not* guaranteed: float64 normals
are a discrete set, and the low bits of ``value + stddev * normal`` can betray the value (Mironov
2012, "On significance of the least significant bits for differential privacy"; Jin et al. 2022 for
Gaussians). ``precision="summed"`` is the mitigation of Holohan and Braghin (2021, "Secure random
sampling in differential privacy"): (z1 + z2 + z3 + z4) / 2 has the same law, and inverting it is a
search over four secret draws, which their paper puts at the strength of AES-128.
"""

import hashlib
import hmac
import math
import secrets
import struct
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

Precision = Literal["single", "summed"]
Origin = Literal["seed", "os"]
"""Where a key came from: anybody's config, or the operating system of whoever draws."""

BITS: Final = {
    "stream": 8, "attempt": 16, "step": 24, "server_round": 24, "partition": 24, "block": 32,
}  # fmt: skip
EDGE_BITS: Final = {
    "stream": 8, "attempt": 16, "step": 16, "server_round": 24, "lesser": 20, "greater": 20,
    "block": 24,
}  # fmt: skip
_EDGES: Final = 128
"""The first stream of edges."""

Array = npt.NDArray[Any]
SUMMANDS: Final = 4
WORD: Final = np.dtype("<u8")
_SIGNED: Final = np.dtype("<i8")
"""Is turned into float64 in less time."""
_SQRT2: Final = math.sqrt(2.0)
_TILE_BLOCKS: Final = 16384
_FEW: Final = 16
_INDEX: Final = np.arange(_TILE_BLOCKS, dtype=WORD)
_AHEAD: Final = 1 << 14
"""Numbers that a seeded source draws in one call for rounds to come: they stay in cache."""
_KINDS_AHEAD: Final = 64
"""Draws of which a source keeps rounds to come."""


class Stream(IntEnum):
    """What a number of a client or of the server is for; two purposes never share a number.

    A stream's number is part of every address: it never changes, and none is given twice.
    """

    INITIAL_POINT = 1
    COHORT = 3
    MINIBATCH = 4
    GRADIENT_NOISE = 5
    SERVER_NOISE = 6
    ITERATE_CHOICE = 7
    EVALUATION_NOISE = 8
    DROPOUT = 9
    STREAM_NOISE = 10


class EdgeStream(IntEnum):
    """What a number that both ends of an edge draw is for."""

    PAIR_NOISE = 128


# -- where a number lives -----------------------------------------------------------------------
@dataclass(frozen=True, order=True)
class BlockRange:
    """The counter blocks ``first <= block < stop`` of one address, as drawn."""

    stream: Stream | EdgeStream
    partition: int
    """Of an edge lesser * 2^20 + greater, as in the block."""
    server_round: int
    attempt: int
    step: int
    first: int
    stop: int


class Address(NamedTuple):
    """The part of an address that a whole cohort shares."""

    stream: Stream | EdgeStream
    server_round: int
    attempt: int
    step: int

    def check(self, partitions: tuple[int, ...], stop: int) -> None:
        """Refuse fields out of range, partitions that repeat, and blocks beyond 2^32.

        Raises:
            ValueError: naming the field, its value and its bound.
        """
        least, most, is_distinct = _extent(partitions)
        fields = (self.stream, self.attempt, self.step, self.server_round, most, stop - 1)
        if least < 0 or any(map(int.__ge__, fields, _ENDS)) or min(fields[:-1]) < 0:
            self._refuse({"partition": least}, stop, BITS, 0)
            self._refuse({"partition": most}, stop, BITS, 0)
        if not is_distinct:
            raise ValueError(f"Expected distinct partitions (noise is never reused): {partitions}")

    def _refuse(
        self, place: Mapping[str, int], stop: int, bits: Mapping[str, int], first_stream: int
    ) -> None:
        """Raises for the first field that is out of its range."""
        if not first_stream <= self.stream < first_stream + _EDGES:
            raise ValueError(
                f"Expected {first_stream} <= stream < {first_stream + _EDGES} (below {_EDGES} are "
                f"those of clients, from there on those of edges), got {int(self.stream)}"
            )
        shared = {"attempt": self.attempt, "step": self.step, "server_round": self.server_round}
        for name, value in {**shared, **place}.items():
            if not 0 <= value < 1 << bits[name]:
                raise ValueError(f"Expected 0 <= {name} < 2**{bits[name]}, got {value}")
        if stop > 1 << bits["block"]:
            raise ValueError(
                f"Expected at most 2**{bits['block']} blocks at one address, got {stop}; "
                "use another step or a smaller shape"
            )

    def high(self) -> int:
        """The upper 64 bits: stream 8 | attempt 16 | step 24 | upper 16 of server_round."""
        upper = (self.stream << 16 | self.attempt) << 24 | self.step
        return upper << 16 | self.server_round >> 8

    def low(self, partition: int) -> int:
        """The lower 64 bits at block 0: lower 8 of server_round | partition 24 | block 32."""
        return ((self.server_round & 255) << 24 | partition) << 32

    def lows(self, partitions: tuple[int, ...], first: int) -> Array:
        """`low` of every partition, at a block."""
        start = self.low(0)
        return _words(partitions) * np.uint64(self.low(1) - start) + np.uint64(start + first)

    def counters(self, partition: int, first: int, stop: int) -> bytes:
        """The counter blocks ``first <= block < stop`` of one partition, 16 bytes each."""
        base = self.high() << 64 | self.low(partition)
        return b"".join([(base + block).to_bytes(16, "little") for block in range(first, stop)])

    def blocks(self, partition: int, first: int, stop: int) -> BlockRange:
        """What a recorder is told about them."""
        return BlockRange(
            self.stream, partition, self.server_round, self.attempt, self.step, first, stop
        )


@lru_cache(maxsize=64)
def _extent(partitions: tuple[int, ...]) -> tuple[int, int, bool]:
    """Least and greatest, zeros without any, and whether none stands twice."""
    if not partitions:
        return 0, 0, True
    return min(partitions), max(partitions), len(set(partitions)) == len(partitions)


@lru_cache(maxsize=64)
def _words(partitions: tuple[int, ...]) -> Array:
    """The numbers of a cohort or of edges; of the same ones in every round."""
    return np.array(partitions, dtype=WORD)


_ENDS: Final = (_EDGES, *(1 << bits for bits in list(BITS.values())[1:]))


class EdgeAddress(Address):
    """The part of an address that all edges share; in place of a partition stands `edge_place`."""

    def check(self, partitions: tuple[int, ...], stop: int) -> None:
        """Refuse fields out of range, edges that repeat, and blocks beyond 2^24.

        Raises:
            ValueError: naming the field, its value and its bound.
        """
        self._refuse({}, stop, EDGE_BITS, _EDGES)
        if not _extent(partitions)[2]:
            edges = [(place >> 20, place & 0xFFFFF) for place in partitions]
            raise ValueError(f"Expected distinct edges (noise is never reused): {edges}")

    def high(self) -> int:
        """The upper 64 bits: stream 8 | attempt 16 | step 16 | server_round 24."""
        return ((self.stream << 16 | self.attempt) << 16 | self.step) << 24 | self.server_round

    def low(self, partition: int) -> int:
        """The lower 64 bits at block 0: lesser 20 | greater 20 | block 24."""
        return partition << 24


def edge_place(ends: tuple[int, int]) -> int:
    """What stands for an edge in its address, whichever end comes first: lesser 20 | greater 20.

    Raises:
        ValueError: for two ends that are one, or an end out of range.
    """
    lesser, greater = min(ends), max(ends)
    if not 0 <= lesser < greater < 1 << 20:
        raise ValueError(
            f"Expected an edge of two different partitions, 0 <= each < 2**20, got {ends}"
        )
    return lesser << 20 | greater


@lru_cache(maxsize=64)
def _edge_places(edges: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """`edge_place` of each; the edges of a graph are the same in every round."""
    return tuple(edge_place(edge) for edge in edges)


def reused(ranges: Iterable[BlockRange]) -> list[tuple[BlockRange, BlockRange]]:
    """Pairs of draws that share a block; empty when no counter was ever used twice."""
    return [(a, b) for a, b in pairwise(sorted(ranges)) if _overlap(a, b)]


def _overlap(a: BlockRange, b: BlockRange) -> bool:
    same = (a.stream, a.partition, a.server_round, a.attempt, a.step) == (
        b.stream, b.partition, b.server_round, b.attempt, b.step
    )  # fmt: skip
    return same and a.first < b.stop and b.first < a.stop


# -- what a word says ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Reading:
    """How 64-bit words become numbers: ``words`` of them make one."""

    words: int
    read: Callable[[Array, Array], None]
    dtype: npt.DTypeLike = np.float64
    """Of the numbers."""

    def block(self, start: int) -> int:
        """The block in which number ``start`` begins."""
        if start < 0 or start * self.words % 2:
            raise ValueError(
                f"Expected an even start >= 0 (a block holds two numbers), got start={start}"
            )
        return start * self.words // 2


def _read_normals(words: Array, out: Array) -> None:
    """Phi^-1((k + 1/2) 2^-53), k the top 53 bits of each word (words are overwritten)."""
    z = out if out.flags.c_contiguous else np.empty(out.shape)
    np.right_shift(words, np.uint64(11), out=words)  # k, below 2^63: the same number with a sign
    np.multiply(words.view(_SIGNED), 2.0**-52, out=z)
    np.add(z, 2.0**-53 - 1.0, out=z)  # 2u - 1, exact
    tensor = torch.as_tensor(z)
    torch.erfinv(tensor, out=tensor)
    np.multiply(z, _SQRT2, out=out)


def _read_summed_normals(words: Array, out: Array) -> None:
    """(z1 + z2 + z3 + z4) / 2, standard normal again (Holohan and Braghin 2021)."""
    z = np.empty(words.shape)
    _read_normals(words, z)
    z = z.reshape(*out.shape, SUMMANDS)
    np.add(z[..., 0] + z[..., 1], z[..., 2] + z[..., 3], out=out)
    np.multiply(out, 1.0 / math.sqrt(SUMMANDS), out=out)


def _read_uniforms(words: Array, out: Array) -> None:
    """(k + 1/2) 2^-52, k the top 52 bits of each word: exact in float64, never 0 or 1."""
    np.multiply(words >> np.uint64(12), 2.0**-52, out=out)
    np.add(out, 2.0**-53, out=out)


def _read_words(words: Array, out: Array) -> None:
    """The words themselves, as bit patterns."""
    np.copyto(out.view(WORD), words)


NORMALS: Final = {
    "single": Reading(1, _read_normals),
    "summed": Reading(SUMMANDS, _read_summed_normals),
}
UNIFORMS: Final = Reading(1, _read_uniforms)
WORDS: Final = Reading(1, _read_words)


def _thresholds(probability: float | Array) -> Array:
    """floor(2^64 p), below 2^64: 2^64 p is exact, and so is what is cut off."""
    return np.minimum(np.multiply(probability, 2.0**64), 2.0**64 - 2048).astype(WORD)


def few_normals(cipher: bytes, count: int) -> Tensor:
    """The first ``count`` normals of a short cipher text, bit for bit as ``NORMALS`` reads them."""
    words = struct.unpack(f"<{len(cipher) // 8}Q", cipher)[:count]
    centred = [(word >> 11) * 2.0**-52 + (2.0**-53 - 1.0) for word in words]
    packed = bytearray(struct.pack(f"={count}d", *centred))
    return torch.frombuffer(packed, dtype=torch.float64).erfinv_().mul_(_SQRT2)


# -- the source ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class NoiseSource:
    """Normals and uniforms by address, from one 256-bit key.

    ``is_release`` says whether the key is a secret (from the operating system) or can be computed
    by anybody from a seed (a seeded run: reproducible and *not private*). ``recorder`` receives
    every range of counter blocks that is drawn.
    """

    key: bytes = field(repr=False)
    is_release: bool
    recorder: Callable[[BlockRange], None] | None = field(default=None, repr=False, compare=False)
    precision: Precision = "single"

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError(f"Expected a key of 32 bytes, got {len(self.key)}")
        if self.precision not in ("single", "summed"):
            raise ValueError(f"Expected precision 'single' or 'summed', got {self.precision!r}")

    @classmethod
    def from_seed(cls, seed: int, *, precision: Precision = "single") -> "NoiseSource":
        """The source of a seeded run, ``seed`` (0 <= seed < 2^64): reproducible, not private."""
        if not 0 <= seed < 2**64:
            raise ValueError(f"Expected 0 <= seed < 2**64, got {seed}")
        key = hashlib.sha256(b"manifed rehearsal key\0" + seed.to_bytes(8, "little")).digest()
        return cls(key, is_release=False, precision=precision)

    @classmethod
    def from_os(cls, *, precision: Precision = "single") -> "NoiseSource":
        """A release source: a fresh key of 256 bits from the operating system."""
        return cls(secrets.token_bytes(32), is_release=True, precision=precision)

    @property
    def origin(self) -> Origin:
        """Where the key came from; it travels with the source, whatever the config says."""
        return "os" if self.is_release else "seed"

    def derive(self, label: bytes) -> "NoiseSource":
        """The source whose key is HMAC-SHA256(key, label); as secret as this one.

        The one object at every call, so that its AES context is made once.
        """
        found = self._derived.get(label)
        if found is None:
            key = hmac.digest(self.key, b"manifed derive\0" + label, "sha256")
            found = self._derived[label] = replace(self, key=key)
        return found

    def normals(
        self,
        shape: tuple[int, ...],
        *,
        stream: Stream,
        partition: int | Sequence[int],
        server_round: int | range,
        attempt: int = 0,
        step: int | range = 0,
        start: int = 0,
    ) -> Tensor:
        """Standard normals, float64, of ``shape``; ``(C, *shape)`` for C partitions.

        Row c is bit for bit what the int ``partition[c]`` alone would give; rows of a range of
        rounds, which stand in front, and behind them of a range of steps, what each round and step
        alone would. ``start`` is the index of the first number at this address: ``start=s``
        continues a draw of s numbers.

        Raises:
            ValueError: for a field out of range, a repeated partition, or an odd ``start``.
        """
        reading = NORMALS[self.precision]
        if isinstance(server_round, int) and isinstance(step, int):
            address = Address(stream, server_round, attempt, step)
            return self._draw(shape, address, partition, start, reading)
        rounds = (server_round,) if isinstance(server_round, int) else server_round
        steps = (step,) if isinstance(step, int) else step
        several = [Address(stream, r, attempt, s) for r in rounds for s in steps]
        found = self._draw_several(shape, several, partition, start, reading)
        ranges = [len(each) for each in (server_round, step) if isinstance(each, range)]
        return found.reshape(*ranges, *found.shape[1:])

    def in_turn(
        self, what: Hashable, server_round: int, size: int, draw: Callable[[range], Tensor]
    ) -> Tensor:
        """``draw(range(server_round, server_round + 1))[0]``, of ``size`` numbers.

        ``what`` is all that it depends on beside the round. A seeded source that is asked for it in
        one round after another draws some rounds in one call, and hands out each of them once: a
        number depends on its address alone, so they are the same. A release draws nothing ahead:
        its key is of this turn. Nor does a source with a recorder, which hears of what is used.
        """
        most = _AHEAD // max(size, 1)
        if self.is_release or self.recorder is not None or most < 2:
            return draw(range(server_round, server_round + 1))[0]
        kept: dict[Hashable, _Ahead] = self._contexts.__dict__.setdefault("ahead", {})
        ahead = kept.get(what)
        if ahead is None or ahead.server_round != server_round:
            if len(kept) >= _KINDS_AHEAD:
                kept.clear()
            ahead = kept[what] = _Ahead(server_round, 1)
        elif not ahead.rows:
            last = (1 << BITS["server_round"]) - server_round
            ahead.count = max(1, min(2 * ahead.count, most, last))  # beyond it `draw` refuses
        if not ahead.rows:
            rounds = range(server_round, server_round + ahead.count)
            ahead.rows = list(reversed(draw(rounds).unbind(0)))
        ahead.server_round += 1
        return ahead.rows.pop()

    def uniforms(
        self,
        shape: tuple[int, ...],
        *,
        stream: Stream,
        partition: int | Sequence[int],
        server_round: int,
        attempt: int = 0,
        step: int = 0,
        start: int = 0,
    ) -> Tensor:
        """Uniforms of (0, 1), float64, odd multiples of 2^-53; shapes and errors as ``normals``."""
        address = Address(stream, server_round, attempt, step)
        return self._draw(shape, address, partition, start, UNIFORMS)

    def words(
        self,
        count: int,
        *,
        stream: Stream,
        partition: int | Sequence[int],
        server_round: int,
        attempt: int = 0,
        step: int = 0,
    ) -> Array:
        """The words of ``count`` uniforms of that address, uint64, shape (count,) or (C, count)."""
        address = Address(stream, server_round, attempt, step)
        return self._draw((count,), address, partition, 0, WORDS).numpy().view(WORD)

    def coins(
        self,
        count: int,
        probability: float | Array,
        *,
        stream: Stream,
        partition: int | Sequence[int],
        server_round: int,
        attempt: int = 0,
        step: int = 0,
    ) -> Tensor:
        """Independent coins, bool, shape (count,) or (C, count): True with that probability.

        ``probability`` is a number of [0, 1] or, where clients differ, (C, 1). A coin is True where
        its word is below floor(2^64 p): with p itself from p = 2^-12 on, else with p rounded down
        by less than 2^-64, and with 1 - 2^-53 for p = 1: never more often than stated.
        """
        address = Address(stream, server_round, attempt, step)
        if isinstance(probability, np.ndarray):
            words = self._draw((count,), address, partition, 0, WORDS).numpy().view(WORD)
            return torch.as_tensor(words < _thresholds(probability))
        below = _thresholds(probability)

        def read(words: Array, out: Array) -> None:
            np.less(words, below, out=out)

        return self._draw((count,), address, partition, 0, Reading(1, read, np.bool_))

    def edge_normals(
        self,
        shape: tuple[int, ...],
        *,
        stream: EdgeStream,
        edge: tuple[int, int] | Sequence[tuple[int, int]],
        server_round: int | range,
        attempt: int = 0,
        step: int = 0,
        start: int = 0,
    ) -> Tensor:
        """Standard normals that both ends of an edge draw alike from the source the pair shares.

        ``edge`` names two partitions in either order; E edges give ``(E, *shape)``, row e bit for
        bit what ``edge[e]`` alone would give. Float64; ``start`` and a range of rounds as in
        `normals`. No address of an edge is one of a client.

        Raises:
            ValueError: for a field out of range, ends that are one, a repeated edge, an odd start.
        """
        reading = NORMALS[self.precision]
        match edge:
            case (int(), int()):
                place = edge_place(edge)
            case _:
                place = _edge_places(tuple(edge))
        if isinstance(server_round, range):
            several = [EdgeAddress(stream, each, attempt, step) for each in server_round]
            return self._draw_several(shape, several, place, start, reading)
        address = EdgeAddress(stream, server_round, attempt, step)
        return self._draw(shape, address, place, start, reading)

    def generator(
        self, *, stream: Stream, partition: int, server_round: int = 0, attempt: int = 0
    ) -> torch.Generator:
        """A torch generator seeded at this address; for data and starting points, never noise."""
        address = Address(stream, server_round, attempt, 0)
        words = self._draw((2,), address, partition, 0, WORDS)
        generator = torch.Generator()
        generator.manual_seed(int(words.view(torch.int64)[0]) & (2**63 - 1))
        return generator

    def _draw(
        self,
        shape: tuple[int, ...],
        address: Address,
        partition: int | Sequence[int],
        start: int,
        reading: Reading,
    ) -> Tensor:
        partitions = (partition,) if isinstance(partition, int) else tuple(partition)
        count, first = math.prod(shape), reading.block(start)
        stop = first + -(-count * reading.words // 2)
        address.check(partitions, stop)
        if self.recorder is not None and count:
            for p in partitions:
                self.recorder(address.blocks(p, first, stop))
        if isinstance(partition, int):
            if 0 < count <= _FEW and reading is NORMALS["single"]:
                counters = address.counters(partition, first, stop)
                few = few_normals(self._encryptor().update(counters), count)
                return few if shape == (count,) else few.reshape(shape)
        else:
            shape = (len(partitions), *shape)
        out = np.empty((len(partitions), count), dtype=reading.dtype)
        if out.size:
            highs = np.array([address.high()], dtype=WORD)
            lows = address.lows(partitions, first)[None]
            self._fill(out[None], highs, lows, stop - first, reading)
        return torch.as_tensor(out.reshape(shape))

    def _draw_several(
        self,
        shape: tuple[int, ...],
        addresses: Sequence[Address],
        partition: int | Sequence[int],
        start: int,
        reading: Reading,
    ) -> Tensor:
        """`_draw` at every address, which stand in front, in one call."""
        if len(addresses) == 1:
            return self._draw(shape, addresses[0], partition, start, reading).unsqueeze(0)
        partitions = (partition,) if isinstance(partition, int) else tuple(partition)
        count, first = math.prod(shape), reading.block(start)
        stop = first + -(-count * reading.words // 2)
        for address in (min(addresses), max(addresses)):  # all rounds with all steps are between
            address.check(partitions, stop)
        if self.recorder is not None and count:
            for address in addresses:
                for p in partitions:
                    self.recorder(address.blocks(p, first, stop))
        out = np.empty((len(addresses), len(partitions), count), dtype=reading.dtype)
        if out.size:
            highs = np.array([address.high() for address in addresses], dtype=WORD)
            starts = np.array([address.low(0) for address in addresses], dtype=WORD)
            lows = starts[:, None] + (addresses[0].lows(partitions, first) - starts[0])
            self._fill(out, highs, lows, stop - first, reading)
        clients = () if isinstance(partition, int) else (len(partitions),)
        return torch.as_tensor(out.reshape(len(addresses), *clients, *shape))

    def _fill(
        self, out: Array, highs: Array, lows: Array, num_blocks: int, reading: Reading
    ) -> None:
        """Encrypt ``num_blocks`` counters from each of ``lows`` (A, P) on, into ``out`` (A, P, -1).

        ``highs`` (A,) are the upper halves of the counters. Tiles fit a cache: of several addresses
        where they are short, else of one after the other, on the same lower halves where they can.
        """
        size = min(_TILE_BLOCKS, lows.size * num_blocks)
        above = highs[:, None]
        if len(lows) > 1 and 2 * lows.shape[1] * num_blocks <= _TILE_BLOCKS:
            out, above = (
                out.reshape(1, lows.size, -1),
                np.repeat(highs, lows.shape[1])[None, :, None],
            )
            lows = lows.reshape(1, -1)
        counters = np.empty((size, 2), dtype=WORD)
        cipher = np.empty((size + 1, 2), dtype=WORD)  # update_into wants a block to spare
        encryptor = self._encryptor()
        for rows, columns in _tiles(lows.shape[1], num_blocks):
            height, width = rows.stop - rows.start, columns.stop - columns.start
            tile = counters[: height * width]
            low, high = (tile[:, half].reshape(height, width) for half in (0, 1))
            target = slice(columns.start * 2 // reading.words, columns.stop * 2 // reading.words)
            for i, base in enumerate(lows[:, rows]):
                if i == 0 or base[0] != lows[i - 1, rows.start]:
                    np.add(base[:, None] + np.uint64(columns.start), _INDEX[:width], out=low)
                high[...] = above[i] if above.ndim == 2 else above[i, rows]
                encryptor.update_into(tile.data.cast("B"), cipher.data.cast("B"))
                words = cipher[: height * width].reshape(height, 2 * width)
                numbers = out[i, rows, target]
                reading.read(words[:, : numbers.shape[1] * reading.words], numbers)

    def _encryptor(self) -> Any:
        """This thread's AES context (a context must not be shared between threads)."""
        contexts = self._contexts.__dict__
        if "aes" not in contexts:
            contexts["aes"] = Cipher(algorithms.AES(self.key), modes.ECB()).encryptor()
        return contexts["aes"]

    @cached_property
    def _derived(self) -> "dict[bytes, NoiseSource]":
        return {}

    @cached_property
    def _contexts(self) -> threading.local:
        return threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return NoiseSource, (self.key, self.is_release, self.recorder, self.precision)


@dataclass
class _Ahead:
    """Rounds to come of one draw, the next one last: round ``server_round``."""

    server_round: int
    count: int
    """How many the last call drew."""
    rows: list[Tensor] = field(default_factory=list[Tensor])


def _tiles(num_rows: int, num_blocks: int) -> Iterator[tuple[slice, slice]]:
    """Rows x blocks in pieces of at most _TILE_BLOCKS: many whole rows, or parts of one row."""
    height = max(1, _TILE_BLOCKS // num_blocks)
    for row in range(0, num_rows, height):
        rows = slice(row, min(row + height, num_rows))
        for column in range(0, num_blocks, _TILE_BLOCKS):
            yield rows, slice(column, min(column + _TILE_BLOCKS, num_blocks))

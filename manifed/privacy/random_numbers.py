"""Addressed random numbers: AES-256 in counter mode, read as uniforms and normals.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, Required, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from manifed.manifolds.linalg import Shape

Precision = Literal["single", "summed"]

BITS = {
    "stream": 8, "attempt": 16, "step": 24, "server_round": 24, "partition": 24, "block": 32,
}  # fmt: skip
_EDGE_BITS = {
    "stream": 8, "attempt": 16, "step": 16, "server_round": 24, "edge": 40, "block": 24,
}  # fmt: skip
"""In place of a partition stands `edge_place`."""
_Array = npt.NDArray[Any]
_WORD = np.dtype("<u8")


class Stream(IntEnum):
    """The purposes of random numbers; two purposes share no address.

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
    ROUNDING = 11
    SHARE_NOISE = 12
    PAIR_NOISE = 128
    """The first of those that both ends of an edge draw."""


# -- where a number lives -----------------------------------------------------------------------
class _Address(TypedDict, total=False):
    """Where the numbers of one or several clients, or of one edge, live.

    ``edge`` names two partitions in either order; it stands in place of ``partition``.
    """

    stream: Required[Stream]
    partition: int | Sequence[int]
    edge: tuple[int, int]
    server_round: Required[int]
    attempt: int
    step: int


def counter_of(**fields: int) -> int:
    """Returns the counter block of an address: its fields side by side, 0 where none is given.

    Raises:
        ValueError: naming the field that is out of range, its value and its bound.
    """
    bits, least = (_EDGE_BITS, 128) if "edge" in fields else (BITS, 0)
    counter = 0
    if not least <= fields["stream"] < least + 128:
        raise ValueError(
            f"Expected {least} <= stream < {least + 128} (below 128 are those of clients, from "
            f"there on those of edges), got {int(fields['stream'])}"
        )
    for name, width in bits.items():
        value = fields.get(name, 0)
        if not 0 <= value < 1 << width:
            hint = "; use another step or a smaller shape" if name == "block" else ""
            raise ValueError(f"Expected 0 <= {name} < 2**{width}, got {value}{hint}")
        counter = counter << width | value
    return counter


def edge_place(ends: tuple[int, int]) -> int:
    """Returns the number of an edge in an address, whichever end comes first.

    It is the lesser end in 20 bits, then the greater one.

    Raises:
        ValueError: for two ends that are one, or an end out of range.
    """
    lesser = min(ends)
    greater = max(ends)
    if not 0 <= lesser < greater < 1 << 20:
        raise ValueError(
            f"Expected an edge of two different partitions, 0 <= each < 2**20, got {ends}"
        )
    return lesser << 20 | greater


# -- what a word says ---------------------------------------------------------------------------
def _read_normals(words: _Array, out: _Array) -> None:
    """Phi^-1((k + 1/2) 2^-53), k the top 53 bits of each word (words are overwritten)."""
    z = out if out.flags.c_contiguous else np.empty(out.shape)
    np.right_shift(words, np.uint64(11), out=words)  # k, below 2^63: the same number with a sign
    np.multiply(words.view("<i8"), 2.0**-52, out=z)
    np.add(z, 2.0**-53 - 1.0, out=z)  # 2u - 1, exact
    tensor = torch.as_tensor(z)
    torch.erfinv(tensor, out=tensor)
    np.multiply(z, math.sqrt(2.0), out=out)


def _read_uniforms(words: _Array, out: _Array) -> None:
    """(k + 1/2) 2^-52, k the top 52 bits of each word: exact in float64, never 0 or 1."""
    np.multiply(words >> np.uint64(12), 2.0**-52, out=out)
    np.add(out, 2.0**-53, out=out)


def _read_words(words: _Array, out: _Array) -> None:
    """The words themselves, as bit patterns."""
    np.copyto(out.view(_WORD), words)


# -- the source ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class NoiseSource:
    """A source of normals and uniforms by address, from one 256-bit key.

    A key of the operating system is a secret; one of a seed can be computed by anybody (a seeded
    run: reproducible and *not private*).

    Raises:
        ValueError: for a key of another length; a draw, for a field out of range or a repeated
            partition.
    """

    key: bytes = field(repr=False)
    origin: Literal["seed", "os"]
    """Where the key came from; it travels with the source, whatever the config says."""
    precision: Precision = "single"

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError(f"Expected a key of 32 bytes, got {len(self.key)}")

    @classmethod
    def from_seed(cls, seed: int, *, precision: Precision = "single") -> "NoiseSource":
        """Makes the source of a seeded run, ``seed`` (0 <= seed < 2^64), which is not private."""
        if not 0 <= seed < 2**64:
            raise ValueError(f"Expected 0 <= seed < 2**64, got {seed}")
        key = hashlib.sha256(b"manifed rehearsal key\0" + seed.to_bytes(8, "little")).digest()
        return cls(key, origin="seed", precision=precision)

    @classmethod
    def from_os(cls, *, precision: Precision = "single") -> "NoiseSource":
        """Makes a source for releases, with a fresh 256-bit key from the operating system."""
        return cls(secrets.token_bytes(32), origin="os", precision=precision)

    def fresh(self) -> "NoiseSource":
        """Returns the source of the next update: with a new key, unless it comes from a seed."""
        return self if self.origin == "seed" else NoiseSource.from_os(precision=self.precision)

    def derive(self, label: bytes) -> "NoiseSource":
        """Makes the source whose key is HMAC-SHA256(key, label); as secret as this one."""
        return replace(self, key=hmac.digest(self.key, b"manifed derive\0" + label, "sha256"))

    def normals(self, shape: Shape, **address: Unpack[_Address]) -> Tensor:
        """Standard normals, float64, of ``shape``; ``(C, *shape)`` for C partitions.

        Row c is bit for bit what ``partition[c]`` alone would give. Both ends of an edge draw the
        same from a source that they share; no address of an edge is a client's.
        """
        if self.precision == "single":
            return self._draw(shape, _read_normals, address)
        single = replace(self, precision="single")
        one, two, three, four = single.normals((*shape, 4), **address).unbind(-1)
        return ((one + two) + (three + four)) / 2  # Holohan and Braghin 2021

    def uniforms(self, shape: Shape, **address: Unpack[_Address]) -> Tensor:
        """Uniforms of (0, 1), float64, odd multiples of 2^-53; shapes as ``normals``."""
        return self._draw(shape, _read_uniforms, address)

    def laplaces(self, shape: Shape, **address: Unpack[_Address]) -> Tensor:
        """Laplace draws of scale 1 (density exp(-|x|) / 2, variance 2), float64; as ``normals``.

        By the inverse of the distribution function of a uniform: |x| is at most 36.04. With summed
        precision z1 z2 + z3 z4 of four normals: a product of two has the characteristic function
        (1 + t^2)^(-1/2), so a sum of two has that of the Laplace law. Inverting it is a search over
        secret draws, as with summed normals.
        """
        if self.precision == "summed":
            one, two, three, four = self.normals((4, *shape), **address).unbind(-1 - len(shape))
            return one * two + three * four
        centred = self.uniforms(shape, **address) - 0.5  # exact
        return -centred.sign() * torch.log1p(-2 * centred.abs())

    def words(self, count: int, **address: Unpack[_Address]) -> _Array:
        """The words of ``count`` uniforms of that address, uint64, shape (count,) or (C, count)."""
        return self._draw((count,), _read_words, address).numpy().view(_WORD)

    def coins(self, count: int, probability: float | _Array, **address: Unpack[_Address]) -> Tensor:
        """Independent coins, bool, shape (count,) or (C, count): True with that probability.

        ``probability`` is a number of [0, 1] or, where clients differ, (C, 1). A coin is True where
        its word is below floor(2^64 p): with p itself from p = 2^-12 on, else with p rounded down
        by less than 2^-64, and with 1 - 2^-53 for p = 1: never more often than stated.
        """
        scaled = np.multiply(probability, 2.0**64)  # exact, and so is what is cut off
        bound = np.minimum(scaled, 2.0**64 - 2048).astype(_WORD)
        return torch.as_tensor(self.words(count, **address) < bound)

    def generator(self, **address: Unpack[_Address]) -> torch.Generator:
        """A torch generator seeded at this address; for data and starting points, never noise."""
        generator = torch.Generator()
        generator.manual_seed(int(self.words(2, **address)[0]) & (2**63 - 1))
        return generator

    def _draw(
        self,
        shape: Shape,
        read: Callable[[_Array, _Array], None],
        address: Mapping[str, Any],
    ) -> Tensor:
        """Numbers of clients, or of an edge: each is what ``read`` makes of one 64-bit word."""
        name, bits = ("edge", _EDGE_BITS) if "edge" in address else ("partition", BITS)
        given = edge_place(address["edge"]) if "edge" in address else address["partition"]
        is_one = isinstance(given, int)
        places = (given,) if is_one else tuple(given)
        count = math.prod(shape)
        num_blocks = -(-count // 2)
        last = max(num_blocks - 1, 0)
        place = max(places, default=0) if min(places, default=0) >= 0 else min(places)
        end = counter_of(**{**address, name: place, "block": last})
        if len(set(places)) < len(places):
            raise ValueError(f"Expected distinct partitions, got {places}: noise is never reused")
        start = end - last - (place << bits["block"])  # the counter at the place 0
        low, high = np.array([start & (1 << 64) - 1, start >> 64], dtype=_WORD)
        lows = low + (np.array(places, dtype=_WORD) << np.uint64(bits["block"]))
        out = np.empty((len(places), count))
        encryptor = Cipher(algorithms.AES(self.key), modes.ECB()).encryptor()
        width = 2 * max(1, (1 << 16) // max(1, len(places)))  # so that words take few megabytes
        for first in range(0, num_blocks if places else 0, width):
            blocks = np.arange(first, min(first + width, num_blocks), dtype=_WORD)
            counters = np.empty((len(places), len(blocks), 2), dtype=_WORD)
            counters[..., 0], counters[..., 1] = lows[:, None] + blocks, high
            words = np.empty(counters.size + 2, dtype=_WORD)  # update_into wants a block to spare
            encryptor.update_into(counters.data.cast("B"), words.data.cast("B"))
            numbers = out[:, 2 * first : 2 * (first + width)]
            read(words[:-2].reshape(len(places), -1)[:, : numbers.shape[-1]], numbers)
        lead = () if is_one else (len(places),)
        return torch.as_tensor(out.reshape(*lead, *shape))

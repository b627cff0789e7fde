"""A set of clients as short text: ranges or a bitset, whichever is shorter.

``"0-4,7,9-12"`` names clients by ranges, ``"b:"`` and base64 by bits (client i is bit i % 8 of byte
i // 8); the empty text is nobody. Members are sorted arrays of distinct int64.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Members = NDArray[np.int64]

_BITS: Final = "b:"
_RANGES: Final = re.compile(r"\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*")


def members(partitions: Iterable[int]) -> Members:
    """The distinct members in order.

    Raises:
        ValueError: for a negative one.
    """
    found = np.fromiter(partitions, dtype=np.int64)
    if not (found[1:] > found[:-1]).all():  # a cohort is drawn in order
        found = np.unique(found)
    if found.size and found[0] < 0:
        raise ValueError(f"Expected clients >= 0 in a cohort, got {found[0]}")
    return found


def encode(cohort: Members) -> str:
    """The shorter text of sorted, distinct members."""
    if not cohort.size:
        return ""
    breaks = np.flatnonzero(np.diff(cohort) != 1)
    firsts = cohort[np.concatenate(([0], breaks + 1))].tolist()
    lasts = cohort[np.concatenate((breaks, [cohort.size - 1]))].tolist()
    num_bytes = int(cohort[-1]) // 8 + 1
    if 2 * len(firsts) - 1 > len(_BITS) + 4 * ((num_bytes + 2) // 3):
        return _bitset(cohort)
    ranges = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))
    return min(ranges, _bitset(cohort), key=len)


def decode(text: str, population: int) -> Members:
    """The members that ``text`` names, all below ``population``.

    Raises:
        ValueError: for text that `encode` does not write, or a client outside the population.
    """
    if text == "":
        return np.zeros(0, dtype=np.int64)
    if text.startswith(_BITS):
        return _of_bits(text, population)
    if not _RANGES.fullmatch(text):
        raise ValueError(f"Expected a cohort like '0-4,7', got {text[:40]!r}")
    pieces: list[Members] = []
    before = -1
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        low, high = int(first), int(last or first)
        if not before < low <= high < population:
            raise ValueError(
                f"Expected a cohort in order and below {population} clients, got {text[:40]!r}"
            )
        pieces.append(np.arange(low, high + 1, dtype=np.int64))
        before = high
    return np.concatenate(pieces)


def _bitset(cohort: Members) -> str:
    bits = np.zeros(int(cohort[-1]) + 1, dtype=np.uint8)
    bits[cohort] = 1
    packed = np.packbits(bits, bitorder="little").tobytes()
    return _BITS + base64.b64encode(packed).decode("ascii")


def _of_bits(text: str, population: int) -> Members:
    try:
        data = base64.b64decode(text[len(_BITS) :], validate=True)
    except binascii.Error:
        raise ValueError(f"Expected a cohort in base64, got {text[:40]!r}") from None
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    found = np.flatnonzero(bits).astype(np.int64)
    if found.size and found[-1] >= population:
        raise ValueError(f"Expected a cohort below {population} clients, got {found[-1]}")
    return found

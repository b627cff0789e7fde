"""A set of clients as short text: ranges or a bitset, whichever is shorter.

``"0-4,7,9-12"`` names clients by ranges, ``"b:"`` and base64 by bits (client i is bit i % 8 of byte
i // 8); the empty text is nobody. Members are sorted arrays of distinct int64.
"""

import base64
import binascii
import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Members = NDArray[np.int64]


def members(partitions: Iterable[int]) -> Members:
    """The distinct members in order.

    Raises:
        ValueError: for a negative one.
    """
    found = np.unique(np.fromiter(partitions, dtype=np.int64))
    if found.size and found[0] < 0:
        raise ValueError(f"Expected clients >= 0 in a cohort, got {found[0]}")
    return found


def encode(cohort: Members) -> str:
    """The shorter text of sorted, distinct members."""
    if not cohort.size:
        return ""
    bits = np.zeros(int(cohort[-1]) + 1, dtype=np.uint8)
    bits[cohort] = 1
    packed = np.packbits(bits, bitorder="little").tobytes()
    bitset = "b:" + base64.b64encode(packed).decode("ascii")
    breaks = np.flatnonzero(np.diff(cohort) != 1)
    if 2 * breaks.size + 1 > len(bitset):
        return bitset
    firsts = cohort[np.concatenate(([0], breaks + 1))].tolist()
    lasts = cohort[np.concatenate((breaks, [cohort.size - 1]))].tolist()
    ranges = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))
    return min(ranges, bitset, key=len)


def decode(text: str, population: int) -> Members:
    """The members that ``text`` names, all below ``population``.

    Raises:
        ValueError: for text that `encode` does not write, or a client outside the population.
    """
    pieces = [np.zeros(0, dtype=np.int64)]
    if text.startswith("b:"):
        try:
            data = base64.b64decode(text[2:], validate=True)
        except binascii.Error:
            raise ValueError(f"Expected a cohort in base64, got {text[:40]!r}") from None
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        pieces.append(np.flatnonzero(bits).astype(np.int64))
    elif text and not re.fullmatch(r"\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*", text):
        raise ValueError(f"Expected a cohort like '0-4,7', got {text[:40]!r}")
    elif text:
        before = -1
        for piece in text.split(","):
            first, _, last = piece.partition("-")
            low, high = int(first), int(last or first)
            if not before < low <= high < population:
                raise ValueError(
                    f"Expected a cohort in order and of clients < {population}, got {text[:40]!r}"
                )
            pieces.append(np.arange(low, high + 1, dtype=np.int64))
            before = high
    found = np.concatenate(pieces)
    if found.size and found[-1] >= population:
        raise ValueError(f"Expected clients < {population} in a cohort, got {found[-1]}")
    return found

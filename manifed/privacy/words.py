"""How 64-bit words become numbers: the laws of the noise source.

A word w gives the uniform u = (k + 1/2) 2^-52 with k = w >> 12: odd multiples of 2^-53, never 0
or 1, symmetric about 1/2. It gives the normal z = Phi^-1((k + 1/2) 2^-53) with k = w >> 11 the
top 53 bits, evaluated as sqrt(2) erfinv(2u - 1): 2u - 1 is exact in float64, where u itself would
round to 1. Normals lie in [-8.30, 8.30].
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
SUMMANDS: Final = 4
WORD: Final = np.dtype("<u8")
_SQRT2: Final = math.sqrt(2.0)


@dataclass(frozen=True)
class Reading:
    """How 64-bit words become numbers: ``words`` of them make one."""

    words: int
    read: Callable[[Array, Array], None]

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
    np.right_shift(words, np.uint64(11), out=words)  # k
    np.multiply(words, 2.0**-52, out=z)
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


def few_normals(cipher: bytes, count: int) -> Tensor:
    """The first ``count`` normals of a short cipher text, bit for bit as ``NORMALS`` reads them."""
    words = struct.unpack(f"<{len(cipher) // 8}Q", cipher)[:count]
    centred = [(word >> 11) * 2.0**-52 + (2.0**-53 - 1.0) for word in words]
    packed = bytearray(struct.pack(f"={count}d", *centred))
    return torch.frombuffer(packed, dtype=torch.float64).erfinv_().mul_(_SQRT2)

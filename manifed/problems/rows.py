"""The products of rows that linear models are made of, each row's by itself.

A matrix product adds up the last rows of a batch in another order than the others. The last bit of
a row's score then depends on how many rows are computed with it, and where a loss or a gradient
jumps, that bit moves as much as a record can. So a score is here a dot product of its own
(`dots`), and a function of scores is computed in pieces of one shape (`in_pieces`): what a row
gives has the same bits whatever the other rows are. Sums over rows are matrix products, which may
round as they like: a bit of a sum moves the sum by a bit.

All of it meets examples of shape ``(..., n, d)`` and needs no ``(n, d)`` temporary.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from manifed.manifolds.linalg import are_plain
from manifed.problems.examples import Examples

ROUNDING_SHARE = 2.0**-12
"""Least norm, relative to its summands, that a gradient counts as where a sum in product form may
cancel: eps / ROUNDING_SHARE = 1e-12 bounds the rounding of a clipped contribution."""
SHORTEST = 1e-145
"""A shorter row counts as this long where its norm is bounded from above."""
_PIECE = 1 << 10
"""Rows of one number that are computed in one call, of `in_pieces`."""
SHARED_AMONG_THREADS = 1 << 11
"""Numbers beyond which torch may cut one call into parts for its threads."""
_ALIKE = 16
"""Numbers of a row that fill whole lines of memory, so that all rows of a stack begin alike."""
_LONG = 1 << 20
"""Numbers that a trial of dot products takes."""
_SHIFTS = (0, 1, 3)
"""Where they begin in memory, in numbers from where a processor likes them to."""
FEWEST = 32
"""Rows that fill the registers of every processor, in float32 and in float64."""


def dots(u: Tensor, v: Tensor) -> Tensor:
    """<u_j, v_j> over the last dimension, shape ``(...)``, leading dimensions broadcast.

    Each is a call of its own into the linear algebra that numpy is built with, so its bits depend
    on these two vectors alone. Where they also depend on the vectors' places in memory, the vectors
    are copied to places that are alike. Under autograd, `torch.func` or on a device it is torch's
    own product, which only simulations and references use.
    """
    if u.dtype is not v.dtype:
        wide = torch.promote_types(u.dtype, v.dtype)
        u = u.to(wide)
        v = v.to(wide)
    if not are_plain(u, v):
        return (u * v).sum(-1)
    size = u.shape[-1]
    first, second = (t.numpy() if t.stride(-1) == 1 else t.contiguous().numpy() for t in (u, v))
    if not _dots_alike(size, first.dtype):
        first, second = (pad(t, (0, -size % _ALIKE)).contiguous().numpy() for t in (u, v))
    with np.errstate(all="ignore"):  # a square may overflow, and nothing warns of it in torch
        return torch.from_numpy(np.asarray(np.vecdot(first, second)))


@cache
def _dots_alike(size: int, dtype: "np.dtype[np.generic]") -> bool:
    """Whether the same vectors at other places in memory have the same dot products."""
    generator = np.random.default_rng(0)
    count = max(2, min(FEWEST, _LONG // max(1, size)))
    rows, points = generator.standard_normal((2, count, size)).astype(dtype)
    stored = np.empty((2, count * size + FEWEST), dtype)
    right = np.array([np.vecdot(u, v) for u, v in zip(rows, points, strict=True)])
    for here, there in product(_SHIFTS, repeat=2):
        moved = stored[0, here : here + rows.size].reshape(rows.shape)
        others = stored[1, there : there + rows.size].reshape(rows.shape)
        moved[:], others[:] = rows, points
        if not (np.vecdot(moved, others) == right).all():
            return False
    return True


def row_products(rows: Tensor, x: Tensor) -> Tensor:
    """<rows_j, x> for every row, shape ``(..., n)``; rows ``(..., n, d)``, x ``(..., d)``."""
    return dots(rows, x.unsqueeze(-2))


def row_maps(rows: Tensor, matrix: Tensor) -> Tensor:
    """M rows_j for every row, shape ``(..., n, k)``; rows ``(..., n, d)``, M ``(..., k, d)``."""
    return dots(rows.unsqueeze(-2), matrix.unsqueeze(-3))


def in_pieces(function: Callable[[Tensor], Tensor], values: Tensor, ndim: int = 0) -> Tensor:
    """``function`` of every row of ``values`` (..., *row), where a row has ``ndim`` dimensions.

    The first and the last numbers of a call may go through other instructions than those between.
    So all calls have one shape, the rows that are missing are copies, and no call is large enough
    for torch to share it among threads.
    """
    if not are_plain(values):
        return function(values)
    shape = values.shape[values.dim() - ndim :]
    rows = values.reshape(-1, *shape)
    count = len(rows)
    piece = _PIECE
    while piece > FEWEST and piece * shape.numel() > SHARED_AMONG_THREADS:
        piece //= 2
    if piece * shape.numel() > SHARED_AMONG_THREADS:
        piece = 1
    blank = rows[:1] if count else rows.new_zeros(1, *shape)
    missing = -count % piece if count else piece
    filled = torch.cat([rows, blank.expand(missing, *shape)])
    made = torch.cat([function(part) for part in filled.split(piece)])[:count]
    return made.reshape(*values.shape[: values.dim() - ndim], *made.shape[1:])


def outer_combination(left: Tensor, rows: Tensor) -> Tensor:
    """sum_j rows_j left_j^T, shape ``(..., d, k)``; left ``(..., n, k)``, rows ``(..., n, d)``.

    Written as (left^T rows)^T, which reads the rows in storage order.
    """
    return torch.matmul(left.mT, rows).mT


def squared_norms(rows: Tensor) -> Tensor:
    """|rows_j|^2, shape ``(..., n)``.

    At least 1e-290, also for shorter rows, so that no norm vanishes because its square does;
    infinite for rows longer than 1e154, whose norm a clip takes for no number.
    """
    return row_lengths(rows).square()


def row_lengths(rows: Tensor) -> Tensor:
    """max(|rows_j|, 1e-145), shape ``(..., n)``; infinite where the square overflows."""
    return dots(rows, rows).sqrt().clamp_min(SHORTEST)


def sum_scaling(shard: Examples, num_examples: int | None, *keys: str) -> Examples:
    """The shard with ``keys`` times sqrt(p): means over examples become sums.

    p is ``num_examples`` where a public constant is given, else how many there are.
    """
    root = math.sqrt(num_examples or len(shard))
    scaled = {key: shard[key] * root for key in keys}
    return Examples({**shard.tensors, **scaled}, shard.feature_ndim)

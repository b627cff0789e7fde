"""Products of rows, each computed by itself, of which linear models are made.

A matrix product adds up the last rows of a batch in another order than the others. The last bit of
a row's score then depends on how many rows are computed with it, and where a loss or a gradient
jumps, that bit moves as much as a record can. So a score is here a dot product of its own
(`dots`), and a function of scores is computed in pieces of one shape (`in_pieces`): what a row
gives has the same bits whatever the other rows are. Sums over rows are matrix products, which may
round as they like: a bit of a sum moves the sum by a bit. (Written as (left^T rows)^T, they read
the rows in storage order.)

All of it meets examples of shape ``(..., n, d)`` and needs no ``(n, d)`` temporary.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad
from torch.overrides import has_torch_function_variadic

from manifed.manifolds.linalg import TINY
from manifed.problems.examples import Examples

ROUNDING_SHARE = 2.0**-12
"""Least norm, relative to its summands, that a gradient counts as where a sum in product form may
cancel: eps / ROUNDING_SHARE = 1e-12 bounds the rounding of a clipped contribution."""
SHORTEST = 1e-145
"""A shorter row counts as this long where its norm is bounded from above."""
SHARED_AMONG_THREADS = 1 << 11
"""Numbers beyond which torch may cut one call into parts for its threads."""
FEWEST = 32
"""Rows that fill the registers of every processor, in float32 and in float64."""


def dots(u: Tensor, v: Tensor) -> Tensor:
    """Returns <u_j, v_j> over the last dimension, shape ``(...)``, with broadcast.

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
    first = (u if u.stride(-1) == 1 else u.contiguous()).numpy()
    second = (v if v.stride(-1) == 1 else v.contiguous()).numpy()
    if not _dots_alike(size, first.dtype):  # rows of whole lines of memory all begin alike
        first, second = (pad(t, (0, -size % 16)).contiguous().numpy() for t in (u, v))
    with np.errstate(all="ignore"):  # a square may overflow, and nothing warns of it in torch
        return torch.from_numpy(np.asarray(np.vecdot(first, second)))


@cache
def _dots_alike(size: int, dtype: "np.dtype[np.generic]") -> bool:
    """Whether the same vectors at other places in memory have the same dot products."""
    generator = np.random.default_rng(0)
    count = max(2, min(FEWEST, 2**20 // max(1, size)))
    rows, points = generator.standard_normal((2, count, size)).astype(dtype)
    stored = np.empty((2, count * size + FEWEST), dtype)
    right = np.array([np.vecdot(u, v) for u, v in zip(rows, points, strict=True)])
    for here, there in product((0, 1, 3), repeat=2):  # numbers from where a processor likes them
        moved = stored[0, here : here + rows.size].reshape(rows.shape)
        others = stored[1, there : there + rows.size].reshape(rows.shape)
        moved[:], others[:] = rows, points
        if not (np.vecdot(moved, others) == right).all():
            return False
    return True


def are_plain(*tensors: Tensor) -> bool:
    """Whether numpy or Python may compute: numbers of one type on the CPU, whose calls none watch.

    Autograd, forward differentiation, torch.func, traces, modes and classes of their own do. Memory
    that holds the numbers with the other sign is torch's, too (``z.conj().imag``).
    """
    own: Any = Tensor  # whose dispatch a class that computes by itself, a fake tensor, replaces
    first = tensors[0].dtype
    for t in tensors:
        kind: Any = type(t)
        if (
            t.dtype is not first
            or not t.is_cpu
            or t.requires_grad
            or t.is_neg()
            or kind.__torch_dispatch__ is not own.__torch_dispatch__
        ):
            return False
    return first in TINY and not (
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
        or has_torch_function_variadic(*tensors)
        or torch.compiler.is_compiling()
    )


def row_products(rows: Tensor, x: Tensor) -> Tensor:
    """Returns <rows_j, x> of every row, shape (..., n); rows ``(..., n, d)``, x ``(..., d)``."""
    return dots(rows, x.unsqueeze(-2))


def row_maps(rows: Tensor, matrix: Tensor) -> Tensor:
    """Returns M rows_j of every row, (..., n, k); rows ``(..., n, d)``, M ``(..., k, d)``."""
    return dots(rows.unsqueeze(-2), matrix.unsqueeze(-3))


def in_pieces(function: Callable[[Tensor], Tensor], values: Tensor, ndim: int = 0) -> Tensor:
    """Applies ``function`` to every row of ``values`` (..., *row) of ``ndim`` dimensions.

    The first and the last numbers of a call may go through other instructions than those between.
    So all calls have one shape, the rows that are missing are copies, and no call is large enough
    for torch to share it among threads.
    """
    if not are_plain(values):
        return function(values)
    shape = values.shape[values.dim() - ndim :]
    rows = values.reshape(-1, *shape)
    count = len(rows)
    piece = 1024
    while piece > FEWEST and piece * shape.numel() > SHARED_AMONG_THREADS:
        piece //= 2
    if piece * shape.numel() > SHARED_AMONG_THREADS:
        piece = 1
    blank = rows[:1] if count else rows.new_zeros(1, *shape)
    missing = -count % piece if count else piece
    filled = torch.cat([rows, blank.expand(missing, *shape)])
    made = torch.cat([function(part) for part in filled.split(piece)])[:count]
    return made.reshape(*values.shape[: values.dim() - ndim], *made.shape[1:])


def squared_norms(rows: Tensor) -> Tensor:
    """Returns |rows_j|^2, shape ``(..., n)``.

    At least 1e-290, also for shorter rows, so that no norm vanishes because its square does;
    infinite for rows longer than 1e154, whose norm a clip takes for no number.
    """
    return row_lengths(rows).square()


def row_lengths(rows: Tensor) -> Tensor:
    """Returns max(|rows_j|, 1e-145), shape ``(..., n)``; infinite where the square overflows."""
    return dots(rows, rows).sqrt().clamp_min(SHORTEST)


class RowVectors(NamedTuple):
    """Gradients (..., n, m) on R^m, the norm of each computed from it alone."""

    vectors: Tensor

    @property
    def norms(self) -> Tensor:
        """Their lengths, shape ``(..., n)``."""
        return row_lengths(self.vectors)

    def sum(self, weights: Tensor) -> Tensor:
        """Returns the weighted sum, shape ``(..., m)``."""
        return torch.matmul(weights.unsqueeze(-2), self.vectors).squeeze(-2)


def sum_scaling(shard: Examples, num_examples: int | None, *keys: str) -> Examples:
    """Returns the shard with ``keys`` times sqrt(p), so that means over examples become sums.

    p is ``num_examples`` where a public constant is given, else how many there are.
    """
    root = math.sqrt(num_examples or len(shard))
    scaled = {key: shard[key] * root for key in keys}
    return Examples({**shard.tensors, **scaled}, shard.feature_ndim)

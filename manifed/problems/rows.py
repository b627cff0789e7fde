"""The products of rows that linear models are made of, each row's by itself.

A matrix product adds up the last rows of a batch in another order than the others. The last bit of
a row's score then depends on how many rows are computed with it, and where a loss or a gradient
jumps, that bit moves as much as a record can. So a score is here a dot product of its own
(`dots`), and a function of scores is computed in pieces of one shape (`in_pieces`): what a row
gives has the same bits whatever the other rows are. Sums over rows are matrix products, which may
round as they like: a bit of a sum moves the sum by a bit.

All of it meets examples of shape ``(..., n, d)`` and needs no ``(n, d)`` temporary.

Public rules for the rows of a file: each looks at one row only, so no row changes another.

Every function takes n rows and returns n rows and which of them were outside. A bound that privacy
relies on may depend on the config alone: no mean, deviation, rank or count of the file is looked
at.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from manifed.manifolds.linalg import are_plain
from manifed.problems.examples import Examples

ROUNDING_SHARE = 2.0**-12
"""Least norm, relative to its summands, that a gradient counts as where a sum in product form may
cancel: eps / ROUNDING_SHARE = 1e-12 bounds the rounding of a clipped contribution."""
SHORTEST = 1e-145
"""A shorter row counts as this long where its norm is bounded from above."""
PIECE = 1 << 10
"""Rows of one number that are computed in one call, of `in_pieces`."""
SHARED_AMONG_THREADS = 1 << 11
"""Numbers beyond which torch may cut one call into parts for its threads."""
MANY = 16
"""Numbers a row is mapped to from which products of matrices pay."""
ALIKE = 16
"""Numbers of a row that fill whole lines of memory, so that all rows of a stack begin alike."""
LONG = 1 << 20
"""Numbers that a trial of dot products takes."""
_TRIED = 4
"""Rows whose bits are compared."""
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
        u, v = u.to(wide), v.to(wide)
    if not are_plain(u, v):
        return (u * v).sum(-1)
    size = u.shape[-1]
    first, second = (t.numpy() if t.stride(-1) == 1 else t.contiguous().numpy() for t in (u, v))
    if not _dots_alike(size, first.dtype):
        first, second = (pad(t, (0, -size % ALIKE)).contiguous().numpy() for t in (u, v))
    with np.errstate(all="ignore"):  # a square may overflow, and nothing warns of it in torch
        return torch.from_numpy(np.asarray(np.vecdot(first, second)))


@cache
def _dots_alike(size: int, dtype: "np.dtype[np.generic]") -> bool:
    """Whether the same vectors at other places in memory have the same dot products."""
    generator, count = np.random.default_rng(0), max(2, min(FEWEST, LONG // max(1, size)))
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
    """M rows_j for every row, shape ``(..., n, k)``; rows ``(..., n, d)``, M ``(..., k, d)``.

    By dot products or, where k is large, by products of matrices of one shape, of `FEWEST` rows.
    """
    (k, d), is_plain = matrix.shape[-2:], are_plain(rows, matrix)
    if k < MANY or not (is_plain and _maps_rows_alike(k, d, rows.dtype, torch.get_num_threads())):
        return dots(rows.unsqueeze(-2), matrix.unsqueeze(-3))
    if rows.dim() == 2 == matrix.dim():
        made = [part @ matrix.mT for part in _filled(rows, FEWEST).split(FEWEST)]
        return torch.cat(made)[: len(rows)]
    lead = np.broadcast_shapes(rows.shape[:-2], matrix.shape[:-2])
    each = zip(
        rows.expand(*lead, *rows.shape[-2:]).flatten(0, -3),
        matrix.expand(*lead, *matrix.shape[-2:]).flatten(0, -3),
        strict=True,
    )
    made = torch.stack([row_maps(own, one) for own, one in each])
    return made.reshape(*lead, *made.shape[1:])


@cache
def _maps_rows_alike(k: int, d: int, dtype: torch.dtype, threads: int) -> bool:
    """Whether a product of `FEWEST` rows with a matrix (k, d) treats each place alike."""
    del threads  # there are so many now
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(k, d, generator=generator, dtype=dtype)
    for row in torch.randn(_TRIED, d, generator=generator, dtype=dtype):
        rows = row.expand(FEWEST, d)
        made = [_moved(rows, i) @ _moved(matrix, j).mT for i in _SHIFTS for j in _SHIFTS]
        if not all(torch.equal(one, made[0][:1].expand_as(one)) for one in made):
            return False
    return True


def _moved(values: Tensor, shift: int) -> Tensor:
    """A copy that begins so many numbers after the begin of its memory."""
    stored = values.new_empty(values.numel() + shift)[shift:].view(values.shape)
    return stored.copy_(values)


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
    count, piece = len(rows), PIECE
    while piece > FEWEST and piece * shape.numel() > SHARED_AMONG_THREADS:
        piece //= 2
    if piece * shape.numel() > SHARED_AMONG_THREADS:
        piece = 1
    made = torch.cat([function(part) for part in _filled(rows, piece).split(piece)])[:count]
    return made.reshape(*values.shape[: values.dim() - ndim], *made.shape[1:])


def _filled(rows: Tensor, piece: int) -> Tensor:
    """The rows with copies of the first one, or zeros, up to a multiple of ``piece`` above 0."""
    count = len(rows)
    missing = -count % piece if count else piece
    if not missing:
        return rows
    blank = rows[:1] if count else rows.new_zeros(1, *rows.shape[1:])
    return torch.cat([rows, blank.expand(missing, *rows.shape[1:])])


def row_combination(coefficients: Tensor, rows: Tensor) -> Tensor:
    """sum_j coefficients_j rows_j, shape ``(..., d)``; coefficients ``(..., n)``."""
    return torch.matmul(coefficients.unsqueeze(-2), rows).squeeze(-2)


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


Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_FARTHEST = 1e60
"""Largest |space| of a point of the hyperboloid: no record is larger."""


def directions(rows: Array) -> tuple[Array, Array]:
    """Rows (n, d) over their lengths, and |row|, (n,): rows of length 1 for any finite row but 0.

    In two steps, so that no square, sum or quotient overflows or vanishes; |row| may be infinite.
    What is NaN counts as zero in the length, and stays.
    """
    with np.errstate(over="ignore"):
        seen = np.abs(np.nan_to_num(rows, nan=0.0))
        largest = seen.max(axis=-1, initial=0.0)
        scale = np.where(largest > 0, largest, 1.0)
        ratio = np.sqrt(np.square(seen / scale[:, None]).sum(-1))
        ratio = np.where(largest > 0, ratio, 1.0)
        return rows / scale[:, None] / ratio[:, None], largest * ratio


def shortened(rows: Array, largest: float) -> tuple[Array, Flags]:
    """Rows (n, d) longer than ``largest`` scaled down to it."""
    unit, length = directions(rows)
    is_long = length > largest * (1 + 1e-12)
    return np.where(is_long[:, None], unit * largest, rows), is_long


def positive_definite(z: Array, bounds: tuple[float, float] | None) -> tuple[Array, Flags]:
    """Symmetric parts (n, m, m) with eigenvalues moved into ``bounds``.

    Without bounds they are at least 1e-9 of the largest one, which must be positive. Outside are
    matrices with an eigenvalue beyond the bounds by 1e-9 of it, or that are not symmetric to 1e-9.
    """
    symmetric = z / 2 + z.swapaxes(-1, -2) / 2
    values, vectors = np.linalg.eigh(symmetric)
    top = values[:, -1:]
    least, most = (1e-9 * np.abs(top), np.full_like(top, np.inf))
    if bounds is not None:
        least, most = np.full_like(top, bounds[0]), np.full_like(top, bounds[1])
    slack = 1e-9 * np.abs(values)
    is_outside = ((values < least - slack) | (values > most + slack) | (values <= 0)).any(-1)
    is_outside |= np.abs(z - symmetric).max((-2, -1)) > 1e-9 * np.abs(symmetric).max((-2, -1))
    made = (vectors * np.clip(values, least, most)[:, None, :]) @ vectors.swapaxes(-1, -2)
    kept = np.where(is_outside[:, None, None], (made + made.swapaxes(-1, -2)) / 2, symmetric)
    return kept, is_outside


def covariances(signals: Array, ridge: float, *, is_centred: bool) -> Array:
    """X X^T / t + ridge I of each signal X (channels, t), less its own mean over t if asked.

    Not finite where a square is not.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if is_centred:
            signals = signals - signals.mean(-1, keepdims=True)
        z = signals @ signals.swapaxes(-1, -2) / signals.shape[-1]
        return (z + z.swapaxes(-1, -2)) / 2 + ridge * np.eye(signals.shape[1])


def to_hyperboloid(rows: Array, coordinates: str, largest: float | None) -> tuple[Array, Flags]:
    """Points (n, d + 1) of the hyperboloid, and which were off it or farther out than ``largest``.

    ``rows`` are coordinates in the Poincaré ball (n, d) or on the hyperboloid (n, d + 1), time
    first; ``largest`` bounds the distance from the origin. What is outside moves along its ray.
    """
    if coordinates == "poincare":
        direction, radius = directions(rows)
        distance = 2 * np.arctanh(np.minimum(radius, 1 - 1e-9))
        is_outside = radius >= 1 - 1e-9
    else:
        direction, radius = directions(rows[:, 1:])
        distance = np.arcsinh(np.minimum(radius, _FARTHEST))
        time = np.hypot(1.0, radius)
        is_outside = ~(np.abs(rows[:, 0] - time) <= 1e-9 * time) | (radius > _FARTHEST)
    if largest is not None:
        is_outside |= distance > largest * (1 + 1e-12)
        distance = np.minimum(distance, largest)
    space = np.sinh(distance)[:, None] * direction
    return np.hstack([np.cosh(distance)[:, None], space]), is_outside

"""Public rules for the rows of a file: each looks at one row only, so no row changes another.

Every function takes n rows and returns n rows and which of them were outside. A bound that privacy
relies on may depend on the config alone: no mean, deviation, rank or count of the file is looked
at.
"""

import numpy as np
from numpy.typing import NDArray

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

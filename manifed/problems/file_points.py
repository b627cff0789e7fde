"""Points of manifolds from the numbers of a file.

Each function takes n rows and returns n rows, and says which of them lay outside of a bound. No row
changes another.
"""

import numpy as np
from numpy.typing import NDArray

from manifed.problems.file_formats import Array

_FARTHEST = 1e60
"""Largest |space| of a point of the hyperboloid: no record is larger."""


def matrices(z: Array, bounds: Array | None) -> tuple[Array, NDArray[np.bool_]]:
    """Returns symmetric parts (n, m, m) with eigenvalues moved inside ``bounds`` (low, high).

    Without bounds eigenvalues are at least 1e-9 of the largest one, which must be positive. Outside
    are matrices with an eigenvalue beyond the bounds by 1e-9 of it, or not symmetric to 1e-9.
    """
    symmetric = z / 2 + z.swapaxes(-1, -2) / 2
    values, vectors = np.linalg.eigh(symmetric)
    least, most = (1e-9 * np.abs(values[:, -1:]), np.inf) if bounds is None else bounds
    slack = 1e-9 * np.abs(values)
    is_outside = ((values < least - slack) | (values > most + slack) | (values <= 0)).any(-1)
    is_outside |= np.abs(z - symmetric).max((-2, -1)) > 1e-9 * np.abs(symmetric).max((-2, -1))
    made = (vectors * np.clip(values, least, most)[:, None, :]) @ vectors.swapaxes(-1, -2)
    inside = np.where(is_outside[:, None, None], (made + made.swapaxes(-1, -2)) / 2, symmetric)
    return inside, is_outside


def covariances(signals: Array, ridge: float, *, is_centred: bool) -> Array:
    """Returns X X^T / t + ridge I of signals X (n, channels, t), less their means over t if asked.

    Not finite where a square is not.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if is_centred:
            signals = signals - signals.mean(-1, keepdims=True)
        z = signals @ signals.swapaxes(-1, -2) / signals.shape[-1]
        return (z + z.swapaxes(-1, -2)) / 2 + ridge * np.eye(signals.shape[1])


def hyperboloid(
    rows: Array, coordinates: str, farthest: float | None
) -> tuple[Array, NDArray[np.bool_]]:
    """Returns points (n, d + 1) of the hyperboloid, at most ``farthest`` from the origin.

    ``rows`` are coordinates in the Poincaré ball (n, d) or on the hyperboloid (n, d + 1), time
    first. What is off it or farther out moves along its ray.
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
    if farthest is not None:
        is_outside |= distance > farthest * (1 + 1e-12)
        distance = np.minimum(distance, farthest)
    space = np.sinh(distance)[:, None] * direction
    return np.hstack([np.cosh(distance)[:, None], space]), is_outside


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

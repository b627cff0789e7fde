"""Gradient steps of linear models, compiled by numba (`pip install "manifed[fast]"`).

One pass over a client's rows computes score, slope, clip and sum of each row while the row is in
the processor's cache, and a client's steps follow one another while its shard is. numpy's and
torch's products read all rows of all clients once for each of these.

Guarantees: those of `manifed.oracles.sums`. What a row adds depends on the row and the point alone,
because its dot product is a loop over its own entries, whose order depends on their number alone.
Only dot products may be reordered by the compiler (``reassoc``); the clip is computed as written.
"""

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from manifed.problems.rows import SHORTEST

_Array = NDArray[Any]
_LEAST = 1e-308


@numba.njit("f8(f8[::1], f8[::1])", fastmath={"reassoc", "contract"}, cache=True)
def _dot(u: _Array, v: _Array) -> float:
    total = 0.0
    for i in range(u.shape[0]):
        total += u[i] * v[i]
    return total


@numba.njit("f8(f8[::1])", cache=True)
def _length(vector: _Array) -> float:
    return max(math.sqrt(_dot(vector, vector)), SHORTEST)


@numba.njit("f8(f8, f8)", error_model="numpy", cache=True)
def _clip_factor(norm: float, l2_norm_clip: float) -> float:
    """By what a vector of that norm is multiplied; 0 for one that is left out (`clip_factors`)."""
    if not norm < np.inf:
        return 0.0
    factor = min(1.0, l2_norm_clip / norm)
    return factor if factor >= _LEAST else 0.0


@numba.njit("f8(f8, f8, b1)", cache=True)
def _slope(score: float, response: float, is_logistic: bool) -> float:
    if is_logistic:
        return -response / (1.0 + math.exp(response * score))
    return score - response


@numba.njit("void(f8[:,::1], f8[::1])", cache=True)
def _measure(rows: _Array, lengths: _Array) -> None:
    for j in range(len(rows)):
        lengths[j] = _length(rows[j])


@numba.njit("void(f8[::1], f8, f8[::1])", cache=True)
def _add(total: _Array, factor: float, v: _Array) -> None:
    for i in range(total.shape[0]):
        total[i] += factor * v[i]


@numba.njit(
    "i8(f8[:,:,::1], f8[:,::1], f8[:,:,::1], f8[:,:,::1], f8[::1], f8[:,::1], f8[:,::1],"
    "i8, f8, f8, f8, b1)",
    error_model="numpy",
    nogil=True,
    cache=True,
)
def descend(
    rows: _Array,
    responses: _Array,
    weights: _Array,
    normals: _Array,
    stddevs: _Array,
    points: _Array,
    means: _Array,
    steps: int,
    step_size: float,
    l2_norm_clip: float,
    ridge: float,
    is_logistic: bool,
) -> int:
    """Moves ``points`` (C, d) by steps -step_size * gradient; ``means`` are the last gradients.

    Args:
        rows: features, (C, n, d).
        responses: targets or labels, (C, n).
        weights: of each row in each step, (C, steps, n), or in all of them, (C, 1, n).
        normals: (C, steps, d), or (C, 0, d) where no noise is added.
        stddevs: what the normals of each client are multiplied by, (C,).
        points: where the steps begin, and after the call where they end, (C, d).
        means: for the result, (C, d).
        steps: how many.
        step_size: of all steps.
        l2_norm_clip: bound of a gradient; infinity clips nothing and leaves nothing out.
        ridge: weight of |x|^2 / 2 in the loss.
        is_logistic: the logistic loss, else the squared one.

    Returns how many rows counted.
    """
    counted = 0
    is_clipped = l2_norm_clip < np.inf
    gradient = np.empty(points.shape[1])
    lengths = np.ones(rows.shape[1])
    for c in range(len(points)):
        if is_clipped and ridge == 0.0:
            _measure(rows[c], lengths)
        x = points[c]
        mean = means[c]
        for k in range(steps):
            mean[:] = 0.0
            for j in range(rows.shape[1]):
                weight = weights[c, k % weights.shape[1], j]
                if weight == 0.0:
                    continue
                row = rows[c, j]
                slope = _slope(_dot(row, x), responses[c, j], is_logistic)
                vector = row
                norm = abs(slope) * lengths[j]
                if ridge > 0.0:
                    for i in range(len(x)):
                        gradient[i] = slope * row[i] + ridge * x[i]
                    vector = gradient
                    slope = 1.0
                    norm = _length(gradient)
                if is_clipped:
                    weight *= _clip_factor(norm, l2_norm_clip)
                if weight > 0.0:
                    counted += 1
                    _add(mean, weight * slope, vector)
            if normals.shape[1] > 0:
                _add(mean, stddevs[c], normals[c, k])
            if step_size != 0.0:
                _add(x, -step_size, mean)
    return counted

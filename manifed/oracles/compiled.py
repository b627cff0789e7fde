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


@numba.njit(
    "void(f8[:,::1], i8[::1], f8[::1], f8[::1])", fastmath={"reassoc", "contract"}, cache=True
)
def _four_dots(rows: _Array, at: _Array, x: _Array, scores: _Array) -> None:
    """Scores of four rows, which read x once; each is summed as if it were alone."""
    first, second, third, fourth = rows[at[0]], rows[at[1]], rows[at[2]], rows[at[3]]
    a = b = c = d = 0.0
    for i in range(x.shape[0]):
        a += first[i] * x[i]
        b += second[i] * x[i]
        c += third[i] * x[i]
        d += fourth[i] * x[i]
    scores[0], scores[1], scores[2], scores[3] = a, b, c, d


@numba.njit("void(f8[::1], f8, f8[::1])", cache=True)
def _add(total: _Array, factor: float, v: _Array) -> None:
    for i in range(total.shape[0]):
        total[i] += factor * v[i]


@numba.njit("void(f8[::1], f8[::1], f8[:,::1], i8[::1])", cache=True)
def _add_four(total: _Array, factors: _Array, rows: _Array, at: _Array) -> None:
    """Adds four rows in turn, with the bits of four calls of `_add`, and reads the total once."""
    first, second, third, fourth = rows[at[0]], rows[at[1]], rows[at[2]], rows[at[3]]
    a, b, c, d = factors[0], factors[1], factors[2], factors[3]
    for i in range(total.shape[0]):
        one = total[i] + a * first[i]
        one += b * second[i]
        one += c * third[i]
        total[i] = one + d * fourth[i]


@numba.njit(
    "i8(f8[::1], f8[:,::1], f8[::1], f8[::1], i8[::1], f8[::1], f8[::1], f8, b1,"
    "i8[::1], f8[::1], f8[::1])",
    error_model="numpy",
    inline="always",
    cache=True,
)
def _add_gradients(
    mean: _Array,
    rows: _Array,
    responses: _Array,
    weights: _Array,
    drawn: _Array,
    x: _Array,
    lengths: _Array,
    l2_norm_clip: float,
    is_logistic: bool,
    at: _Array,
    scores: _Array,
    factors: _Array,
) -> int:
    """Adds what the drawn rows give, four at a time, to the mean; returns how many counted.

    A length of 0 is not known yet, and measured. The last three are scratch of four numbers each.
    """
    counted = 0
    for begin in range(0, len(drawn), 4):
        for q in range(4):  # the last row fills up what are less than four
            at[q] = drawn[min(begin + q, len(drawn) - 1)]
        _four_dots(rows, at, x, scores)
        kept = 0
        for q in range(min(4, len(drawn) - begin)):
            j: int = at[q]
            slope = _slope(scores[q], responses[j], is_logistic)
            weight = weights[j]
            if l2_norm_clip < np.inf:
                if lengths[j] == 0.0:
                    lengths[j] = _length(rows[j])
                weight *= _clip_factor(abs(slope) * lengths[j], l2_norm_clip)
            if weight > 0.0:
                factors[kept] = weight * slope
                at[kept] = j
                kept += 1
        if kept == 4:
            _add_four(mean, factors, rows, at)
        else:
            for q in range(kept):
                _add(mean, factors[q], rows[at[q]])
        counted += kept
    return counted


@numba.njit(
    "i8(f8[::1], f8[:,::1], f8[::1], f8[::1], i8[::1], f8[::1], f8, f8, b1, f8[::1])",
    error_model="numpy",
    cache=True,
)
def _add_penalised(
    mean: _Array,
    rows: _Array,
    responses: _Array,
    weights: _Array,
    drawn: _Array,
    x: _Array,
    ridge: float,
    l2_norm_clip: float,
    is_logistic: bool,
    gradient: _Array,
) -> int:
    """The same with a ridge, of which each row's gradient has its part; the last is scratch."""
    counted = 0
    for q in range(len(drawn)):
        j: int = drawn[q]
        slope = _slope(_dot(rows[j], x), responses[j], is_logistic)
        for i in range(len(x)):
            gradient[i] = slope * rows[j, i] + ridge * x[i]
        weight = weights[j]
        if l2_norm_clip < np.inf:
            weight *= _clip_factor(_length(gradient), l2_norm_clip)
        if weight > 0.0:
            _add(mean, weight, gradient)
            counted += 1
    return counted


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
    gradient = np.empty(points.shape[1])
    lengths = np.empty(rows.shape[1])
    drawn = np.empty(rows.shape[1], np.int64)
    at, scores, factors = np.empty(4, np.int64), np.empty(4), np.empty(4)
    for c in range(len(points)):
        x = points[c]
        mean = means[c]
        lengths[:] = 0.0
        for k in range(steps):
            mean[:] = 0.0
            due = weights[c, k % weights.shape[1]]
            count = 0
            for j in range(len(due)):
                if due[j] != 0.0:
                    drawn[count] = j
                    count += 1
            if ridge > 0.0:
                counted += _add_penalised(
                    mean, rows[c], responses[c], due, drawn[:count], x, ridge, l2_norm_clip,
                    is_logistic, gradient,
                )  # fmt: skip
            else:
                counted += _add_gradients(
                    mean, rows[c], responses[c], due, drawn[:count], x, lengths, l2_norm_clip,
                    is_logistic, at, scores, factors,
                )  # fmt: skip
            if normals.shape[1] > 0:
                _add(mean, stddevs[c], normals[c, k])
            if step_size != 0.0:
                _add(x, -step_size, mean)
    return counted

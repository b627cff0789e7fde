"""Discrete Gaussian noise on the integers: its sampler, and how far sums of it are from a Gaussian.

N_Z(0, v) is the law on the integers with P(k) proportional to exp(-k^2 / (2 v)). Nodes that hide a
sum add integer shares of it, so the noise has no low bits of a float in which a value could be read
(Mironov 2012).

Sampler. Up to v = 2^20 a draw inverts a table of the distribution function: 64 random bits are
compared with thresholds of 192 bits, cut at 14 standard deviations. In 2^-49 of the draws or fewer
they do not decide, and 128 more do. The table's law is within 2^-135 of N_Z(0, v) in total
variation: that is not exact, and it is what a price adds to delta for each draw and level. A larger
v is split exactly into v = v_0 + 2^16 v_1 with v_0 in [640^2, 640^2 + 2^16) and v_1 >= 9, and x =
x_0 + 2^8 x_1; v_1 may be split again. Lemma 1 bounds what a split changes.

How long a draw takes depends on what is drawn only through caches, numpy's binary search, and the
draws that need more bits.

Write e(r^2) = 2 sum_{j >= 1} exp(-2 pi^2 r^2 j^2). By Poisson summation, sum_k exp(-(k - w)^2 /
(2 r^2)) is sqrt(2 pi r^2) (1 + t) with |t| <= e(r^2) for every real w. Two facts follow.

Lemma 1. Let r^2 = a b / (a + b). The laws of N_Z(0, a) + N_Z(0, b) and of N_Z(0, a + b) differ
pointwise by a factor in [1/f, f], where f = (1 + e(r^2)) / (1 - e(r^2)). For the sum's probability
of y is exp(-y^2 / (2 (a + b))) sum_x exp(-(x - a y / (a + b))^2 / (2 r^2)), up to a constant.
A sum of shares costs log f for each of them.

Theorem (price). Integer vectors under the noise N_Z(0, s^2) in each of d coordinates, s^2 > r^2,
are a post-processing of the Gaussian mechanism with variance s^2 - r^2, up to a pointwise factor
exp(+-d log f). The post-processing draws y_j from N_Z centred at the Gaussian
output w_j, with variance r^2: P(y) is proportional to int N(w; 0, s^2 - r^2) exp(-(y - w)^2 / (2
r^2)) / S(w) dw, where S(w) is the sum above, and the integral without S is exp(-y^2 / (2 s^2)) up
to a constant. So every bound for Gaussian mechanisms holds at variance s^2 - `SMOOTHING`, sampled
and composed ones too; at variance s^2 it does not.

Sources: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy" (2020), for
the law; Peikert, "An efficient and parallel Gaussian sampler for lattices" (2010), for the sums.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Words = Callable[[int, int], NDArray[np.uint64]]
"""``words(count, step)`` gives fresh uniform words of 64 bits; another step gives other words."""

SMOOTHING = 4
"""The r^2 of the theorem: the variance that a price takes off."""
_LEAST = 16
"""Variance below which sums of shares are not one discrete Gaussian to 1e-67."""
_MOST = 2**100
"""Variance whose draws are far inside int64."""
_ONE_TABLE = 2**20
_LOWEST = 640**2
_FIXED = 320
"""Fraction bits of weights; the recurrence loses 44 of them at most, a threshold needs 192."""


def draw(variance: int, count: int, words: Words) -> NDArray[np.int64]:
    """Draws ``count`` independent integers of the law N_Z(0, variance).

    The steps 0 to 2 len(levels(variance)) - 1 of ``words`` are used. A draw depends on the words at
    its own place alone.

    Raises:
        ValueError: unless 16 <= variance <= 2^100.
    """
    total = np.zeros(count, dtype=np.int64)
    for place, level in enumerate(levels(variance)):
        total += _draw_level(level, count, words, 2 * place) << 8 * place
    return total


def levels(variance: int) -> tuple[int, ...]:
    """Returns the variances v_i, lowest first, of the integers x_i that are drawn for one number.

    The number is the sum of 2^(8 i) x_i, and ``variance`` the sum of 2^(16 i) v_i exactly.

    Raises:
        ValueError: unless 16 <= variance <= 2^100.
    """
    if not _LEAST <= variance <= _MOST:
        raise ValueError(
            f"variance: expected {_LEAST} to 2**100 (noise in integers), got {variance}; take "
            "a larger or smaller noise multiplier"
        )
    found: tuple[int, ...] = ()
    while variance > _ONE_TABLE:
        found += (_LOWEST + (variance - _LOWEST) % 2**16,)
        variance = (variance - found[-1]) >> 16
    return (*found, variance)


def _draw_level(variance: int, count: int, words: Words, step: int) -> NDArray[np.int64]:
    """Draws from one table; words that equal the top of a threshold ask for those of step + 1."""
    tops, thresholds = _table(variance)
    high = words(count, step)
    found = np.searchsorted(tops, high, side="right")
    undecided = np.flatnonzero(tops[found - 1] == high)
    if undecided.size:
        low = words(2 * count, step + 1)
        for i in undecided.tolist():
            bits = int(high[i]) << 128 | int(low[2 * i]) << 64 | int(low[2 * i + 1])
            found[i] = bisect_right(thresholds, bits)
    return found - len(thresholds) // 2


@lru_cache(maxsize=24)
def _table(variance: int) -> tuple[NDArray[np.uint64], tuple[int, ...]]:
    """Returns 2^192 P(x <= k), rounded down, for k from -h to h - 1, and the top 64 bits of each.

    A weight exp(-k^2 / (2 v)) is the one before times a ratio, and ratios are geometric.
    """
    most = math.isqrt(196 * variance) + 1
    with localcontext() as context:
        context.prec = 120
        ratio = int((Decimal(-1) / (2 * variance)).exp() * 2**_FIXED)
    square = ratio * ratio >> _FIXED
    weights = [1 << _FIXED]
    for _ in range(most):
        weights.append(weights[-1] * ratio >> _FIXED)
        ratio = ratio * square >> _FIXED
    total = 2 * sum(weights) - weights[0]
    sums = accumulate(weights[:0:-1] + weights[:-1])
    thresholds = tuple((one << 192) // total for one in sums)
    return np.array([one >> 128 for one in thresholds], dtype=np.uint64), thresholds

"""The privacy loss of one release on a grid, rounded pessimistically by connecting the dots.

Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Algorithm 1, in the form that keeps the mass
P and Q of every grid cell. With z the noise multiplier and q the sampling probability, the pair is
``(1 - q) N(0, z^2) + q N(1, z^2)`` against ``N(0, z^2)`` when an example is removed, and the
reverse when one is added (Zhu, Dong, Wang 2022).
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np

from manifed.privacy.loss_distribution import LARGEST_LOSS, Loss, LossPmf
from manifed.privacy.normal_law import Array, cdf

_REACH: Final = 8.9
"""Standard deviations kept of a Gaussian: what lies above, < 3e-19, is an infinite loss."""


@lru_cache(maxsize=16)
def gaussian_loss(noise_multiplier: float, sampling_probability: float, interval: float) -> Loss:
    """One Gaussian release of Poisson-sampled units under add-or-remove (probability 1: of all)."""
    z, q = noise_multiplier, sampling_probability
    remove = _removed(z, q, interval)
    return Loss(remove, remove if q == 1 else _added(z, q, interval))


@lru_cache(maxsize=16)
def laplace_loss(noise_multiplier: float, interval: float) -> Loss:
    """One Laplace release: Lap(0, b) against Lap(1, b), the same in both directions.

    The loss is (|x - 1| - |x|) / b: an atom at either end, +-1/b, and an exponential in between.
    """
    end = 1 / noise_multiplier
    points = _grid(interval, -end, end)
    low = np.maximum(points[:-1] * interval, -end)
    high = np.minimum(points[1:] * interval, end)
    upper = 0.5 * np.exp((low - end) / 2) * np.expm1((high - low) / 2)
    lower = 0.5 * np.exp(-(end + low) / 2) * -np.expm1((low - high) / 2)
    upper[[0, -1]] += 0.5 * math.exp(-end), 0.5
    lower[[0, -1]] += 0.5, 0.5 * math.exp(-end)
    pmf = _split(interval, points, upper, lower)
    return Loss(pmf, pmf)


def guarantee_loss(epsilon: float, delta: float) -> Loss:
    """The worst loss of any (epsilon, delta)-private release (Kairouz, Oh, Viswanath 2015)."""
    share = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    pmf = LossPmf(epsilon, -1, np.array([1.0 - delta - share, 0.0, share]), delta)
    return Loss(pmf, pmf)


def _removed(z: float, q: float, interval: float) -> LossPmf:
    """Upper distribution: the mixture; the loss rises with x."""
    top = min(_REACH * z + 1.0, float(_place(np.array([LARGEST_LOSS]), z, q)[0]))
    lowest = max(_loss(-_REACH * z, z, q), -LARGEST_LOSS)
    points = _grid(interval, lowest, _loss(top, z, q))
    cuts = np.minimum(_place(points * interval, z, q), top)
    cuts[-1] = top
    null, shifted = _masses(cuts / z), _masses((cuts - 1) / z)
    pmf = _split(interval, points, (1 - q) * null + q * shifted, null)
    below = (1 - q) * _cdf(cuts[0] / z) + q * _cdf((cuts[0] - 1) / z)
    above = (1 - q) * _cdf(-top / z) + q * _cdf(-(top - 1) / z)
    return _with_tails(pmf, below, above)


def _added(z: float, q: float, interval: float) -> LossPmf:
    """Upper distribution: N(0, z^2); the loss falls with x, from at most -log(1 - q)."""
    lowest = max(-_loss(_REACH * z, z, q), -LARGEST_LOSS)
    points = _grid(interval, lowest, min(-_loss(-_REACH * z, z, q), LARGEST_LOSS))
    cuts = _place(-points * interval, z, q)[::-1]
    null, shifted = _masses(cuts / z)[::-1], _masses((cuts - 1) / z)[::-1]
    pmf = _split(interval, points, null, (1 - q) * null + q * shifted)
    return _with_tails(pmf, _cdf(-cuts[-1] / z), _cdf(cuts[0] / z))


def _loss(x: float, z: float, q: float) -> float:
    """log(1 - q + q exp((x - 1/2) / z^2)): the loss of the mixture against N(0, z^2) at x."""
    exponent = (x - 0.5) / z**2
    if q == 1 or exponent > 700:
        return math.log(q) + exponent
    return math.log1p(q * math.expm1(exponent))


def _place(losses: Array, z: float, q: float) -> Array:
    """The x of a loss, its inverse; -inf at or below log(1 - q)."""
    if q == 1:
        return z**2 * losses + 0.5
    with np.errstate(divide="ignore"):
        return z**2 * np.log1p(np.maximum(np.expm1(losses) / q, -1.0)) + 0.5


def _cdf(x: float) -> float:
    return float(cdf(np.asarray(x)))


def _grid(interval: float, lowest: float, highest: float) -> Array:
    """Grid points from the one at or below ``lowest`` to the one at or above ``highest``."""
    first, last = math.floor(lowest / interval), math.ceil(highest / interval)
    return np.arange(first, max(last, first + 1) + 1, dtype=np.float64)


def _masses(cuts: Array) -> Array:
    """Standard normal masses between consecutive cuts, accurate in both tails."""
    left, right = cuts[:-1], cuts[1:]
    return np.where(left > 0, cdf(-left) - cdf(-right), cdf(right) - cdf(left))


def _split(interval: float, points: Array, upper: Array, lower: Array) -> LossPmf:
    """Connect the dots: each cell's masses (upper P, lower Q) go to its two ends.

    The end at l + h takes b = (P - e^l Q) / (1 - e^-h) and the end at l takes P - b, which keeps
    both P and Q of the cell and so the hockey-stick curve at every grid point.
    """
    high = (upper - np.exp(points[:-1] * interval) * lower) / -math.expm1(-interval)
    high = np.clip(high, 0.0, upper)
    masses = np.zeros(len(points))
    masses[1:] += high
    masses[:-1] += upper - high
    return LossPmf(interval, int(points[0]), masses, 0.0)


def _with_tails(pmf: LossPmf, below: float, above: float) -> LossPmf:
    """The mass below the grid moved up to its lowest point, the mass above it to infinity."""
    masses = pmf.masses.copy()
    masses[0] += below
    return LossPmf(pmf.interval, pmf.lowest, masses, above)

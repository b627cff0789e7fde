r"""Rényi bounds by dp-accounting: for sampling without replacement, and beyond a grid's range.

Mironov (2017); conversion by Canonne, Kamath, Steinke (2020), Proposition 12. For uniform subsets
under replace-one: Wang, Balle, Kasiviswanathan (2019), "Subsampled Rényi differential privacy and
analytical moments accountant", Theorem 27. With q the share of the subset, z the noise multiplier
and r the likelihood ratio of N(1, z^2) to N(0, z^2), the order a costs

    (a - 1) D(a) = log(1 + sum_{j=2}^{a} C(a, j) q^j T_j),
    T_2 = min(4 (e^{1/z^2} - 1), 2 e^{1/z^2}),
    T_j = min(4 sqrt(B(2 floor(j/2)) B(2 ceil(j/2))), 2 e^{j (j - 1) / (2 z^2)}),

with B(l) = E|r - 1|^l. dp-accounting evaluates B by differences of order l, one order at a time;
here B is an integral of two log-concave peaks, which the trapezoid rule takes to 1e-7 (a margin
that is added). log B(l) and (a - 1) D(a) are convex: between the powers and orders that are
computed they are interpolated, upwards.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from manifed.privacy.composition import Composition
from manifed.privacy.loss import Array, special

_STEP = 0.25
_REACH = 9.0
_MARGIN = 1e-7
_EVERY = 64
"""Up to this power every even one is computed, beyond it one in fifty."""


def curve(releases: Composition) -> Array:
    """Returns upper bounds of the Rényi divergences at `_orders`; infinite where unstable."""
    total = np.zeros(len(_orders()))
    if releases.mu > 0:
        total = total + releases.mu**2 / 2 * _orders()
    for z, q, count in releases.poisson:
        total = total + count * _poisson(z, q)
    for z, count in releases.laplace:
        total = total + count * _laplace(z)
    for z, size, population, count in releases.without_replacement:
        total = total + count * _without_replacement(z, size, population)
    return total


def _laplace(z: float) -> Array:
    """Divergences of one Laplace release (Mironov 2017, Proposition 6)."""
    a = _orders()
    one = (a - 1) / z + np.log(a / (2 * a - 1))
    other = np.log((a - 1) / (2 * a - 1)) - a / z
    return np.minimum(np.logaddexp(one, other) / (a - 1), 1 / z)


def mixed(divergences: Array, probability: float) -> Array:
    """Returns the divergences of a release made with ``probability``, its happening revealed.

    The Rényi moment of the pair (coin, output) is the average 1 - p + p exp((a - 1) D).
    """
    a = _orders()
    exponent = (a - 1) * divergences
    large = np.minimum(exponent, 700.0)
    log_moment = np.where(
        exponent < 700.0,
        np.log1p(probability * np.expm1(large)),
        exponent + np.log(probability) if probability > 0 else 0.0,
    )
    return np.where(exponent == 0.0, 0.0, log_moment / (a - 1))


def epsilon(divergences: Array, delta: float) -> float:
    """Returns the least epsilon over the orders."""
    is_finite = np.isfinite(divergences)
    if not is_finite.any():
        return np.inf
    # below 1e-15 dp-accounting's conversions leave float64
    found = np.maximum(divergences[is_finite], 1e-15)
    return float(_dp_rdp().compute_epsilon(_orders()[is_finite], found, delta)[0])


@lru_cache(maxsize=1)
def _orders() -> Array:
    """dp-accounting's default orders, its octaves above 64 in steps of an eighth."""
    octaves = np.round(np.geomspace(64.0, 2048.0, 41))
    return np.union1d(np.asarray(_dp_rdp().DEFAULT_RDP_ORDERS, dtype=np.float64), octaves)


@lru_cache(maxsize=256)
def _poisson(z: float, q: float) -> Array:
    """Divergences of one Poisson-sampled Gaussian, at most those of the Gaussian itself.

    Sampling never adds divergence (quasi-convexity). A failure, or a divergence that is negative
    or NaN, is numerical and gives no bound of its own.
    """
    import dp_accounting

    unsampled = _orders() / (2 * z * z)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = _dp_rdp().RdpAccountant(_orders(), relation)
    try:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)))
    except (ValueError, OverflowError):
        return unsampled
    found = np.asarray(accountant.rdp, dtype=np.float64)
    return np.minimum(np.where(found > 0, found, np.inf), unsampled)


@lru_cache(maxsize=256)
def _without_replacement(z: float, sample_size: int, population: int) -> Array:
    """Divergences of a Gaussian over subsets, at most those of the Gaussian itself."""
    subset = subset_divergences(z, sample_size, population, _orders())
    return np.minimum(subset, _orders() / (2 * z * z))


def _dp_rdp() -> Any:
    """dp-accounting's Rényi module, imported when first needed (start-up time)."""
    from dp_accounting.rdp import rdp_privacy_accountant as accountant

    return accountant


# -- uniform subsets -----------------------------------------------------------------------------
def subset_divergences(z: float, sample_size: int, population: int, orders: Array) -> Array:
    """Returns upper bounds D(a) for orders a > 1, of their shape; infinite where it overflows.

    z > 0 is the noise multiplier; 1 <= sample_size <= population.
    """
    z = min(z, 1e100)  # whose square is finite; less noise, so still a bound
    if sample_size == population:
        return orders / (2 * z**2)
    below = np.floor(orders)
    above = np.ceil(orders)
    needed = np.unique(np.concatenate([below, above]))
    moments = _log_moments(z, sample_size / population, needed)
    low, high = (moments[np.searchsorted(needed, side)] for side in (below, above))
    return (low + (orders - below) * (high - low)) / (orders - 1)


def _log_moments(z: float, q: float, orders: Array) -> Array:
    """(a - 1) D(a) = log(1 + sum_j C(a, j) q^j T_j) at integers a >= 1, increasing."""
    largest = max(int(orders[-1]), 2)
    a = orders[:, None]
    j = np.arange(2, largest + 1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        left = special.gammaln(np.maximum(a - j, 0.0) + 1)
        binomials: Array = special.gammaln(a + 1) - special.gammaln(j + 1) - left
    total = np.where(j <= a, binomials, -np.inf) + (j * math.log(q) + _log_terms(z, j))
    top = np.maximum(total.max(1), 0.0)
    rest: Array = np.exp(total - top[:, None]).sum(1)
    return np.where(top > 0, top + np.log(rest + np.exp(-top)), np.log1p(rest)) * (1 + _MARGIN)


def _log_terms(z: float, j: Array) -> Array:
    """Log T_j for j = 2, 3, ..."""
    simple = math.log(2) + j * (j - 1) / (2 * z**2)
    even = _log_even_moments(z, int(j[-1]) // 2 + 1)
    lower, upper = (k.astype(np.int64) // 2 for k in (j, j + 1))
    differences = math.log(4) + (even[lower - 1] + even[upper - 1]) / 2
    return np.minimum(simple, differences)


def _log_even_moments(z: float, count: int) -> Array:
    """Log B(2) = log(e^(1/z^2) - 1), log B(4), ..., log B(2 count)."""
    second = z**-2 + math.log(-math.expm1(-(z**-2)))
    powers = _nodes(count)
    both = np.logaddexp(*(_log_side(z, powers, is_above=one) for one in (True, False)))
    found = np.concatenate([[second], both]) + _MARGIN
    return np.interp(2.0 * np.arange(1, count + 1), np.concatenate([[2.0], powers]), found)


def _nodes(count: int) -> Array:
    """The powers 4, 6, ... at which B is computed; the last is 2 count or more."""
    last = max(2 * count, 4)
    fine = np.arange(4, min(last, _EVERY) + 1, 2)
    coarse = 2 * np.ceil(np.geomspace(_EVERY, max(last, _EVERY), 200) / 2)
    return np.unique(np.concatenate([fine, coarse[coarse <= last + 1], [last]])).astype(np.float64)


def _log_side(z: float, powers: Array, *, is_above: bool) -> Array:
    """Log of the integral of phi(y) |r(y) - 1|^l over one side of r = 1.

    Its peak is found by bisection.
    """
    if is_above:
        low = np.full_like(powers, 0.5 / z)
        high = 2 * powers / z + 2 * np.sqrt(powers) + 1 / z
    else:
        low = -np.sqrt(powers) - 1.0
        high = np.zeros_like(powers)
    for _ in range(25):
        y = (low + high) / 2
        # of log phi + l log|r - 1|; exp overflows above 700
        slope = powers / z / -np.expm1(np.minimum(0.5 / z**2 - y / z, 700)) - y
        low = np.where(slope > 0, y, low)
        high = np.where(slope > 0, high, y)
    y = ((low + high) / 2)[:, None] + np.arange(-_REACH, _REACH + _STEP, _STEP)
    loss = y / z - 0.5 / z**2
    is_inside = loss > 0 if is_above else loss < 0
    size = np.where(is_inside, np.abs(loss), 1.0)
    log_change = np.log(-np.expm1(-size)) + (size if is_above else 0.0)
    value = np.where(is_inside, powers[:, None] * log_change - y**2 / 2, -np.inf)
    top = value.max(1)
    return top + np.log(np.exp(value - top[:, None]).sum(1) * _STEP / math.sqrt(2 * math.pi))

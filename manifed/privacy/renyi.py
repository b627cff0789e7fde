"""Rényi bounds: for sampling without replacement, and where a grid ends (by dp-accounting).

Mironov (2017); Wang, Balle, Kasiviswanathan (2019), Theorem 27, for uniform subsets under
replace-one (manifed/privacy/subset_divergence.py); conversion by Canonne, Kamath, Steinke (2020),
Proposition 12.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from manifed.privacy.composition import Composition
from manifed.privacy.normal_law import Array
from manifed.privacy.subset_divergence import subset_divergences


def curve(releases: Composition) -> Array:
    """The Rényi divergences at `orders`, an upper bound for each; infinite where unstable."""
    total = np.zeros(len(orders()))
    if releases.mu > 0:
        total = total + releases.mu**2 / 2 * orders()
    for z, q, count in releases.poisson:
        total = total + count * _poisson(z, q)
    for z, count in releases.laplace:
        total = total + count * laplace(z)
    for z, size, population, count in releases.without_replacement:
        total = total + count * _without_replacement(z, size, population)
    return total


def laplace(z: float) -> Array:
    """Those of one Laplace release (Mironov 2017, Proposition 6)."""
    a = orders()
    one, other = (a - 1) / z + np.log(a / (2 * a - 1)), np.log((a - 1) / (2 * a - 1)) - a / z
    return np.minimum(np.logaddexp(one, other) / (a - 1), 1 / z)


def mixed(divergences: Array, probability: float) -> Array:
    """Those of the release made with ``probability``, its happening revealed.

    The Rényi moment of the pair (coin, output) is the average 1 - p + p exp((a - 1) D).
    """
    a = orders()
    exponent = (a - 1) * divergences
    large = np.minimum(exponent, 700.0)
    log_moment = np.where(
        exponent < 700.0,
        np.log1p(probability * np.expm1(large)),
        exponent + np.log(probability) if probability > 0 else 0.0,
    )
    return np.where(exponent == 0.0, 0.0, log_moment / (a - 1))


def epsilon(divergences: Array, delta: float) -> float:
    """The least epsilon over the orders."""
    if not np.isfinite(divergences).any():
        return np.inf
    return float(_dp_rdp().compute_epsilon(*_finite(divergences), delta)[0])


def delta(divergences: Array, epsilon_: float) -> float:
    """The least delta over the orders."""
    if not np.isfinite(divergences).any():
        return 1.0
    return float(_dp_rdp().compute_delta(*_finite(divergences), epsilon_)[0])


@lru_cache(maxsize=1)
def orders() -> Array:
    """dp-accounting's default orders, its octaves above 64 in steps of an eighth."""
    octaves = np.round(np.geomspace(64.0, 2048.0, 41))
    return np.union1d(np.asarray(_dp_rdp().DEFAULT_RDP_ORDERS, dtype=np.float64), octaves)


def _finite(divergences: Array) -> tuple[Array, Array]:
    """Orders with a bound; below 1e-15 dp-accounting's conversions leave float64, so not below."""
    is_finite = np.isfinite(divergences)
    return orders()[is_finite], np.maximum(divergences[is_finite], 1e-15)


@lru_cache(maxsize=256)
def _poisson(z: float, q: float) -> Array:
    import dp_accounting

    return _priced(
        z,
        lambda gaussian: dp_accounting.PoissonSampledDpEvent(q, gaussian),
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


@lru_cache(maxsize=256)
def _without_replacement(z: float, sample_size: int, population: int) -> Array:
    """The divergences of a Gaussian over subsets, at most those of the Gaussian itself."""
    subset = subset_divergences(z, sample_size, population, orders())
    return np.minimum(subset, orders() / (2 * z * z))


def _priced(z: float, sampled: Callable[[Any], Any], relation: Any) -> Array:
    """The divergences of one sampled Gaussian, at most those of the Gaussian itself.

    Sampling never adds divergence (quasi-convexity). A failure, or a divergence that is negative
    or NaN, is numerical and gives no bound of its own.
    """
    import dp_accounting

    unsampled = orders() / (2 * z * z)
    accountant = _dp_rdp().RdpAccountant(orders(), relation)
    try:
        accountant.compose(sampled(dp_accounting.GaussianDpEvent(z)))
    except (ValueError, OverflowError):
        return unsampled
    found = np.asarray(accountant.rdp, dtype=np.float64)
    return np.minimum(np.where(found > 0, found, np.inf), unsampled)


def _dp_rdp() -> Any:
    """dp-accounting's Rényi module, imported when first needed (start-up time)."""
    from dp_accounting.rdp import (
        rdp_privacy_accountant as accountant,
    )

    return accountant

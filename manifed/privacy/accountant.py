"""Prices releases: the (epsilon, delta) curve of whatever the events say was released.

========================= ===================== ================================================
sampling of the releases  neighbouring relation bound
========================= ===================== ================================================
unsampled Gaussian        either                exact: Gaussian differential privacy
Laplace (and unsampled)   either                privacy loss distribution, rounded up; Rényi
                                                where more than 32 scales differ; pure
                                                epsilon where it is all
Poisson (and these)       add-or-remove         privacy loss distribution, rounded up; where all
                                                rates are below 1e-6 Rényi, at most the price
                                                of taking everybody
without replacement       replace-one           Rényi (Wang, Balle, Kasiviswanathan 2019),
(and these unsampled)                           at most the price of taking everybody
anything else             --                    refused: `NoValidBound`
========================= ===================== ================================================

>>> from manifed.privacy.events import PoissonSampled, Release, Unsampled
>>> step = Release(
...     unit="example", neighboring_relation="add-or-remove", noise_multiplier=1.0,
...     sampling=PoissonSampled(sampling_probability=0.01), count=1000)
>>> round(epsilon([step], 1e-5), 3)
1.828
>>> round(epsilon([step.model_copy(update={"sampling": Unsampled()})], 1e-5), 1)
633.9

Guarantees: a price is an upper bound and monotone in the releases; noise multiplier 0 costs an
infinite epsilon, and nothing released costs 0.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from manifed.privacy import gaussian, renyi
from manifed.privacy.composition import Composition, NoValidBound, compose, grid_interval
from manifed.privacy.events import Release
from manifed.privacy.loss import Loss

__all__ = ["NoValidBound", "epsilon"]
_MOST_LAPLACE: Final = 32
"""Different Laplace releases that are put on a grid; more are priced by their Rényi divergences."""


def epsilon(releases: Iterable[Release], delta: float) -> float:
    """The least epsilon known to hold at ``delta`` for all releases together.

    Raises:
        NoValidBound: when no theorem covers the combination.
        ValueError: unless 0 <= delta <= 1.
    """
    if not 0 <= delta <= 1:
        raise ValueError(f"Expected 0 <= delta <= 1, got {delta}")
    return _price(compose(releases), delta)


@lru_cache(maxsize=1 << 14)
def _price(total: Composition, delta: float) -> float:
    if total.is_gaussian:
        return gaussian.epsilon(delta, mu=total.mu)
    if delta in (0, 1):
        return 0.0 if delta == 1 else total.pure_epsilon
    if total.mu == math.inf:
        return math.inf
    if total.without_replacement or total.is_rare:
        return min(_by_renyi(total, delta), _price(total.everybody, delta))
    return min(_rounded(total, delta), total.pure_epsilon)


def _rounded(total: Composition, delta: float) -> float:
    if len(total.laplace) > _MOST_LAPLACE:  # a grid would be too long
        return _by_renyi(total, delta)
    loss, is_fine = _loss(total)
    found = loss.epsilon(delta)
    return found if math.isfinite(found) and is_fine else min(found, _by_renyi(total, delta))


def _by_renyi(total: Composition, delta: float) -> float:
    return renyi.epsilon(renyi.curve(total), delta)


@lru_cache(maxsize=8)
def _loss(total: Composition) -> tuple[Loss, bool]:
    interval, is_fine = grid_interval([(total, 1.0)])
    return total.loss(interval), is_fine

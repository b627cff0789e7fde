"""Prices releases: the (epsilon, delta) curve of whatever the events say was released.

========================= ===================== ================================================
sampling of the releases  neighbouring relation bound
========================= ===================== ================================================
unsampled Gaussian        either                exact: Gaussian differential privacy
Laplace (and unsampled)   either                privacy loss distribution, rounded up; Rényi
                                                where more than 32 scales differ; pure
                                                epsilon where it is all
Poisson (and these)       add-or-remove         privacy loss distribution, rounded up; coins
                                                revealed where all rates are below 1e-6
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

Guarantees: both functions return upper bounds, are monotone in the releases, take noise
multiplier 0 for an infinite epsilon, and nothing released for 0.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

from manifed.privacy import gaussian, rare, renyi
from manifed.privacy.composition import Composition, NoValidBound, compose, grid_interval
from manifed.privacy.events import Release
from manifed.privacy.loss import Loss

__all__ = ["NoValidBound", "delta", "epsilon"]
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
    return _price(compose(releases), "epsilon", delta)


def delta(releases: Iterable[Release], epsilon: float) -> float:
    """The least delta known to hold at ``epsilon``; errors as `epsilon`."""
    if not epsilon >= 0:
        raise ValueError(f"Expected epsilon >= 0, got {epsilon}")
    return _price(compose(releases), "delta", epsilon)


_Wanted = Literal["epsilon", "delta"]
"""Which of the two is wanted at a value of the other; bounds have a function of either name."""


@lru_cache(maxsize=1 << 14)
def _price(total: Composition, wanted: _Wanted, at: float) -> float:
    if total.is_gaussian:
        return getattr(gaussian, wanted)(at, mu=total.mu)
    if wanted == "epsilon" and at in (0, 1):
        return 0.0 if at == 1 else total.pure_epsilon
    if wanted == "delta" and at >= total.pure_epsilon:
        return 0.0
    if total.mu == math.inf:
        return math.inf if wanted == "epsilon" else 1.0
    if total.without_replacement:
        return min(_by_renyi(total, wanted, at), _price(total.everybody, wanted, at))
    found = _rounded(total, wanted, at)
    return min(found, total.pure_epsilon) if wanted == "epsilon" else found


def _rounded(total: Composition, wanted: _Wanted, at: float) -> float:
    is_rare = rare.is_rare(total.poisson)
    if len(total.laplace) > _MOST_LAPLACE or (is_rare and total.laplace):
        return _by_renyi(total, wanted, at)  # a grid would be too long, and has no closed form
    if is_rare:
        return getattr(rare, wanted)(total.poisson, total.mu, at)
    loss, is_fine = _loss(total)
    found = getattr(loss, wanted)(at)
    return found if math.isfinite(found) and is_fine else min(found, _by_renyi(total, wanted, at))


def _by_renyi(total: Composition, wanted: _Wanted, at: float) -> float:
    return getattr(renyi, wanted)(renyi.curve(total), at)


@lru_cache(maxsize=8)
def _loss(total: Composition) -> tuple[Loss, bool]:
    interval, is_fine = grid_interval([(total, 1.0)])
    return total.loss(interval), is_fine

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

The least noise that meets a target is found by a bisection that ends on the private side:

>>> def cost(multiplier):
...     step = Release(unit="example", neighboring_relation="add-or-remove",
...                    noise_multiplier=multiplier, count=100)
...     return epsilon([step], 1e-5)
>>> round(least_multiplier(cost, 1.0), 2)
37.36

Guarantees: a price is an upper bound and monotone in the releases; noise multiplier 0 costs an
infinite epsilon, and nothing released costs 0. The price at a calibrated multiplier is at most the
target, and at least 99.8 % of it unless the price jumps there.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from typing import Final

import numpy as np

from manifed.errors import ConfigError
from manifed.privacy import renyi
from manifed.privacy.composition import (
    Composition,
    NoValidBound,
    compose,
    gaussian_epsilon,
    grid_interval,
)
from manifed.privacy.events import PoissonSampled, Release
from manifed.privacy.loss import Loss

__all__ = ["NoValidBound", "epsilon", "for_steps", "least_multiplier", "mixed_epsilon"]
_Counts = Mapping[tuple[Composition, float], int]
"""How often an update was made, by what it releases and its probability."""
_USELESS: Final = 200.0
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
        return gaussian_epsilon(delta, mu=total.mu)
    if delta in (0, 1):
        return 0.0 if delta == 1 else total.pure_epsilon
    if total.mu == math.inf:
        return math.inf
    once = {(total, 1.0): 1}
    if total.without_replacement or total.is_rare:
        return min(_by_renyi(once, delta), _price(total.everybody, delta))
    is_long = len(total.laplace) > _MOST_LAPLACE
    found = _by_renyi(once, delta) if is_long else _by_loss(once, delta)
    return min(found, total.pure_epsilon)


def mixed_epsilon(counts: _Counts, delta: float) -> float:
    """The price of updates that happen with a probability, seen to happen or not.

    Of probability 1 there is at most one.
    """
    if delta == 0 or any(update.mu == math.inf for update, _ in counts):
        return math.inf
    if any(update.without_replacement for update, _ in counts):
        return min(_by_renyi(counts, delta), _of_everybody(counts, delta))
    return _by_loss(counts, delta)


def _of_everybody(counts: _Counts, delta: float) -> float:
    """The price of the same updates when each takes all units (`Composition.everybody`).

    An update that would alone cost more than _USELESS makes the grid large and the bound useless.
    """
    everybody = Counter[tuple[Composition, float]]()
    for (update, probability), count in counts.items():
        everybody[update.everybody, probability] += count
    largest = max(update.mu for update, _ in everybody)
    return mixed_epsilon(everybody, delta) if largest**2 / 2 <= _USELESS else math.inf


def _by_loss(counts: _Counts, delta: float) -> float:
    interval, is_fine = grid_interval((update, n * p) for (update, p), n in counts.items())
    parts = [_mixture(update, p, interval).composed(n) for (update, p), n in counts.items()]
    found = reduce(Loss.convolved, parts).epsilon(delta)
    return found if math.isfinite(found) and is_fine else min(found, _by_renyi(counts, delta))


def _by_renyi(counts: _Counts, delta: float) -> float:
    curves = [n * renyi.mixed(renyi.curve(update), p) for (update, p), n in counts.items()]
    return renyi.epsilon(np.sum(curves, axis=0), delta)


@lru_cache(maxsize=16)
def _mixture(update: Composition, probability: float, interval: float) -> Loss:
    return update.loss(interval).mixed(probability)


_WASTE: Final = 0.002
_LARGEST: Final = 2.0**40


def least_multiplier(cost: Callable[[float], float], target_epsilon: float) -> float:
    """The least noise multiplier, from above, whose ``cost`` (an epsilon) is on target.

    ``cost`` must fall with the multiplier. 0 when even no noise costs no more than the target
    (there are no releases).

    Raises:
        ValueError: for a target that is no target, or that no noise up to 2^40 meets.
        NoValidBound: as the accountant.
    """
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"Expected 0 < target_epsilon < inf, got {target_epsilon}")
    if cost(0.0) <= target_epsilon:
        return 0.0
    return _search(cost, target_epsilon, *_bracket(cost, target_epsilon))


def for_steps(
    target_epsilon: float, target_delta: float, steps: int, sampling_probability: float
) -> dict[str, float]:
    """The multiplier of so many noised steps, add-or-remove, and what it costs.

    Raises:
        ConfigError: for an impossible target.
    """

    def cost(multiplier: float) -> float:
        release = Release(
            unit="example",
            neighboring_relation="add-or-remove",
            noise_multiplier=multiplier,
            sampling=PoissonSampled(sampling_probability=sampling_probability),
            count=steps,
        )
        return epsilon([release], target_delta)

    try:
        found = least_multiplier(cost, target_epsilon)
    except ValueError as error:
        raise ConfigError(f"calibrate: {error}".replace("\n", " ")) from None
    return {"noise_multiplier": found, "epsilon": cost(found), "delta": target_delta}


def _bracket(
    cost: Callable[[float], float], target: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(multiplier, epsilon) too cheap in noise, and one on target, a factor 2 apart."""
    low = high = (1.0, cost(1.0))
    while high[1] > target:
        if high[0] >= _LARGEST:
            raise ValueError(
                f"No noise multiplier up to {_LARGEST:g} brings epsilon from {high[1]:g} to "
                f"target_epsilon = {target:g}; raise a target"
            )
        low, high = high, (2 * high[0], cost(2 * high[0]))
    while low[1] <= target and low[0] > 1 / _LARGEST:
        low, high = (low[0] / 2, cost(low[0] / 2)), low
    return low, high


def _search(
    cost: Callable[[float], float],
    target: float,
    low: tuple[float, float],
    high: tuple[float, float],
) -> float:
    """Secant steps on (log multiplier, log epsilon), halved when an end stays; keeps `high`."""
    for step in range(100):
        if high[1] >= (1 - _WASTE) * target or high[0] - low[0] <= 1e-12 * high[0]:
            break
        share = 0.5 if step % 3 == 2 else _crossing(target * (1 - _WASTE / 2), low[1], high[1])
        middle = low[0] * (high[0] / low[0]) ** share
        found = (middle, cost(middle))
        low, high = (low, found) if found[1] <= target else (found, high)
    return high[0]


def _crossing(target: float, above: float, below: float) -> float:
    """Where the logarithm of epsilon, falling in a straight line, meets the target: in (0, 1)."""
    if not math.isfinite(above) or below <= 0:
        return 0.5
    share = math.log(above / target) / math.log(above / below)
    return min(max(share, 0.01), 0.99)

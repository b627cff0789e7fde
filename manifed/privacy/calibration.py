"""The least noise that meets a privacy target, found by bisection that ends on the private side.

>>> from manifed.privacy.events import Release
>>> def cost(multiplier):
...     step = Release(unit="example", neighboring_relation="add-or-remove",
...                    noise_multiplier=multiplier, count=100)
...     return accountant.epsilon([step], 1e-5)
>>> round(least_multiplier(cost, 1.0), 2)
37.36

Guarantee: the price at the returned multiplier is at most the target, and at least 99.8 % of it
unless the price jumps there.
"""

import math
from collections.abc import Callable
from typing import Final

from manifed.errors import ConfigError
from manifed.privacy import accountant
from manifed.privacy.events import PoissonSampled, Release

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
        return accountant.epsilon([release], target_delta)

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

"""The Gaussian mechanism, exactly: Gaussian differential privacy in closed form.

Balle and Wang (2018), "Improving the Gaussian mechanism for differential privacy"; Dong, Roth, Su
(2022), "Gaussian differential privacy". A release with noise multiplier z is mu-GDP with mu = 1/z,
and adaptive releases compose to the root of the sum of squares.

>>> round(epsilon(1e-5, mu=composed_mu([(1.0, 1)])), 4)
4.3772
>>> round(delta(1.0, mu=0.5), 6)
0.00683

Guarantee: ``delta`` and ``epsilon`` err on the private side, rounding included.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from scipy import special

_ULPS: Final = 2.0**-49
"""Relative error allowed to each logarithm of a normal tail (a few roundings)."""
_log_cdf: Any = special.log_ndtr  # scipy ships no stubs


def composed_mu(releases: Iterable[tuple[float, int]]) -> float:
    """The mu of (noise multiplier, count) pairs together; infinite when one adds no noise."""
    present = [(z, count) for z, count in releases if count > 0]
    if any(z == 0 for z, _ in present):
        return math.inf
    return math.sqrt(math.fsum(count * (1 / z) * (1 / z) for z, count in present))


def delta(epsilon: float, *, mu: float) -> float:
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), rounded up (Balle and Wang 2018, (6))."""
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    upper = float(_log_cdf(mu / 2 - epsilon / mu))
    lower = epsilon + float(_log_cdf(-mu / 2 - epsilon / mu))
    value = -math.expm1(min(lower - upper, 0.0))
    rounding = _ULPS * (1.0 + epsilon + abs(upper) + abs(lower - epsilon))
    return min(1.0, math.exp(upper) * (value + rounding))


def epsilon(delta_: float, *, mu: float) -> float:
    """The least epsilon >= 0 with ``delta(epsilon) <= delta_``, from above; inf at delta_ = 0."""
    if mu == 0 or delta(0.0, mu=mu) <= delta_:
        return 0.0
    if mu == math.inf or delta_ == 0:
        return math.inf
    high = mu * mu / 2 + mu * math.sqrt(
        2 * math.log(1 / delta_)
    )  # tail of the loss N(mu^2/2, mu^2)
    while delta(high, mu=mu) > delta_:
        high *= 1.0 + 2.0**-20
    return _least_private(0.0, high, lambda eps: delta(eps, mu=mu) <= delta_)


def _least_private(low: float, high: float, is_private: Callable[[float], bool]) -> float:
    """The private end of the last bracket of a bisection: low is not private, high is."""
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high or high - low <= 1e-13 * abs(high):
            break
        if is_private(middle):
            high = middle
        else:
            low = middle
    return high

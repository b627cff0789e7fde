"""How far sums and split draws of discrete Gaussian noise are from one draw, as numbers.

Lemma 1 and the theorem of manifed/privacy/discrete.py, rounded up.
"""

import math

from manifed.privacy.discrete import SMOOTHING, levels

_ROUNDING = 1 + 2.0**-32
"""Covers the rounding of exp(-x) in float64, for x < 746 that is known to a share of 2^-42."""


def gaussian_slack(r2: float = SMOOTHING) -> float:
    """Returns log((1 + e(r^2)) / (1 - e(r^2))), rounded up: what the theorem costs a coordinate.

    Raises:
        ValueError: unless r2 >= 1/16; below it the bound says nothing.
    """
    if not r2 >= 1 / 16:
        raise ValueError(f"r2: expected at least 1/16, got {r2}; take a larger variance")
    first = math.exp(-2 * math.pi**2 * r2) * _ROUNDING + 1e-322  # what underflows is not 0
    return 2 * math.atanh(2 * first / (1 - first**3)) * _ROUNDING  # j^2 >= 1 + 3 (j - 1)


def sum_slack(variance: float, shares: int) -> float:
    """Returns a bound of |log ratio| between the laws of a sum of shares and of one draw.

    Each of ``shares`` independent terms is N_Z(0, variance); the one draw is N_Z(0, shares
    variance). It is Lemma 1 for one share after the other, rounded up.
    """
    return math.fsum(gaussian_slack(variance * k / (k + 1)) for k in range(1, shares))


def draw_slack(variance: int) -> float:
    """Returns a bound of |log ratio| between the law of `draw` and N_Z(0, variance), rounded up.

    It is Lemma 1 for each split into levels, on the multiples of 2^8; the tables come beside it.
    """
    *below, variance = levels(variance)
    found = 0.0
    for level in reversed(below):
        width = level / 2**16
        found += gaussian_slack(width * variance / (width + variance))
        variance = level + (variance << 16)
    return found

r"""Releases that hardly ever take a given unit, priced as if their coins were seen.

A Poisson-sampled Gaussian with rate q is a mixture over its coin: without the unit nothing differs
between neighbours, with it the release is a plain Gaussian. Whoever also sees the coins of n such
releases sees, with probability P(K = k), K binomial, exactly k Gaussians, so that

    delta(epsilon) <= sum_k P(K = k) delta_k(epsilon),    mu_k^2 = mu^2 + k / z^2,

because seeing more never lowers a hockey-stick divergence. The bound is 0 wherever a unit takes
part with probability at most delta, and it costs a few evaluations where a grid fine enough for
rates of 1e-9 would take seconds and gigabytes. It forgoes the amplification of the coins, so it is
meant for rates below `RARE` alone.

Guarantee: both functions return upper bounds, falling in each other's argument and rising in n, q.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from manifed.privacy import gaussian

RARE: Final = 1e-6
"""Rates below this one are priced here."""
_MOST_EXPECTED: Final = 1000.0
"""Expected participations up to which the binomial is summed term by term."""
_TAIL: Final = 1e-18
_UP: Final = 1 + 1e-9

Group = tuple[float, float, int]
"""(noise multiplier, sampling probability, count)."""


def is_rare(groups: Sequence[Group]) -> bool:
    """Whether all sampled releases are to be priced with their coins revealed."""
    expected = math.fsum(q * n for _, q, n in groups)
    return bool(groups) and max(q for _, q, _ in groups) < RARE and expected <= _MOST_EXPECTED


def delta(groups: Sequence[Group], mu: float, epsilon: float) -> float:
    """An upper bound on the hockey-stick divergence at epsilon >= 0.

    ``mu`` is the Gaussian parameter of what was released without sampling. Groups of several noise
    multipliers count as releases with the least noise.
    """
    z = min(group[0] for group in groups)
    masses, beyond = _participations(groups)
    terms = [
        mass * gaussian.delta(epsilon, mu=math.sqrt(mu**2 + k / z**2))
        for k, mass in enumerate(masses)
        if k > 0 or mu > 0
    ]
    return min(1.0, (math.fsum(terms) + beyond) * _UP)


def epsilon(groups: Sequence[Group], mu: float, delta_: float) -> float:
    """The least epsilon, from above, at which `delta` is at most ``delta_``; infinite if none."""
    if delta(groups, mu, 0.0) <= delta_:
        return 0.0
    low, high = 0.0, 1.0
    while delta(groups, mu, high) > delta_:
        low, high = high, 2 * high
        if high > 1e12:
            return math.inf
    return gaussian.least_private(low, high, lambda at: delta(groups, mu, at) <= delta_)


def _participations(groups: Sequence[Group]) -> tuple[list[float], float]:
    """P(K = k) for k = 0, 1, ..., K the participations in all groups, and the mass beyond them."""
    masses, beyond = np.ones(1), 0.0
    for _, q, n in groups:
        mine, tail = _binomial(n, q)
        masses, beyond = np.convolve(masses, mine), beyond + tail
    return masses.tolist(), beyond


def _binomial(n: int, q: float) -> tuple[list[float], float]:
    """The masses of Binomial(n, q) up to a tail, and a bound on that tail."""
    log_mass, odds = n * math.log1p(-q), q / (1.0 - q)
    masses: list[float] = []
    for k in range(n + 1):
        masses.append(math.exp(log_mass))
        ratio = (n - k) / (k + 1) * odds  # falls with k: a geometric tail
        if ratio < 0.5 and masses[-1] * 2 * ratio < _TAIL:
            return masses, masses[-1] * 2 * ratio
        log_mass += math.log(ratio) if ratio > 0 else -math.inf
    return masses, 0.0

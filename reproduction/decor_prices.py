"""What the paper of DECOR and its public code report in place of an exact price.

Source: Allouah et al., "The Privacy Power of Correlated Noise in Decentralized Learning".
"""

import math


def paper_total(slope: float, rounds: int, delta: float) -> float:
    """Epsilon of a Renyi slope after T rounds as the paper converts it: T e + 2 sqrt(T e log 1/d).

    An upper bound of the exact price; figures 1 and 2 report it.
    """
    whole = rounds * slope
    return whole + 2 * math.sqrt(whole * math.log(1 / delta))


def paper_slope(epsilon: float, rounds: int, delta: float) -> float:
    """The Renyi slope a round may have, the inverse of `paper_total`."""
    log = math.log(1 / delta)
    # (sqrt(log + eps) - sqrt(log))^2 without cancellation
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2 / rounds


def public_code_epsilon(slope: float, sampling_rate: float) -> float:
    """What the authors' code reports at example level: one step, at order 2, with no delta.

    It is neither composed over rounds nor converted to (epsilon, delta).
    """
    twice = min(2 * slope, 700.0)
    return math.log1p(sampling_rate**2 * min(4 * math.expm1(twice), 2 * math.exp(twice)))

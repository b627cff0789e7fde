"""Exact laws that drawn numbers must have, at a false-positive rate of 1e-6 a test."""

import math

import numpy as np
from scipy import stats

ALPHA = 1e-6
MUTANTS = (0.98, 1.02)


def chi_square_accepts(total, freedom):
    """A sum of squares of so many standard normals is chi-square."""
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], freedom)
    return bool(low < float(total) < high)


def assert_chi_square(total, freedom, mutants=MUTANTS):
    """The sum of squares has the law, and with these deviations in place of 1 it has not."""
    assert chi_square_accepts(total, freedom)
    for mutant in mutants:
        assert not chi_square_accepts(mutant**2 * total, freedom), f"stddev x {mutant} was accepted"


def kolmogorov_accepts(z, cdf=stats.norm.cdf):
    """sup |F_n - F| <= t unless an event of probability 2 exp(-2 n t^2) (Massart 1990)."""
    levels = cdf(np.sort(z))
    n = z.size
    steps = np.arange(n + 1) / n
    distance = max((steps[1:] - levels).max(), (levels - steps[:-1]).max())
    return bool(distance <= math.sqrt(math.log(2 / ALPHA) / (2 * n)))

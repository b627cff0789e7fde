"""The exact laws of the noise source; every test rejects two mutants.

False-positive rate 1e-6 per assertion: bounds are quantiles of the exact law of the statistic, not
tuned constants.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from manifed.privacy.random_numbers import NoiseSource, Stream
from tests.statistics.laws import ALPHA, MUTANTS, assert_chi_square, kolmogorov_accepts

COUNT = 400_000
SOURCES = {p: NoiseSource.from_seed(2024, precision=p) for p in ("single", "summed")}
pytestmark = pytest.mark.statistical


def normals(precision="single", **change):
    place = {"stream": Stream.GRADIENT_NOISE, "partition": 1, "server_round": 2, **change}
    return SOURCES[precision].normals((COUNT,), **place).numpy()


def tail_accepts(z, threshold):
    """The number beyond a threshold is binomial."""
    law = stats.binom(z.size, 2 * stats.norm.sf(threshold))
    count = int((np.abs(z) > threshold).sum())
    return bool(law.ppf(ALPHA / 2) <= count <= law.ppf(1 - ALPHA / 2))


@pytest.mark.parametrize("precision", ["single", "summed"])
def test_the_whole_distribution_is_normal_and_its_sum_of_squares_is_chi_square(precision):
    z = normals(precision)
    assert_chi_square((z**2).sum(), z.size)
    assert kolmogorov_accepts(z)
    assert not any(kolmogorov_accepts(z * mutant) for mutant in MUTANTS)
    assert not kolmogorov_accepts(z + 0.02)


def test_tails_have_the_binomial_count_and_the_far_one_is_not_cut():
    z = np.concatenate([normals(step=step) for step in range(5)])
    for threshold in (1.0, 2.0, 4.0):
        assert tail_accepts(z, threshold)
        assert not tail_accepts(np.clip(z, -threshold, threshold), threshold)
        if threshold < 4:
            assert not any(tail_accepts(z * mutant, threshold) for mutant in MUTANTS)


def uniforms():
    place = {"stream": Stream.COHORT, "partition": 0, "server_round": 0}
    return SOURCES["single"].uniforms((COUNT,), **place).numpy()


def test_uniforms_are_uniform_in_every_decile():
    u = uniforms()
    assert 0 < u.min() < u.max() < 1
    assert kolmogorov_accepts(u, stats.uniform.cdf)
    bound = stats.chi2.ppf(1 - ALPHA, 9)
    assert stats.chisquare(np.histogram(u, bins=10, range=(0, 1))[0]).statistic < bound
    for mutant in MUTANTS:
        skewed = np.histogram(u**mutant, bins=10, range=(0, 1))[0]
        assert stats.chisquare(skewed).statistic > bound
        assert not kolmogorov_accepts(u**mutant, stats.uniform.cdf)


def test_every_bit_of_a_word_is_fair():
    u = uniforms()
    k = (u * 2.0**53).astype(np.int64) >> 1
    law = stats.binom(COUNT, 0.5)
    low, high = law.ppf([ALPHA / 2, 1 - ALPHA / 2])
    for bit in range(52):
        assert low <= int((k >> bit & 1).sum()) <= high, bit
    assert not low <= int((u > 0.51).sum()) <= high


def correlation_accepts(a, b):
    """The sample correlation r of n independent normal pairs: r sqrt((n-2)/(1-r^2)) is t_{n-2}."""
    r = float(np.corrcoef(a, b)[0, 1])
    statistic = r * math.sqrt((a.size - 2) / (1 - r * r))
    return abs(statistic) < float(stats.t.ppf(1 - ALPHA / 2, a.size - 2))


def test_neighbouring_addresses_are_uncorrelated():
    base = normals()
    addresses = [{"partition": 2}, {"server_round": 3}, {"step": 1}, {"attempt": 1}]
    draws = [base, *(normals(**change) for change in addresses)]
    draws.append(normals(stream=Stream.SERVER_NOISE))
    for a, b in pairwise([*draws, base]):
        assert correlation_accepts(a, b)
    for mutant in (0.02, -0.02):
        assert not correlation_accepts(draws[1], draws[2] + mutant * draws[1])


def test_consecutive_numbers_are_uncorrelated():
    z = normals()
    for lag in (1, 2, 3, 16):
        assert correlation_accepts(z[:-lag], z[lag:])
        assert not correlation_accepts(z[:-lag], z[lag:] + 0.02 * z[:-lag])


def test_a_cohort_is_one_isotropic_gaussian():
    """|z|^2 of C x n normals drawn for a cohort, and of every client's mean, are chi-square."""
    place = {"stream": Stream.GRADIENT_NOISE, "server_round": 11}
    z = SOURCES["single"].normals((785,), partition=range(500), **place).numpy()
    assert_chi_square((z**2).sum(), z.size)
    assert_chi_square(785 * (z.mean(1) ** 2).sum(), 500, ())
    assert torch.equal(
        torch.as_tensor(z[3]), SOURCES["single"].normals((785,), partition=3, **place)
    )

"""The law of the noise source, which tests/privacy/test_noise.py gives word by word.

False-positive rate 1e-6 per assertion: bounds are quantiles of the exact law of the statistic, not
tuned constants.
"""

import pytest

from manifed.privacy.random_numbers import NoiseSource, Stream
from tests.statistics.laws import MUTANTS, assert_chi_square, kolmogorov_accepts

pytestmark = pytest.mark.statistical


@pytest.mark.parametrize("precision", ["single", "summed"])
def test_the_whole_distribution_is_normal_and_its_sum_of_squares_is_chi_square(precision):
    place = {"stream": Stream.GRADIENT_NOISE, "partition": 1, "server_round": 2}
    z = NoiseSource.from_seed(2024, precision=precision).normals((400_000,), **place).numpy()
    assert_chi_square((z**2).sum(), z.size)
    assert kolmogorov_accepts(z)
    assert not any(kolmogorov_accepts(z * mutant) for mutant in MUTANTS)
    assert not kolmogorov_accepts(z + 0.02)

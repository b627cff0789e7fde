"""Cohorts: addressed, unbiased, of the stated size."""

import numpy as np
import pytest
from scipy import stats

from manifed.federation.cohorts import Everyone, FixedSize, PoissonCohort
from manifed.privacy.random_numbers import NoiseSource

SOURCE = NoiseSource.from_seed(0)
CLIENTS = 30
ROUNDS = 3000


@pytest.mark.parametrize(
    "cohort", [Everyone(), FixedSize(cohort_size=7), PoissonCohort(sampling_probability=0.3)]
)
def test_a_draw_depends_on_its_address_alone(cohort):
    later = cohort.draw(CLIENTS, 9, 0, SOURCE)
    cohort.draw(CLIENTS, 3, 0, SOURCE)
    assert cohort.draw(CLIENTS, 9, 0, SOURCE) == later
    assert list(later) == sorted(set(later))


def test_fixed_size_is_exact_and_every_client_is_as_likely():
    drawn = [FixedSize(cohort_size=7).draw(CLIENTS, r, 0, SOURCE) for r in range(ROUNDS)]
    assert {len(set(each)) for each in drawn} == {7}
    counts = np.bincount(np.ravel(drawn), minlength=CLIENTS)
    rate = 7 / CLIENTS
    spread = ((counts - ROUNDS * rate) ** 2).sum() / (ROUNDS * rate * (1 - rate))
    assert 5e-7 < stats.chi2.cdf(spread * (CLIENTS - 1) / CLIENTS, CLIENTS - 1) < 1 - 5e-7


def test_poisson_has_its_rate_and_independent_coins():
    cohort = PoissonCohort(sampling_probability=0.3)
    sizes = [len(cohort.draw(CLIENTS, r, 0, SOURCE)) for r in range(ROUNDS)]
    tail = stats.binom.cdf(sum(sizes), CLIENTS * ROUNDS, 0.3)
    assert 5e-7 < tail < 1 - 5e-7
    spread = sum((s - 9.0) ** 2 for s in sizes) / (CLIENTS * 0.21)
    assert 0.87 * ROUNDS < spread < 1.13 * ROUNDS  # variance of the size: binomial, +-5 sigma

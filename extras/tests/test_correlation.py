"""Banded strategies: errors as jax_privacy computes them, sensitivities against all patterns."""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import toeplitz

from manifed.errors import ConfigError
from manifed_extras.correlation import (
    Banded,
    BandedInverse,
    errors,
    largest_error,
    root_mean_square_error,
    row_sum,
    sensitivity,
    square_root,
)

STRATEGIES = [BandedInverse(bands=4), Banded(bands=4), Banded(bands=3, coefficients=(1, 0.5, 0.5))]


def matrix(column):
    return np.tril(toeplitz(column))


# (root mean square, largest) error of prefix sums times sensitivity, by jax_privacy 2.0.0
# (toeplitz.per_query_error and minsep_sensitivity_squared): once; 8 times, n / 8 apart; always
PUBLISHED = {
    (64, BandedInverse(bands=4)): (
        (2.63135438212028, 3.452659095077858),
        (8.119199584839503, 10.653383855032224),
        (50.85156973611215, 66.72348503925235),
    ),
    (64, Banded(bands=4)): (
        (3.351132143167074, 4.585451112458095),
        (9.478433052342584, 12.96961430567407),
        (47.472017847358075, 64.95733613269991),
    ),
    (1024, BandedInverse(bands=16)): (
        (5.097234838843101, 6.966215658042203),
        (14.423164460454569, 19.71164313193402),
        (767.9447242305645, 1049.5236597064563),
    ),
    (1024, Banded(bands=16)): (
        (7.21838971481601, 10.083727314277489),
        (20.41668926637452, 28.5210878542465),
        (739.1932299119688, 1032.6157574580761),
    ),
}


@pytest.mark.golden
@pytest.mark.parametrize(("n", "correlation"), PUBLISHED, ids=str)
def test_errors_are_those_of_jax_privacy(n, correlation):
    strategy = correlation.strategy(n)
    patterns = ((n, 1), (n // 8, 8), (1, n))
    for (apart, times), published in zip(patterns, PUBLISHED[n, correlation], strict=True):
        size = sensitivity(strategy, min_separation=apart, participations=times)
        found = root_mean_square_error(strategy, size), largest_error(strategy, size)
        assert found == pytest.approx(published, rel=1e-9)


@pytest.mark.golden
@pytest.mark.parametrize(("n", "rmse"), [(64, 2.2296764715813904), (1024, 3.1097899069405677)])
def test_the_whole_square_root_has_its_published_error(n, rmse):
    root = square_root(n)
    size = sensitivity(root)
    assert root_mean_square_error(root, size) == pytest.approx(rmse, rel=1e-9)
    # Fichtenberger, Henzinger, Upadhyay (2022): at most 1 + (gamma + log n) / pi
    assert largest_error(root, size) == pytest.approx(float(np.sum(root**2)), rel=1e-12)
    assert largest_error(root, size) <= 1 + (0.5772156649015329 + math.log(n)) / math.pi


@pytest.mark.parametrize("correlation", STRATEGIES, ids=lambda c: f"{c.kind}-{c.bands}")
def test_no_pattern_of_participation_and_no_signs_move_it_more(correlation):
    n = 8
    c = matrix(correlation.strategy(8))
    for apart, times in ((8, 1), (3, 3), (2, 2), (1, 8), (1, 3)):
        worst = 0.0
        for rounds in itertools.chain.from_iterable(
            itertools.combinations(range(n), k) for k in range(1, times + 1)
        ):
            if any(b - a < apart for a, b in itertools.pairwise(rounds)):
                continue
            for signs in itertools.product((1.0, -1.0), repeat=len(rounds) - 1):
                u = np.zeros(n)
                u[list(rounds)] = (1.0, *signs)
                worst = max(worst, float(np.linalg.norm(c @ u)))
        stated = sensitivity(c[:, 0], min_separation=apart, participations=times)
        assert stated == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("correlation", STRATEGIES, ids=lambda c: f"{c.kind}-{c.bands}")
def test_row_sums_compose_to_the_exact_sensitivity(correlation):
    n = 24
    strategy = correlation.strategy(n)
    composed = math.sqrt(sum(row_sum(correlation, t) ** 2 for t in range(1, n + 1)))
    assert composed == pytest.approx(
        sensitivity(strategy, min_separation=1, participations=n), rel=1e-9
    )
    noise = np.linalg.inv(matrix(strategy))
    covariance = noise @ noise.T
    exact = math.sqrt(np.linalg.solve(covariance, np.ones(n)).sum())
    assert composed == pytest.approx(exact, rel=1e-9)
    sums = [row_sum(correlation, t) for t in range(1, n + 1)]
    assert all(a <= b for a, b in itertools.pairwise(sums))  # a shorter chain costs no more
    assert row_sum(correlation, 5) >= math.fsum(correlation.strategy(5))


def test_an_example_in_every_answer_leaves_no_gain_to_the_last_prefix_sum():
    """Cauchy and Schwarz: |1^T C^-1| |C 1| >= n, which independent noise attains."""
    for n in (10, 100):
        independent = np.eye(1, n)[0]
        size = sensitivity(independent, min_separation=1)
        assert largest_error(independent, size) == pytest.approx(n)
        for correlation in STRATEGIES:
            strategy = correlation.strategy(n)
            assert largest_error(strategy, sensitivity(strategy, min_separation=1)) >= n


def test_errors_are_standard_deviations_of_the_answers():
    strategy = BandedInverse(bands=3).strategy(12)
    rows = np.tri(12) @ np.linalg.inv(matrix(strategy))
    np.testing.assert_allclose(errors(strategy), np.linalg.norm(rows, axis=1), rtol=1e-12)
    workload = 0.9 ** np.arange(12)
    rows = matrix(workload) @ np.linalg.inv(matrix(strategy))
    np.testing.assert_allclose(errors(strategy, workload), np.linalg.norm(rows, axis=1), rtol=1e-12)


def test_what_has_no_price_is_refused():
    with pytest.raises(ConfigError, match="none above the one before"):
        Banded(bands=3, coefficients=(1.0, 0.5, 0.6))
    with pytest.raises(ConfigError, match="bands = 2"):
        Banded(bands=2, coefficients=(1.0, 0.5, 0.4))
    with pytest.raises(ConfigError, match="bands"):
        BandedInverse(bands=1)
    with pytest.raises(ValueError, match="does not grow"):
        sensitivity(np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="min_separation and participations >= 1"):
        sensitivity(np.ones(3), min_separation=0)

"""Minibatches are drawn at the rate they are charged for."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy import stats

from manifed.oracles.minibatch import Poisson, WithoutReplacement, rows_of, rows_of_least
from manifed.oracles.oracle import Draws
from manifed.privacy.noise import NoiseSource
from tests.conformance.client_cases import batch

SIZE, BATCH, ROUNDS = 40, 10.0, 1500


def weights_of(minibatch, server_round, size=SIZE):
    """The weight of every example, shape (size,)."""
    draws = Draws(NoiseSource.from_seed(2), 0, server_round)
    positions, weights = batch(minibatch, [size], torch.ones(size, dtype=torch.bool), draws, 0)
    if positions is None:
        return weights
    return torch.zeros(size, dtype=torch.float64).index_put((positions,), weights, accumulate=True)


@lru_cache
def poisson_counts():
    minibatch = Poisson(batch_size=BATCH)
    return torch.stack([weights_of(minibatch, r) for r in range(1, ROUNDS + 1)])


@pytest.mark.statistical
@pytest.mark.parametrize(("scale", "is_accepted"), [(1.0, True), (0.94, False), (1.06, False)])
def test_a_poisson_batch_takes_each_example_at_the_charged_rate(scale, is_accepted):
    drawn = poisson_counts()
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    rate = scale * Poisson(batch_size=BATCH).sampling(SIZE).sampling_probability
    tail = stats.binom.cdf(float(drawn.sum()), ROUNDS * SIZE, rate)
    assert (5e-7 < tail < 1 - 5e-7) == is_accepted


@pytest.mark.statistical
def test_the_coins_of_two_examples_are_independent():
    drawn = poisson_counts()
    both = float((drawn[:, 0] * drawn[:, 1]).sum())
    tail = stats.binom.cdf(both, ROUNDS, (BATCH / SIZE) ** 2)
    assert 5e-7 < tail < 1 - 5e-7


def test_a_subset_has_exactly_the_charged_size():
    minibatch = WithoutReplacement(batch_size=7)
    for server_round in range(1, 50):
        drawn = weights_of(minibatch, server_round)
        assert float(drawn.sum()) == minibatch.sampling(SIZE).sample_size
        assert set(drawn.tolist()) == {0.0, 1.0}


# -- batches that are a small part of a large shard --------------------------------------------
LARGE, SMALL_BATCH, DRAWS = 32_561, 256, 900


@lru_cache
def large(minibatch):
    """Positions of every batch of a large shard."""
    present, found = torch.ones(LARGE, dtype=torch.bool), []
    for server_round in range(1, DRAWS + 1):
        draws = Draws(NoiseSource.from_seed(7), 0, server_round)
        positions, weights = batch(minibatch, [LARGE], present, draws, 0)
        assert bool((weights == 1).all())
        found.append(positions.numpy())
    return found


@pytest.mark.statistical
@pytest.mark.parametrize(("scale", "is_accepted"), [(1.0, True), (0.98, False), (1.02, False)])
def test_a_small_poisson_batch_has_the_charged_rate(scale, is_accepted):
    total = sum(map(len, large(Poisson(batch_size=SMALL_BATCH))))
    tail = stats.binom.cdf(total, DRAWS * LARGE, scale * SMALL_BATCH / LARGE)
    assert (5e-7 < tail < 1 - 5e-7) == is_accepted


@pytest.mark.statistical
@pytest.mark.parametrize(("scale", "is_accepted"), [(1.0, True), (0.9, False), (1.1, False)])
def test_sizes_of_small_poisson_batches_are_binomial(scale, is_accepted):
    """Their spread is that of independent coins: 900 sizes against the law in 30 bins."""
    law = stats.binom(LARGE, scale * SMALL_BATCH / LARGE)
    sizes = [len(rows) for rows in large(Poisson(batch_size=SMALL_BATCH))]
    edges = law.ppf(np.linspace(0, 1, 31)[1:-1])
    bins = np.bincount(np.searchsorted(edges, sizes, side="left"), minlength=30)
    expected = DRAWS * np.diff(np.concatenate([[0], law.cdf(edges), [1]]))
    tail = stats.chi2.sf(((bins - expected) ** 2 / expected).sum(), 29)
    assert (tail > 1e-6) == is_accepted


@pytest.mark.statistical
def test_gaps_of_small_poisson_batches_are_geometric():
    """Rows between two of a batch: independent coins and nothing else give that law."""
    rate = SMALL_BATCH / LARGE
    gaps = np.concatenate([np.diff(rows) for rows in large(Poisson(batch_size=SMALL_BATCH))])
    edges = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
    bins = np.bincount(np.searchsorted(edges, gaps, side="left"), minlength=len(edges) + 1)
    law = np.diff(np.concatenate([[0], stats.geom.cdf(edges, rate), [1]]))
    # a gap that begins within 512 rows of the end is cut off; its share is below 512 / LARGE
    expected = len(gaps) * law
    assert abs(bins / len(gaps) - law).max() < 512 / LARGE
    tail = stats.chi2.sf(((bins[:5] - expected[:5]) ** 2 / expected[:5]).sum(), 5)
    assert tail > 1e-6
    wrong = len(gaps) * np.diff(np.concatenate([[0], stats.geom.cdf(edges, 1.1 * rate)]))
    assert stats.chi2.sf(((bins[:5] - wrong[:5]) ** 2 / wrong[:5]).sum(), 5) < 1e-6


@pytest.mark.statistical
@pytest.mark.parametrize(
    "minibatch", [Poisson(batch_size=SMALL_BATCH), WithoutReplacement(batch_size=SMALL_BATCH)]
)
def test_a_small_batch_takes_every_row_alike(minibatch):
    rate = SMALL_BATCH / LARGE
    counts = np.bincount(np.concatenate(large(minibatch)), minlength=LARGE)
    spread = ((counts - DRAWS * rate) ** 2).sum() / (DRAWS * rate * (1 - rate))
    is_fixed = minibatch.kind == "without-replacement"
    freedom, scale = (LARGE - 1, (LARGE - 1) / LARGE) if is_fixed else (LARGE, 1.0)
    # the variance of a sum of n squares of standardised binomials of small mean is larger
    variance = 2 * LARGE + LARGE / (DRAWS * rate)
    assert abs(spread * scale - freedom) < 4.9 * variance**0.5


@pytest.mark.statistical
def test_a_small_subset_has_its_size_and_no_row_twice():
    assert all(len(np.unique(rows)) == 256 for rows in large(WithoutReplacement(batch_size=256)))


@pytest.mark.parametrize(("count", "size"), [(5, 5), (40, 1), (900, 100), (20_000, 16), (3, 1)])
@pytest.mark.parametrize("clients", [None, 3])
def test_a_subset_is_that_of_the_least_words(count, size, clients):
    rng = np.random.default_rng(count)
    shape = (count,) if clients is None else (clients, count)
    words = rng.integers(0, 2**64, shape, dtype=np.uint64)
    positions, weights = rows_of_least(words, np.ones(shape, dtype=bool), size)
    assert (positions == np.sort(np.argsort(words)[..., :size])).all()
    assert (weights == 1).all()


def test_a_subset_whose_words_are_all_far_from_zero_is_found_too():
    words = np.arange(1000, dtype=np.uint64)[::-1] + np.uint64(1 << 63)
    positions, _ = rows_of_least(words, np.ones(1000, dtype=bool), 3)
    assert positions.tolist() == [997, 998, 999]


def test_a_batch_of_a_cohort_repeats_rows_with_weight_zero_where_it_is_shorter():
    chosen = np.zeros((4, 9), dtype=bool)
    chosen[0, [2, 5, 8]] = chosen[2, 4] = chosen[3, [0, 1]] = True
    positions, weights = rows_of(chosen)
    assert positions.tolist()[0] == [2, 5, 8]
    assert (positions[2] == 4).all()
    assert positions.tolist()[3] == [0, 1, 1]
    assert weights.tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 0]]
    empty, none = rows_of(np.zeros((2, 9), dtype=bool))
    assert empty.tolist() == [[0], [0]]
    assert none.tolist() == [[0], [0]]
    assert rows_of(np.ones((2, 9), dtype=bool)) is None

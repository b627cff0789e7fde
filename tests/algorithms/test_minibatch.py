"""Minibatches are drawn at the rate they are charged for."""

from functools import lru_cache

import pytest
import torch
from scipy import stats

from manifed.oracles.minibatch import Poisson, WithoutReplacement
from manifed.oracles.oracle import Draws
from manifed.privacy.noise import NoiseSource
from tests.conformance.client_cases import batch

SIZE, BATCH, ROUNDS = 40, 10.0, 3000


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

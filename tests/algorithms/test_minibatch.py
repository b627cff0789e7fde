"""Minibatches are drawn at the rate they are charged for."""

import numpy as np
import pytest
import torch

from manifed.oracles.minibatch import Poisson, WithoutReplacement, rows_of, rows_of_least
from manifed.oracles.noisy_oracle import Draws
from manifed.privacy.random_numbers import NoiseSource, Stream
from tests.conformance.client_cases import batch

SIZE = 40
SOURCE = NoiseSource.from_seed(2)


def weights_of(minibatch, server_round):
    """The weight of every example, shape (SIZE,)."""
    draws = Draws(SOURCE, 0, server_round)
    positions, weights = batch(minibatch, [SIZE], draws)
    if positions is None:
        return weights
    return torch.zeros(SIZE).double().index_put((positions,), weights, accumulate=True)


def test_a_poisson_batch_takes_each_example_by_a_coin_of_the_charged_rate():
    minibatch = Poisson(batch_size=10.0)
    rate = minibatch.sampling(SIZE).sampling_probability
    for server_round in range(1, 50):
        at = Draws(SOURCE, 0, server_round).at(Stream.MINIBATCH, 0)
        drawn = weights_of(minibatch, server_round)
        assert torch.equal(drawn, SOURCE.coins(SIZE, rate, **at).double())


def test_a_subset_has_exactly_the_charged_size():
    minibatch = WithoutReplacement(batch_size=7)
    for server_round in range(1, 50):
        drawn = weights_of(minibatch, server_round)
        assert drawn.sum() == minibatch.sampling(SIZE).sample_size
        assert set(drawn.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(("count", "size"), [(5, 5), (40, 1), (900, 100), (20_000, 16), (3, 1)])
@pytest.mark.parametrize("clients", [None, 3])
def test_a_subset_is_that_of_the_least_words(count, size, clients):
    rng = np.random.default_rng(count)
    shape = (count,) if clients is None else (clients, count)
    words = rng.integers(0, 2**64, shape, dtype=np.uint64)
    positions, weights = rows_of_least(words, np.ones(shape, dtype=bool), size)
    assert (positions == np.sort(np.argsort(words)[..., :size])).all()
    assert (weights == 1).all()


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

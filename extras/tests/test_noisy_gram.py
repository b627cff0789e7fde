"""Least squares from noised Gram matrices.

The bounds of these are tested in tests/algorithms/test_one_shot_sums.py.
"""

import pytest
import torch

from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.manifolds.linalg import packed
from manifed.problems.linear import LeastSquares
from manifed_extras.noisy_gram import NoisyGram
from tests.algorithms.test_one_shot_sums import D, examples, pair
from tests.conformance.federated_loop import federate, last
from tests.fresh import QUICKSTART
from tests.tensors import float64

SETS = [
    "training={kind='manifed_extras.noisy_gram:NoisyGram'}", "problem={kind='least-squares'}",
    "data={kind='synthetic-least-squares',num_clients=3}", "federation.num_clients=3",
    "federation.num_rounds=1", "privacy.delta=1e-3",
    "privacy.noise={kind='multiplier',noise_multiplier=0.5}",
]  # fmt: skip


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_without_noise_it_solves_least_squares(ridge):
    problem = LeastSquares(ridge)
    training = NoisyGram(ridge=ridge, eigenvalue_floor=1e-9)
    data = [examples([pair(9 * i + j) for j in range(8 + i)]) for i in range(3)]
    x = torch.zeros(D).double()
    done = last(federate(problem, data, training, training, x, 1)).state
    torch.testing.assert_close(done["x"], problem.optimum(data).x, rtol=1e-8, atol=1e-10)


def test_an_indefinite_gram_is_raised_to_the_floor():
    gram = torch.diag(float64([2.0, -1.0, 5.0]))
    gram[0, 2] = gram[2, 0] = gram[1, 2] = gram[2, 1] = 1.0
    x = NoisyGram(eigenvalue_floor=0.5).solve(packed(gram), torch.zeros(2).double())
    torch.testing.assert_close(x, float64([0.5, 2.0]))


def test_another_ridge_than_the_problems_is_refused():
    load(QUICKSTART, SETS)
    with pytest.raises(ConfigError, match=r"training.ridge: expected the problem's 1, got 0"):
        load(QUICKSTART, [*SETS, "problem={kind='least-squares',ridge=1}"])

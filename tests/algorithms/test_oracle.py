"""The oracle: exact laws of its noise, exact bounds of its clipping."""

import pytest
import torch

from manifed.algorithms.rsgd import RSGD
from manifed.oracles.minibatch import Full
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import shards, start
from tests.statistics.laws import assert_chi_square
from tests.tensors import normals

CLIP = 0.3
CLIPPED = ExampleMechanism(l2_norm_clip=CLIP)
TRAINING = RSGD(step_size=1.0, minibatch=Full())


def oracle_of(shard, mechanism):
    queries = [TRAINING.queries(mechanism, len(shard))]
    return Oracle(PrincipalEigenvector(), shard, queries, Draws(NoiseSource.from_seed(5), 0, 1))


@pytest.mark.parametrize(("relation", "terms"), [("add-or-remove", 1), ("replace-one", 2)])
def test_sensitivity_is_attained_and_never_exceeded(relation, terms):
    mechanism = ExampleMechanism(l2_norm_clip=CLIP, neighboring_relation=relation)
    shard = shards()[0]
    x = start()
    mean = oracle_of(shard, mechanism).gradient(x)
    for seed in range(20):
        z = shard["z"].clone()
        z[0] = 10 * normals(seed, z.shape[1])
        moved = oracle_of(Examples({"z": z}), mechanism).gradient(x)
        assert (moved - mean).norm() <= 2 * CLIP / len(shard) * (1 + 1e-12)
    bound = mechanism.sensitivity(CLIP, float(len(shard)))
    assert bound == pytest.approx(terms * CLIP / len(shard), rel=1e-9)


def test_one_bad_record_neither_shows_as_nan_nor_moves_the_mean_by_more_than_its_bound():
    shard = shards()[0]
    mean = oracle_of(shard, CLIPPED).gradient(start())
    shard["z"][0] = float("nan")
    broken = oracle_of(shard, CLIPPED).gradient(start())
    assert torch.isfinite(broken).all()
    assert (broken - mean).norm() <= CLIP / len(shard) * (1 + 1e-12)


@pytest.mark.statistical
def test_noise_norm_is_chi_square_with_the_stated_stddev():
    shard = shards(dim=501)[0]
    x = start(dim=501)
    mechanism = ExampleMechanism(l2_norm_clip=CLIP, noise=Noise(multiplier=0.7))
    quiet = oracle_of(shard, CLIPPED).gradient(x)
    oracle = oracle_of(shard, mechanism)
    squares = [float((oracle.gradient(x) - quiet).square().sum()) for _ in range(250)]
    assert_chi_square(sum(squares) / (0.7 * CLIP / len(shard)) ** 2, 250 * (x.numel() - 1))

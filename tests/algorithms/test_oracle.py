"""The oracle: exact laws of its noise, exact bounds of its clipping."""

import math
from functools import lru_cache

import pytest
import torch
from scipy import stats

from manifed.algorithms.rsgd import RSGD
from manifed.oracles.minibatch import Full
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.noise import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import shards, start

FALSE_POSITIVE = 1e-6


@lru_cache
def summed_squares():
    """(sum of |noise|^2 over the stated variance, degrees of freedom)."""
    shard = shards(dim=501)[0]
    x = start(dim=501)
    mechanism = ExampleMechanism(l2_norm_clip=0.5, noise=Noise(multiplier=0.7))
    quiet = oracle_of(shard, ExampleMechanism(l2_norm_clip=0.5)).gradient(x)
    oracle = oracle_of(shard, mechanism)
    draws = 250
    total = 0.0
    for _ in range(draws):
        total += float((oracle.gradient(x) - quiet).square().sum())
    return total / (0.7 * 0.5 / len(shard)) ** 2, draws * (x.numel() - 1)


TRAINING = RSGD(step_size=1.0, minibatch=Full())


def oracle_of(shard, mechanism, server_round=1):
    queries = [TRAINING.queries(mechanism, len(shard))]
    draws = Draws(NoiseSource.from_seed(5), 0, server_round)
    return Oracle(PrincipalEigenvector(), shard, queries, draws)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_sensitivity_is_attained_and_never_exceeded(relation):
    mechanism = ExampleMechanism(l2_norm_clip=0.3, neighboring_relation=relation)
    shard = shards()[0]
    x = start()
    mean = oracle_of(shard, mechanism).gradient(x)
    bound = mechanism.sensitivity(0.3, float(len(shard)))
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        z = shard["z"].clone()
        z[0] = 10 * torch.randn(z.shape[1], generator=generator, dtype=torch.float64)
        tensors = {"z": z} | {k: z.square().sum(-1) for k in shard.tensors if k != "z"}
        other = Examples(tensors, shard.feature_ndim)
        moved = oracle_of(other, mechanism).gradient(x)
        replaced = ExampleMechanism(l2_norm_clip=0.3, neighboring_relation="replace-one")
        allowed = replaced.sensitivity(0.3, float(len(shard)))
        assert float((moved - mean).norm()) <= allowed * (1 + 1e-12)
    assert math.isclose(bound, (1 if relation == "add-or-remove" else 2) * 0.3 / len(shard))


def test_one_bad_record_neither_shows_as_nan_nor_moves_the_mean_by_more_than_its_bound():
    mechanism = ExampleMechanism(l2_norm_clip=0.3)
    shard = shards()[0]
    x = start()
    mean = oracle_of(shard, mechanism).gradient(x)
    tensors = {key: t.clone() for key, t in shard.tensors.items()}
    for tensor in tensors.values():
        tensor[0] = float("nan")
    broken = oracle_of(Examples(tensors, shard.feature_ndim), mechanism).gradient(x)
    assert bool(torch.isfinite(broken).all())
    assert float((broken - mean).norm()) <= 0.3 / len(shard) * (1 + 1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize(("scale", "is_accepted"), [(1.0, True), (0.98, False), (1.02, False)])
def test_noise_norm_is_chi_square_with_the_stated_stddev(scale, is_accepted):
    total, freedom = summed_squares()
    tail = stats.chi2.cdf(total * scale**2, freedom)
    assert (FALSE_POSITIVE / 2 < tail < 1 - FALSE_POSITIVE / 2) == is_accepted

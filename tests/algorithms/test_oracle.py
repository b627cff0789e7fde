"""The oracle: exact laws of its noise, exact bounds of its clipping."""

import math

import pytest
import torch

from manifed.algorithms.rsgd import RSGD
from manifed.oracles.minibatch import Full
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import shards, start

TRAINING = RSGD(step_size=1.0, minibatch=Full())


def oracle_of(shard, mechanism, server_round=1):
    queries = [TRAINING.queries(mechanism, len(shard))]
    draws = Draws(NoiseSource.from_seed(5), 0, server_round)
    return Oracle(PrincipalEigenvector(), shard, queries, draws)


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_sensitivity_is_attained_and_never_exceeded(relation):
    mechanism = ExampleMechanism(l2_norm_clip=0.3, neighboring_relation=relation)
    shard, x = shards()[0], start()
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
    shard, x = shards()[0], start()
    mean = oracle_of(shard, mechanism).gradient(x)
    tensors = {key: t.clone() for key, t in shard.tensors.items()}
    for tensor in tensors.values():
        tensor[0] = float("nan")
    broken = oracle_of(Examples(tensors, shard.feature_ndim), mechanism).gradient(x)
    assert bool(torch.isfinite(broken).all())
    assert float((broken - mean).norm()) <= 0.3 / len(shard) * (1 + 1e-12)

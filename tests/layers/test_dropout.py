"""Dropout by keys: the draws are an example's own, at every step others, and the same anywhere."""

import pytest
import torch
from torch import nn

from manifed.algorithms.rsgd import RSGD
from manifed.layers import KeyedDropout, keyed
from manifed.oracles.minibatch import Full, Poisson
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.module_problem import ModuleProblem
from tests.layers.test_layers import labelled, normals
from tests.tensors import assert_near, float64

SOURCE = NoiseSource.from_seed(3)
FULL = Full()


def model():
    layers = nn.Linear(6, 8), KeyedDropout(0.4), nn.Tanh(), KeyedDropout(0.2), nn.Linear(8, 3)
    with torch.no_grad():
        for seed, parameter in enumerate(nn.Sequential(*layers).parameters()):
            parameter.copy_(normals(*parameter.shape, seed=seed))
    return nn.Sequential(*layers)


def shard(n, seed=5):
    return labelled(normals(n, 6, seed=seed))


def oracle(examples, partition, minibatch=FULL, clip=0.5):
    """Of one client, or of a stacked cohort; no noise."""
    mechanism = ExampleMechanism(l2_norm_clip=clip)
    count = 1 if isinstance(partition, int) else len(partition)
    queries = [RSGD(step_size=0.1, minibatch=minibatch).queries(mechanism, len(examples))] * count
    return Oracle(ModuleProblem(model()), examples, queries, Draws(SOURCE, partition, 1))


def test_entries_are_dropped_with_the_probability_and_the_others_keep_the_mean():
    layer = KeyedDropout(0.3)
    entries = torch.ones(200_000).double()
    with keyed([layer], float64(0.618)):
        first = layer(entries)
        second = layer(entries)
    for found in (first, second):  # 6 standard deviations
        assert abs((found == 0).double().mean() - 0.3) < 6 * (0.21 / 200_000) ** 0.5
        assert set(found.unique().tolist()) == {0.0, 1 / 0.7}
    both = ((first == 0) & (second == 0)).double().mean()
    assert abs(both - 0.09) < 6 * (0.09 * 0.91 / 200_000) ** 0.5
    assert torch.equal(layer(entries), entries)
    with pytest.raises(ValueError, match="p: expected 0 <= p < 1"):
        KeyedDropout(1.0)


def test_a_step_drops_anew_and_repeats_from_its_address():
    x = ModuleProblem(model()).start
    one = oracle(shard(5), 0)
    again = oracle(shard(5), 0)
    steps = [one.gradient(x) for _ in range(2)]
    assert not torch.allclose(*steps)
    assert torch.equal(again.gradient(x), steps[0])
    assert not torch.allclose(oracle(shard(5), 1).gradient(x), steps[0])


@pytest.mark.parametrize("minibatch", [FULL, Poisson(batch_size=2)])
def test_draws_do_not_depend_on_who_is_stacked_with_whom(minibatch):
    problem = ModuleProblem(model())
    shards = [shard(5, 5), shard(5, 6)]
    points = torch.stack([problem.start, problem.manifold.projx(problem.start + 0.1)])
    stacked = oracle(Examples.stack(shards), (0, 1), minibatch)
    each = [oracle(s, i, minibatch) for i, s in enumerate(shards)]
    for _ in range(2):
        found = stacked.gradient(points)
        alone = torch.stack([o.gradient(x) for o, x in zip(each, points, strict=True)])
        assert_near(found, alone, 1e-12)


def test_a_model_is_judged_without_dropping():
    problem = ModuleProblem(model())
    examples = shard(4)
    whole = nn.Sequential(*[m for m in problem.model if not isinstance(m, KeyedDropout)])
    expected = nn.functional.cross_entropy(
        whole(examples["feature"]), examples["label"], reduction="none"
    )
    torch.testing.assert_close(problem.losses(problem.start, examples), expected.detach())

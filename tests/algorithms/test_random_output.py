"""Option 2: the index is drawn first, uniformly, and the iterate at that index is what is kept."""

import pytest
import torch
from scipy import stats

from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.oracles.minibatch import Full
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from tests.conformance.client_cases import ClientCase, play, shards, start

CLIENTS = 1200
STEPS = 6
SIZE = 12
RANDOM = {"step_size": 0.2, "minibatch": Full(), "output": "random-iterate"}
UPDATES = [RSGD(local_steps=STEPS, **RANDOM), RSVRG(epochs=2, inner_steps=3, **RANDOM)]


def upload(training, partition, x, examples, sizes):
    case = ClientCase(training.kind, training, ExampleMechanism())
    return play(case, partition, x, examples, sizes, NoiseSource.from_seed(21), 1).up["train.u"]


@pytest.mark.statistical
@pytest.mark.parametrize("training", UPDATES, ids=lambda update: update.kind)
def test_every_iterate_but_the_last_is_kept_alike(training):
    """Full batches without noise: every client walks one chain, that of gradient descent."""
    shard = shards()[0]
    x = start()
    chain = [torch.zeros_like(x)]
    for steps in range(1, STEPS):
        descent = RSGD(step_size=0.2, local_steps=steps, minibatch=Full())
        chain.append(upload(descent, 0, x, shard, SIZE))
    many = Examples(
        {k: t.expand(CLIENTS, *t.shape) for k, t in shard.tensors.items()}, shard.feature_ndim
    )
    who = tuple(range(CLIENTS))
    sent = upload(training, who, x.expand(CLIENTS, -1), many, [SIZE] * CLIENTS)
    counts = (torch.cdist(sent, torch.stack(chain)) < 1e-7).sum(0).tolist()
    assert sum(counts) == CLIENTS
    assert stats.chisquare(counts).pvalue > 1e-6
    assert stats.chisquare([counts[0] + counts[1], 0, *counts[2:]]).pvalue < 1e-6

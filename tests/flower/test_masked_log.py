"""A run's messages under Flower, read as an adversary who knows everything but the noise does."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from manifed.experiment.assembly import load_shards, plan_of
from manifed.flower.records import tensors_from_record
from manifed.flower.transport import InlineGrid, MessageTransport
from manifed.privacy.secldp import Correlated
from tests.algorithms.gossip_runs import experiment, grid_of, reports_of
from tests.attacks.transcript import Heard, read

NODES = 6
ROUNDS = 20
D = 5


class Listening(InlineGrid):
    """Keeps every message of a run, down and up, in order."""

    def __init__(self, *given):
        super().__init__(*given)
        self.heard = []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.heard += zip(messages, replies, strict=True)
        return replies


def arrays(message):
    (record,) = (r for r in message.content.values() if isinstance(r, ArrayRecord))
    return tensors_from_record(record)


def heard_in(messages, config):
    """The rounds, from the bytes on the wire."""
    return [
        Heard(
            torch.stack([arrays(down)["x"] for down, _ in turn]),
            torch.stack([arrays(up)["x"] for _, up in turn]),
            config.training.step_size,
        )
        for turn in (messages[r : r + NODES] for r in range(0, NODES * ROUNDS, NODES))
    ]


def clean(config):
    """Every node's clipped gradient, from all data."""
    found = load_shards(config)

    def gradients(x):
        each = torch.stack([
            found.problem.gradients(x[i], shard).sum(torch.full((D,), 1 / D, dtype=torch.float64))
            for i, shard in enumerate(found.examples)
        ])  # fmt: skip
        return each * (1.0 / each.norm(dim=1, keepdim=True)).clamp_max(1.0)

    return gradients


@pytest.mark.statistical
@pytest.mark.parametrize("keys", ["seeded", "exchanged"])
def test_nothing_un_masked_is_in_the_message_log_of_a_run(keys):
    privacy = {
        "kind": "correlated", "l2_norm_clip": 1.0, "noise_stddev": 2.0, "mask_stddev": 7.0,
        "delta": 1e-5,
    }  # fmt: skip
    config = experiment(
        NODES, ROUNDS, D, privacy, kind="decor", step_size=0.01, pair_keys=keys,
        minibatch={"kind": "full"},
    )  # fmt: skip
    grid = grid_of(config, Listening)
    reports_of(config, transport=MessageTransport.meet(grid, plan_of(config)))
    rounds = grid.heard[-NODES * ROUNDS :]
    for _, up in rounds:
        assert set(arrays(up)) == {"x"}
        assert not list(up.content.metric_records)
    heard = heard_in(rounds, config)
    for reading in read(heard, clean(config), config.training.network.graph, Correlated(2.0, 7.0)):
        assert reading.is_as_charged, reading
    left = torch.stack([(h.had - h.sent) / h.step_size - clean(config)(h.had) for h in heard])
    total = float(left.sum(1).square().mean()) / (NODES * 2.0**2)
    assert 0.4 < total < 2.0, "masks did not cancel in the sum over all nodes"
    if keys == "exchanged":
        _no_secret_travelled(grid)


def _no_secret_travelled(grid):
    """Of every 32 bytes that a node holds as a secret, none are in a message."""
    wire = b"".join(
        np.ascontiguousarray(tensor.numpy()).tobytes()
        for pair in grid.heard
        for message in pair
        if any(isinstance(r, ArrayRecord) for r in message.content.values())
        for tensor in arrays(message).values()
    )
    held = [
        row.tobytes()
        for context in grid._contexts.values()
        for record in context.state.values()
        if isinstance(record, ArrayRecord)
        for name, array in record.items()
        if "secret" in name or "pairs" in name
        for row in array.numpy().reshape(-1, 32)
    ]
    assert len(held) >= 2 * NODES
    assert not [row for row in held if row in wire]
    assert len(wire) > 2 * NODES * 32

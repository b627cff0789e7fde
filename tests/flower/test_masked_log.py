"""A run's messages under Flower, read as an adversary who knows everything but the noise does."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message

from manifed.experiment.assembly import initial_point, load_shards, plan_of
from manifed.experiment.load import parse
from manifed.federation.rounds import run_rounds
from manifed.flower.client import client_app_of
from manifed.flower.handshake import meet
from manifed.flower.inline import InlineGrid
from manifed.flower.records import tensors_from_record
from manifed.flower.transport import MessageTransport
from manifed.privacy.secldp import Correlated
from manifed.setting import CorrelatedNoise
from tests.attacks.transcript import Heard, read

NODES = 6
ROUNDS = 20
D = 5


def config_of(**training):
    return parse(
        {
            "name": "log",
            "problem": {"kind": "least-squares", "scaling": "sum"},
            "data": {"kind": "scaled-identities", "num_clients": NODES, "dimension": D},
            "federation": {
                "num_clients": NODES, "num_rounds": ROUNDS, "partition": {"kind": "natural"},
            },
            "training": {
                "kind": "decor", "graph": {"kind": "ring"}, "step_size": 0.01,
                "minibatch": {"kind": "full"}, **training,
            },
            "privacy": {
                "kind": "correlated", "l2_norm_clip": 1.0, "noise_stddev": 2.0,
                "mask_stddev": 7.0, "delta": 1e-5,
            },
        }
    )  # fmt: skip


@dataclass
class Log:
    """Every message of a run, down and up, in order, and what nodes hold at its end."""

    messages: list[tuple[Message, Message]]
    grid: InlineGrid


def played(config):
    class Listening(InlineGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            replies = list(super().send_and_receive(messages, timeout=timeout))
            heard.extend(zip(messages, replies, strict=True))
            return replies

    heard: list[tuple[Message, Message]] = []
    grid = Listening(client_app_of(lambda _: config), NODES, {})
    plan = plan_of(config)
    nodes = meet(grid, plan.config_sha256, plan.num_examples, timeout=5.0, patience=0.0)
    heard.clear()
    start = plan.server_update.start(initial_point(config))
    for _ in run_rounds(plan, start, MessageTransport(grid, nodes, 60.0), num_rounds=ROUNDS):
        pass
    return Log(heard, grid)


def arrays(message):
    (record,) = (r for r in message.content.values() if isinstance(r, ArrayRecord))
    return tensors_from_record(record)


def heard_in(log, config):
    """The rounds, from the bytes on the wire."""
    last = log.messages[-NODES * ROUNDS :]
    rounds = [last[r * NODES : (r + 1) * NODES] for r in range(ROUNDS)]
    return [
        Heard(
            torch.stack([arrays(down)["x"] for down, _ in turn]),
            torch.stack([arrays(up)["x"] for _, up in turn]),
            config.training.step_size,
        )
        for turn in rounds
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
    config = config_of(pair_keys=keys)
    assert isinstance(config.privacy, CorrelatedNoise)
    log = played(config)
    noise = Correlated(2.0, 7.0)
    for _, up in log.messages[-NODES * ROUNDS :]:
        assert set(arrays(up)) == {"x"}
        assert not list(up.content.metric_records)
    heard = heard_in(log, config)
    graph = config.training.network.graph
    for reading in read(heard, clean(config), graph, noise):
        assert reading.is_as_charged, reading
    left = torch.stack([(h.had - h.sent) / h.step_size - clean(config)(h.had) for h in heard])
    total = float(left.sum(1).square().mean()) / (NODES * 2.0**2)
    assert 0.4 < total < 2.0, "masks did not cancel in the sum over all nodes"
    if keys == "exchanged":
        _no_secret_travelled(log)


def _no_secret_travelled(log):
    """Of every 32 bytes that a node holds as a secret, none are in a message."""
    wire = b"".join(
        np.ascontiguousarray(tensor.numpy()).tobytes()
        for pair in log.messages
        for message in pair
        if any(isinstance(r, ArrayRecord) for r in message.content.values())
        for tensor in arrays(message).values()
    )
    held = [
        row.tobytes()
        for context in log.grid._contexts.values()
        for record in context.state.values()
        if isinstance(record, ArrayRecord)
        for name, array in record.items()
        if "secret" in name or "pairs" in name
        for row in array.numpy().reshape(-1, 32)
    ]
    assert len(held) >= 2 * NODES
    assert not [row for row in held if row in wire]
    assert len(wire) > 2 * NODES * 32

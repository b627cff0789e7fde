"""A run's messages under Flower hold masked points, and no secret that a mask is drawn from."""

import numpy as np
import pytest
from flwr.app import ArrayRecord

from manifed.experiment.assembly import plan_of
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import meet
from manifed.flower.records import tensors_from_record
from tests.algorithms.gossip_runs import grid_of, reports_of
from tests.algorithms.test_decor import decor

NODES = 6
ROUNDS = 4


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
    """Of all records of a message, by name."""
    found = {}
    for record in message.content.values():
        found |= tensors_from_record(record) if isinstance(record, ArrayRecord) else {}
    return found


@pytest.mark.parametrize("keys", ["seeded", "exchanged"])
def test_nothing_but_masked_points_is_in_the_message_log_of_a_run(keys):
    """That those points are masked: tests/algorithms/test_decor.py."""
    config = decor(ROUNDS, pair_keys=keys)
    grid = grid_of(config, Listening)
    reports_of(config, transport=meet(grid, plan_of(config)))
    for _, up in grid.heard[-NODES * ROUNDS :]:
        assert set(arrays(up)) == {"x"}
        assert not list(up.content.metric_records)
    if keys == "exchanged":
        _no_secret_travelled(grid)


def _no_secret_travelled(grid):
    """Of every 32 bytes that a node holds as a secret, none are in a message."""
    wire = b"".join(
        np.ascontiguousarray(tensor.numpy()).tobytes()
        for pair in grid.heard
        for message in pair
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

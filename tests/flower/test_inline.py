"""The app on the inline engine: equal to a loop a reader can check by eye."""

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from manifed.algorithms import rsgd
from manifed.algorithms.payloads import Point
from manifed.cli.launch import Request, launch
from manifed.experiment.assembly import initial_point, load_shards
from manifed.experiment.load import load
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.flower import grids
from manifed.flower.grids import InlineGrid
from manifed.plan import example_mechanism
from manifed.privacy.random_numbers import NoiseSource
from tests.fresh import QUICKSTART
from tests.tensors import assert_near

SMALL = (
    "federation.num_clients=4",
    "federation.num_rounds=3",
    "training.local_steps=2",
)


def run(tmp_path, *sets, name="run"):
    return launch(Request(str(QUICKSTART), (*SMALL, *sets), out=tmp_path / name, plain=True))


def reference_loop(config):
    """PriRFed in twenty lines: Algorithm 1 over Algorithm 2, no Flower."""
    found = load_shards(config)
    setup = ClientSetup(
        found.problem, config.training, example_mechanism(config.setting, found.sizes)
    )
    source = NoiseSource.from_seed(config.federation.seed)
    x = initial_point(config)
    for t in range(1, config.federation.num_rounds + 1):
        total = torch.zeros_like(x)
        weight = 0
        for i in config.federation.cohort.draw(len(found.examples), t, 0, source):
            shard = found.examples[i]
            seat = Seat(i, t, 0, "train")
            done = run_update(setup, seat, Point(x), None, shard, len(shard), source)
            total += len(shard) * done.up.tensors()["u"]
            weight += len(shard)
        if weight:
            x = found.problem.manifold.expmap(x, total / weight)
    return x


@pytest.mark.parametrize("execution", ["messages", "cohort"])
def test_the_app_is_the_reference_loop(tmp_path, execution):
    cohort = "federation.cohort={kind='poisson',sampling_probability=0.4}"
    folder = run(tmp_path, cohort, f"engine.execution={execution}")
    config = load(QUICKSTART, [*SMALL, cohort])
    model = folder.load_tensors("model")["x"]
    assert_near(model, reference_loop(config), 1e-12)


def delivered(content, trained):
    """The reply of a node whose handler does this, what it answers, and what the node holds."""
    app = ClientApp()
    app.train()(trained)
    grid = InlineGrid(app, 1, {})
    message = Message(content, dst_node_id=2, message_type="train")
    (reply,) = grid.send_and_receive([message])
    return reply, message, grid._contexts[2].state


@pytest.mark.parametrize("breaks", [False, True])
def test_state_is_rolled_back_when_a_handler_raises(breaks):
    def train(message, context):
        context.state["count"] = ConfigRecord({"n": 1})
        if breaks:
            raise ValueError("client boom")
        return Message(message.content, reply_to=message)

    reply, message, state = delivered(RecordDict(), train)
    assert reply.has_error() == breaks
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert ("count" in state) == (not breaks)
    if breaks:
        assert "client boom" in reply.error.reason


def test_a_receiver_cannot_write_into_the_senders_records():
    def train(message, context):
        message.content["shared"]["n"] = 2
        return Message(RecordDict(), reply_to=message)

    content = RecordDict({"shared": ConfigRecord({"n": 1})})
    delivered(content, train)
    assert content["shared"]["n"] == 1


def test_a_slow_client_costs_the_others_nothing_and_the_folder_names_it(tmp_path, monkeypatch):
    plain = rsgd.RSGD.client
    now = [0.0]

    def takes_a_minute_at_client_1(self, x, oracle, here):
        now[0] += 60.0 if here.draws.partition == 1 else 4.0
        return plain(self, x, oracle, here)

    monkeypatch.setattr(rsgd.RSGD, "client", takes_a_minute_at_client_1)
    monkeypatch.setattr(grids.time, "monotonic", lambda: now[0])
    folder = run(tmp_path, "federation.replies.timeout=5", "privacy={kind='none'}")
    assert folder.manifest()["replies"] == {
        "participants": 9,
        "failures": 3,
        "by_kind": {"late": 3, "unavailable": 0, "absent": 0, "unusable": 0},
        "by_client": {"1": {"no reply within 5 s (node 3)": 3}},
        "missed": {"1": {"late": [[1, 3]]}},
    }
    assert folder.metrics()["late"] == [0, 1, 1, 1]

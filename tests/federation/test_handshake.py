"""Who answers for which partition, whoever else comes."""

import time
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from manifed.flower.grids import InlineGrid, PollingGrid
from manifed.flower.handshake import HandshakeFailed, declared_sizes, meet
from manifed.runs.manifest import code_sha256

SIZES = (5, 6, 7)


def grid_of(count, **changes):
    """Nodes 2, 3, ...; ``changes`` maps "nI" to what node I says about itself."""
    app = ClientApp()

    @app.query()
    def introduce(message, context):
        i = int(context.node_config["partition-id"])
        said = {"config-sha256": "sha", "code-sha256": code_sha256()}
        said |= {"partition-id": i % 3, "num-examples": SIZES[i % 3]}
        said |= changes.get(f"n{context.node_id}", {})
        return Message(RecordDict({"header": ConfigRecord(said)}), reply_to=message)

    return InlineGrid(app, count, {})


def met(grid, timeout=10, **more):
    plan = SimpleNamespace(config_sha256="sha", num_examples=SIZES)
    return meet(grid, plan, timeout, **more).nodes


def test_a_stranger_that_claims_a_taken_partition_is_logged_and_left_out(caplog):
    assert met(grid_of(4)) == {0: 2, 1: 3, 2: 4}
    assert "node 5: partition-id 0 was claimed before, by node 2" in caplog.text


def test_a_stranger_that_takes_the_place_of_a_late_node_does_not_stop_the_run(monkeypatch):
    grid = grid_of(4, n2={"partition-id": "text"})
    began = time.monotonic()

    def appearing():
        return [2, 3, 4] if time.monotonic() < began + 0.3 else [2, 3, 4, 5]

    monkeypatch.setattr(grid, "get_node_ids", appearing)
    assert met(grid, patience=5) == {0: 5, 1: 3, 2: 4}


@pytest.mark.parametrize("sender", [1, 3])
def test_a_node_that_the_superlink_lost_is_asked_again_when_it_is_back(monkeypatch, sender):
    grid = grid_of(3)
    gone = []
    deliver = grid._deliver

    def dies_once(message):
        answer = deliver(message)
        if message.metadata.dst_node_id == 3 and not gone:
            gone.append(3)
            reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "no heartbeat"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = sender
            return reply
        return answer

    monkeypatch.setattr(grid, "_deliver", dies_once)
    if sender == 1:
        assert met(grid, patience=0.1) == {0: 2, 1: 3, 2: 4}
    else:  # whoever says so of itself is not asked for ever
        with pytest.raises(HandshakeFailed, match=r"missing \[1\]: node 3: error 5"):
            met(grid, patience=0.1)


def test_nobody_waits_for_a_stranger_that_is_silent(monkeypatch):
    grid = grid_of(4)
    plain = grid.pull_messages
    monkeypatch.setattr(
        grid, "pull_messages", lambda ids: [r for r in plain(ids) if r.metadata.src_node_id != 5]
    )
    began = time.monotonic()
    assert met(grid, 3600) == {0: 2, 1: 3, 2: 4}
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"config-sha256": "other"}, "client 1 runs another config"),
        (
            {"code-sha256": "f" * 64},
            f"client 1 runs manifed 'ffffffffffff', this process '{code_sha256()[:12]}'",
        ),
        ({"num-examples": 99}, "client 1 declares 99 .* accounting uses 6"),
        ({"partition-id": -1}, r"partition-id -1 is outside 0\.\.2"),
        ({"partition-id": True}, "Expected partition-id of type int, got True"),
        ({"more": 1}, "Expected a 'header' record"),
    ],
)
def test_a_member_that_says_something_else_is_named(said, words):
    with pytest.raises(HandshakeFailed, match=rf"missing \[1\]: node 3: {words}"):
        met(grid_of(3, n3=said), patience=0.0)


def test_an_error_of_a_member_is_one_short_line(monkeypatch):
    grid = grid_of(3)
    plain = grid._deliver

    def deliver(message):
        answer = plain(message)
        if message.metadata.dst_node_id == 3:
            return Message(Error(2, "boom\n" * 10**5), reply_to=message)
        return answer

    monkeypatch.setattr(grid, "_deliver", deliver)
    with pytest.raises(HandshakeFailed, match="node 3: error 2: boom") as failed:
        met(grid, patience=0.0)
    assert len(str(failed.value)) < 400
    assert str(failed.value).isprintable()


def test_too_few_nodes_are_waited_for_and_counted(caplog):
    with pytest.raises(HandshakeFailed, match=r"Expected 3 clients within 0\.2 s, got 2"):
        met(grid_of(2), 0.2, patience=0.0)
    assert caplog.text.count("Handshake: Expected 3 clients within 0.2 s, got 2; start more") == 1


# -- Flower's simulation: its nodes are registered while the server asks, and then are all there --
class Simulated(InMemoryGrid):
    """Flower's own grid of a simulation, of nodes that answer in this process."""

    def __init__(self, nodes, registered=None):
        self._run = nodes.run
        self.get_node_ids = registered or nodes.get_node_ids
        self.push_messages = nodes.push_messages
        self.pull_messages = nodes.pull_messages


@pytest.mark.parametrize("wrapped", [lambda grid: grid, PollingGrid])
@pytest.mark.parametrize("said", [{}, {"n2": {"partition-id": "text"}}])
def test_a_simulation_with_too_few_nodes_ends_at_once_with_the_flag_that_mends_it(wrapped, said):
    grid = wrapped(Simulated(grid_of(2, **said)))
    words = (
        r"Expected 3 clients, got 2: .* --federation-config num-supernodes=3 to flwr run, or lower "
        r"federation\.num_clients to 2 \(--run-config num-clients=2\)$"
    )
    began = time.monotonic()
    for ask in (met, lambda grid, timeout: declared_sizes(grid, "sha", 3, timeout)):
        with pytest.raises(HandshakeFailed, match=words):
            ask(grid, 20)
    assert time.monotonic() - began < 5


def test_a_simulation_that_is_still_registering_is_waited_for():
    looks = []

    def registering():
        looks.append(None)
        return [2] if len(looks) == 1 else [2, 3, 4]

    grid = Simulated(grid_of(3), registering)
    assert met(grid) == {0: 2, 1: 3, 2: 4}
    assert len(looks) == 2

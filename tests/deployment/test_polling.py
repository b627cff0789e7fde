import time

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from manifed.flower.grids import UNREADABLE_REPLY, InlineGrid, PollingGrid


class LateGrid(InlineGrid):
    """Hands out the reply to message i only after the i-th multiple of ``delay`` seconds."""

    def __init__(self, delay):
        app = ClientApp()
        app.query()(lambda message, context: Message(RecordDict(), reply_to=message))
        super().__init__(app, 3, {})
        self.delay = delay
        self.due = {}
        self.looks = 0

    def push_messages(self, messages):
        ids = list(super().push_messages(messages))
        now = time.monotonic()
        self.due |= {name: now + i * self.delay for i, name in enumerate(ids)}
        return ids

    def pull_messages(self, message_ids):
        self.looks += 1
        now = time.monotonic()
        return super().pull_messages([i for i in message_ids if self.due[i] <= now])

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the slow road")


def _queries(grid):
    nodes = grid.get_node_ids()
    return [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]


@pytest.mark.parametrize(
    ("delay", "timeout", "count", "least", "most"),
    [(0.15, None, 3, 0.3, 1.0), (30.0, 0.3, 1, 0.3, 2.0)],
)
def test_every_reply_comes_once_and_soon_until_the_timeout(delay, timeout, count, least, most):
    late = LateGrid(delay)
    grid = PollingGrid(late)
    began = time.monotonic()
    replies = list(grid.send_and_receive(_queries(grid), timeout=timeout))
    assert len({reply.metadata.reply_to_message_id for reply in replies}) == len(replies) == count
    assert least <= time.monotonic() - began < most
    assert late.looks < 3 * 30


class BrokenGrid(LateGrid):
    """Node 3's reply cannot be unpacked, and whatever is pulled together with it is lost."""

    def pull_messages(self, message_ids):
        found = list(super().pull_messages(list(message_ids)))
        if any(reply.metadata.src_node_id == 3 for reply in found):
            raise ValueError("hostile\nbytes")
        return found


def test_a_lost_connection_is_not_a_nodes_failure(monkeypatch):
    late = LateGrid(0.0)
    grid = PollingGrid(late)

    def lost(_):
        raise ConnectionError("gone")

    monkeypatch.setattr(late, "pull_messages", lost)
    with pytest.raises(ConnectionError):
        grid.send_and_receive(_queries(grid))


class RefusingGrid(LateGrid):
    """Flower takes no message for node 3, which has left."""

    def push_messages(self, messages):
        sent = list(messages)
        taken = iter(super().push_messages([m for m in sent if m.metadata.dst_node_id != 3]))
        return ["" if m.metadata.dst_node_id == 3 else next(taken) for m in sent]


class ForgingGrid(LateGrid):
    """Node 3's reply says that it answers what node 2 was asked."""

    def pull_messages(self, message_ids):
        for reply in list(super().pull_messages(list(message_ids))):
            if reply.metadata.src_node_id == 3:
                reply.metadata.__dict__["_src_node_id"] = 2
                reply.metadata.__dict__["_reply_to_message_id"] = "inline-1"
            yield reply


@pytest.mark.parametrize(
    ("grid", "code", "reason"),
    [
        (BrokenGrid, UNREADABLE_REPLY, "a reply that cannot be unpacked: ValueError"),
        (RefusingGrid, ErrorCode.NODE_UNAVAILABLE, "the SuperLink refused it"),
        (ForgingGrid, UNREADABLE_REPLY, "a reply that says it answers another message"),
    ],
)
def test_what_one_node_breaks_is_its_failure_alone(grid, code, reason):
    polling = PollingGrid(grid(0.0))
    sent = _queries(polling)
    if grid is RefusingGrid:
        for number, message in enumerate(sent):
            message.metadata.__dict__["_message_id"] = f"named-{number}"
    replies = {r.metadata.src_node_id: r for r in polling.send_and_receive(sent, timeout=5)}
    found = {node: reply.has_error() for node, reply in replies.items()}
    assert found == {2: False, 3: True, 4: False}
    assert (replies[3].error.code, replies[3].error.reason) == (code, reason)

import time
from collections.abc import Iterable

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from app.engines.inline import InlineGrid
from app.engines.polling import PollingGrid


class LateGrid(InlineGrid):
    """Hands out the reply to message i only after the i-th multiple of ``delay`` seconds."""

    def __init__(self, delay: float) -> None:
        app = ClientApp()

        @app.query()
        def echo(message: Message, context: object) -> Message:
            return Message(RecordDict(), reply_to=message)

        super().__init__(app, 3, {})
        self.delay, self.due, self.looks = delay, {}, 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = list(super().push_messages(messages))
        now = time.monotonic()
        self.due |= {name: now + i * self.delay for i, name in enumerate(ids)}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.looks += 1
        now = time.monotonic()
        return super().pull_messages([i for i in message_ids if self.due[i] <= now])

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise AssertionError("the slow road")


def _queries(grid: Grid) -> list[Message]:
    nodes = grid.get_node_ids()
    return [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]


def test_every_reply_comes_once_and_soon_after_it_is_there() -> None:
    late = LateGrid(0.15)
    grid = PollingGrid(late)
    began = time.monotonic()
    replies = list(grid.send_and_receive(_queries(grid)))
    assert len({reply.metadata.reply_to_message_id for reply in replies}) == 3
    assert 0.3 <= time.monotonic() - began < 1.0
    assert late.looks < 30


def test_a_timeout_returns_what_has_arrived() -> None:
    grid = PollingGrid(LateGrid(30.0))
    began = time.monotonic()
    assert len(list(grid.send_and_receive(_queries(grid), timeout=0.3))) == 1
    assert time.monotonic() - began < 2.0


def test_nothing_sent_is_nothing_waited_for() -> None:
    assert list(PollingGrid(LateGrid(30.0)).send_and_receive([])) == []


def test_everything_else_is_the_grids_own() -> None:
    late = LateGrid(0.0)
    grid = PollingGrid(late)
    assert list(grid.get_node_ids()) == list(late.get_node_ids())
    assert grid.run is late.run
    (number,) = grid.push_messages(_queries(grid)[:1])
    assert len(list(grid.pull_messages([number]))) == 1
    with pytest.raises(AssertionError, match="the slow road"):
        late.send_and_receive([])

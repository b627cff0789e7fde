"""Grids of our own: one that asks for replies as soon as there may be some, one in this process.

`PollingGrid` goes over any Grid of Flower's, whose own ``send_and_receive`` sleeps 3 s between two
looks in a deployment and 0.1 s in a simulation. It uses only the public ``push_messages`` and
``pull_messages``, looks again after 5 ms, and doubles the pause up to 0.1 s while nothing comes.

Replies are pulled one message at a time. Flower unpacks what it pulls, and a reply that cannot be
unpacked would lose the others of its batch, whose receipt is confirmed by then; and which message
a reply answers is known from the SuperLink then, not from what the sender wrote into it.

`InlineGrid` is the Grid of the inline engine: the same ClientApp in this process, with genuine
messages.
"""

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from itertools import count, zip_longest

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from google.protobuf.message import DecodeError

_SHORTEST_PAUSE = 0.005
UNREADABLE_REPLY = 1000
"""Our code, beside Flower's, of the error for a reply that came and cannot be used."""
_UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    DecodeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""What unpacking a sender's bytes may raise; what the connection raises is not among them."""


class OwnGrid(Grid):
    """Base of Grids of one run, with the methods that Flower asks for beside sending."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def set_run(self, run: Run) -> None:
        """Replace the run this grid belongs to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid belongs to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message (Flower deprecates this in favour of Message(...))."""
        return Message(
            content, dst_node_id=dst_node_id, message_type=message_type, ttl=ttl, group_id=group_id
        )


class PollingGrid(OwnGrid):
    """A Grid that wraps ``grid`` with a ``send_and_receive`` that wakes as replies arrive."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid.run)
        self.inner = grid
        """The grid underneath."""
        self._asked: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected now, in no order."""
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends the messages and returns their ids."""
        sent = list(messages)
        identities = list(self.inner.push_messages(sent))
        for identity, message in zip(identities, sent, strict=False):
            if identity:
                self._asked[identity] = Message(  # pyright: ignore[reportCallIssue]  # no overload
                    RecordDict(), metadata=message.metadata
                )
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that are there now; each is handed out once.

        A reply that cannot be unpacked is an error reply of the node that was asked; one that says
        it answers another message is left out.
        """
        found = list[Message]()
        for identity in message_ids:
            if identity:
                found += self._pulled(identity)
        return found

    def _pulled(self, identity: str) -> list[Message]:
        asked = self._asked.get(identity)
        try:
            replies = list(self.inner.pull_messages([identity]))
        except _UNREADABLE as error:
            if asked is None:
                raise
            reason = f"a reply that cannot be unpacked: {type(error).__name__}"
            replies = [Message(Error(UNREADABLE_REPLY, reason), reply_to=asked)]
        if replies:
            self._asked.pop(identity, None)
        kept = [reply for reply in replies if reply.metadata.reply_to_message_id == identity]
        if replies and not kept and asked is not None:
            log(30, "Node %d answered as if to another message", asked.metadata.dst_node_id)
            reason = "a reply that says it answers another message"
            kept = [Message(Error(UNREADABLE_REPLY, reason), reply_to=asked)]
        return kept

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """The replies, in the order of their arrival; fewer than sent after ``timeout`` seconds.

        They count from when everything was sent. A message that Flower does not take, because its
        node is gone, is an error reply of that node.
        """
        sent = list(messages)
        identities = list(self.push_messages(sent))
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = {identity for identity in identities if identity}
        replies = [
            Message(Error(ErrorCode.NODE_UNAVAILABLE, "the SuperLink refused it"), reply_to=message)
            for message, identity in zip_longest(sent, identities[: len(sent)])
            if not identity
        ]
        pause = _SHORTEST_PAUSE
        while waiting:
            began = time.monotonic()
            arrived = list(self.pull_messages(waiting))
            took = time.monotonic() - began
            replies += arrived
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                break
            pause = _SHORTEST_PAUSE if arrived else min(2 * pause, 0.1)
            time.sleep(max(pause, took))  # at most half of the time is spent on looking
        return replies


_FIRST_NODE = 2


class InlineGrid(OwnGrid):
    """A Grid whose nodes are contexts in this process, with ids 2, 3, ... in partition order.

    It hands each message to the ClientApp itself: no Ray, no server, 0.2 ms a message. Errors
    become error replies, state is rolled back when a handler raises (as under Flower's simulation),
    and every receiver gets record containers of its own.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_supernodes: int,
        run_config: Mapping[str, bool | float | int | str],
        node_config: Callable[[int], dict[str, bool | float | int | str]] = lambda _: {},
    ) -> None:
        """One context a node; ``node_config(i)`` adds to partition i's own."""
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1
        self._app = client_app
        super().__init__(Run.create_empty(1))
        self._ids = count(1)
        self._replies: dict[str, Message] = {}
        self._contexts = {
            _FIRST_NODE + i: Context(
                run_id=1,
                node_id=_FIRST_NODE + i,
                node_config={
                    "partition-id": i,
                    "num-partitions": num_supernodes,
                    **node_config(i),
                },
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for i in range(num_supernodes)
        }

    def get_node_ids(self) -> Iterable[int]:
        """The node ids, ascending."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Runs each message's handler now; replies wait for `pull_messages`."""
        sent = list(messages)
        replies = list(map(self._deliver, sent))
        pushed = [message.metadata.message_id for message in sent]
        self._replies.update(zip(pushed, replies, strict=True))
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Returns the replies to the messages with these ids, once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Returns replies in order; one that took longer than ``timeout`` seconds is dropped.

        Nodes answer one after the other here, so each has a clock of its own, as where they work at
        the same time: a slow one costs the others nothing.
        """
        replies = list[Message]()
        for message in messages:
            began = time.monotonic()
            reply = self._deliver(message)
            if timeout is None or time.monotonic() - began <= timeout:
                replies.append(reply)
        return replies

    def _deliver(self, message: Message) -> Message:
        """The reply to a message, which gets an id where it has none."""
        node = message.metadata.dst_node_id
        if not message.metadata.message_id:
            message.metadata.__dict__["_message_id"] = f"inline-{next(self._ids)}"
        if node not in self._contexts:
            reason = f"Expected a node out of {_FIRST_NODE}.., got {node}"
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)
        context = self._contexts[node]
        before = deepcopy(context.state)
        own = Message(  # pyright: ignore[reportCallIssue]  # a form without an overload
            deepcopy(message.content), metadata=message.metadata
        )
        try:
            reply = self._app(own, context)
            if not isinstance(reply, Message):
                raise TypeError(
                    f"Expected a Message from the ClientApp, got {type(reply).__name__}"
                )
            return reply
        except (Exception, SystemExit) as error:
            context.state = before
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

"""The transport over a Flower Grid: handshake, messages, and usable uploads from replies.

`InlineGrid` is the Grid of the inline engine: the same ClientApp in this process, with genuine
messages.

Whoever replies chooses every byte of the reply: an answer counts only for the message it replies
to, only from the node that was asked, and only with the header that was sent. Whether an upload is
tangent is the round's to judge, as for every transport (manifed/federation/exchange.py).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import Self

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from manifed.algorithms.payloads import Payload, PerClient
from manifed.experiment.schema import Experiment
from manifed.federation.exchange import Asked, Failure, Kind, Replies, plain
from manifed.federation.plan import Plan
from manifed.flower.client import client_app_of
from manifed.flower.handshake import meet
from manifed.flower.polling import UNREADABLE_REPLY, OwnGrid
from manifed.flower.records import BadMessage, pack, read_reply, tensors_to_record


@dataclass(frozen=True)
class MessageTransport:
    """Transport that sends each client one message, to the node that holds its partition."""

    grid: Grid
    nodes: Mapping[int, int]
    """Partition to node."""
    timeout: float
    """Seconds to wait for the replies of one exchange."""

    @classmethod
    def meet(cls, grid: Grid, plan: Plan, timeout: float | None = None) -> Self:
        """Makes the transport of a federation in which every partition answered the handshake.

        Raises:
            HandshakeFailed: as `manifed.flower.handshake.meet`.
        """
        timeout = plan.policy.timeout if timeout is None else timeout
        return cls(grid, meet(grid, plan.config_sha256, plan.num_examples, timeout), timeout)

    def exchange(self, asked: Asked) -> Replies:
        """Exchanges as `Transport.exchange`."""
        messages = self.messages(asked)
        return self.read(
            asked, messages, self.grid.send_and_receive(messages, timeout=self.timeout)
        )

    def messages(self, asked: Asked) -> list[Message]:
        """Makes one message for each client, in order."""
        down = asked.down
        if isinstance(down, PerClient):
            records = [
                tensors_to_record(vars(down.rows.take(row))) for row in range(len(asked.partitions))
            ]
        else:
            records = [tensors_to_record(vars(down))] * len(asked.partitions)
        return [
            Message(
                pack(asked.to(i), record),
                dst_node_id=self.nodes[i],
                message_type=MessageType.TRAIN,
                group_id=str(asked.header.server_round),
            )
            for i, record in zip(asked.partitions, records, strict=True)
        ]

    def read(
        self, asked: Asked, messages: Sequence[Message], answers: Iterable[Message]
    ) -> Replies:
        """Returns the readable ones of the ``answers`` to ``messages``.

        Of several replies of one client the first readable one counts.
        """
        by_node = _answers_by_node(messages, answers)
        nodes = {i: self.nodes[i] for i in asked.partitions}
        uploads: dict[int, Payload] = {}
        failures: dict[int, Failure] = {}
        origins: set[str] = set()
        kind = asked.phase.up
        point = asked.point
        for (i, node), message in zip(nodes.items(), messages, strict=True):
            first = None
            for reply in by_node.get(node, ()):
                read = _read(reply, message.content, kind, point)
                if not isinstance(read, Failure):
                    uploads[i], origin = read
                    origins.add(origin)
                    break
                first = first or read
            else:
                failures[i] = first or Failure("late", f"no reply within {self.timeout:g} s")
        found = list(uploads.values())
        return Replies(
            tuple(uploads),
            kind.stack(found) if found else asked.gathered([]),
            failures,
            asked.down.bytes_to(len(messages)),
            frozenset(origins),
            nodes,
        )


_KIND_OF_CODE: dict[int, Kind] = {
    ErrorCode.MESSAGE_UNAVAILABLE: "unavailable",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "unavailable",
    ErrorCode.NODE_UNAVAILABLE: "unavailable",
    ErrorCode.CLIENT_APP_CRASHED: "unavailable",
    UNREADABLE_REPLY: "unusable",
}


def _read(
    reply: Message, asked: RecordDict, kind: type[Payload], point: Tensor
) -> tuple[Payload, str] | Failure:
    """The payload of a reply, and where its noise is said to come from."""
    try:
        if reply.has_error():
            error = reply.error
            text = f"error {error.code}: {error.reason}"
            return Failure(_KIND_OF_CODE.get(error.code, "absent"), text)
        return read_reply(reply.content, asked, kind, tuple(point.shape), point.dtype)
    except BadMessage as bad:
        return Failure("unusable", str(bad))
    except Exception as error:  # whatever a reply makes a check do is that client's failure
        return Failure("unusable", f"not readable: {type(error).__name__}: {error}")


def _answers_by_node(
    messages: Sequence[Message], answers: Iterable[Message]
) -> dict[int, list[Message]]:
    """The answers to ``messages`` by the node that was asked, in the order they came.

    An answer counts only for the message it replies to and only from the node that was asked (or
    as an error of the SuperLink's own about that message); any other is logged and left out.
    """
    came = list(answers)  # a lazy grid sends, and so names the messages, only now
    asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    by_node: dict[int, list[Message]] = {}
    for answer in came:
        try:
            node = asked.get(answer.metadata.reply_to_message_id)
            sender = answer.metadata.src_node_id
        except Exception as error:
            node = None
            sender = type(error).__name__
        if node is None:
            log(30, "A reply of node %s to no message of this phase is left out", plain(sender))
        elif sender == node or (sender == SUPERLINK_NODE_ID and answer.has_error()):
            by_node.setdefault(node, []).append(answer)
        else:
            log(30, "A reply of node %s to node %d's message is left out", plain(sender), node)
    return by_node


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

    @classmethod
    def of(cls, config: Experiment) -> Self:
        """The grid of an experiment, whose every node is in this process."""
        return cls(client_app_of(lambda _: config), config.federation.num_clients, {})

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
        replies: list[Message] = []
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

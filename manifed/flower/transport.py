"""An exchange over any Flower Grid: handshake, messages, and from the replies to usable uploads.

Whoever replies chooses every byte of the reply: an answer counts only for the message it replies
to, only from the node that was asked, and only with the header that was sent. Whether an upload is
tangent is the round's to judge, as for every transport (manifed/federation/replies.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from manifed.algorithms.payloads import Payload, PerClient, down_bytes, downs
from manifed.federation.plan import Plan
from manifed.federation.replies import Failure, Kind, Replies, plain
from manifed.federation.stack import Asked, gathered, point_like
from manifed.flower.handshake import meet
from manifed.flower.polling import UNREADABLE_REPLY
from manifed.flower.records import BadMessage, pack, read_reply, tensors_to_record


@dataclass(frozen=True)
class MessageTransport:
    """One message a client and exchange, to the node that holds its partition."""

    grid: Grid
    nodes: Mapping[int, int]
    """Partition to node."""
    timeout: float
    """Seconds to wait for the replies of one exchange."""

    @classmethod
    def meet(cls, grid: Grid, plan: Plan, timeout: float | None = None) -> Self:
        """The transport of a federation whose every partition has answered the handshake.

        Raises:
            HandshakeFailed: as `manifed.flower.handshake.meet`.
        """
        timeout = plan.policy.timeout if timeout is None else timeout
        return cls(grid, meet(grid, plan.config_sha256, plan.num_examples, timeout), timeout)

    def exchange(self, asked: Asked) -> Replies:
        """As `Transport.exchange`."""
        messages = self.messages(asked)
        return self.read(
            asked, messages, self.grid.send_and_receive(messages, timeout=self.timeout)
        )

    def messages(self, asked: Asked) -> list[Message]:
        """One message for each client, in order."""
        down = asked.down
        alike = None if isinstance(down, PerClient) else tensors_to_record(vars(down))
        return [
            Message(
                pack(asked.to(i), alike or payload),
                dst_node_id=self.nodes[i],
                message_type=MessageType.TRAIN,
                group_id=str(asked.header.server_round),
            )
            for i, payload in zip(asked.partitions, downs(down, len(asked.partitions)), strict=True)
        ]

    def read(
        self, asked: Asked, messages: Sequence[Message], answers: Iterable[Message]
    ) -> Replies:
        """The readable ones of the ``answers`` to ``messages``.

        Of several replies of one client the first readable one counts.
        """
        by_node = _answers_by_node(messages, answers)
        nodes = {i: self.nodes[i] for i in asked.partitions}
        uploads: dict[int, Payload] = {}
        failures: dict[int, Failure] = {}
        origins: set[str] = set()
        kind = asked.phase.up
        point = point_like(asked.down)
        for (i, node), message in zip(nodes.items(), messages, strict=True):
            first = Failure("late", f"no reply within {self.timeout:g} s")
            for place, reply in enumerate(by_node.get(node, ())):
                read = _read(reply, message.content, kind, point)
                if not isinstance(read, Failure):
                    uploads[i], origin = read
                    origins.add(origin)
                    break
                first = first if place else read
            else:
                failures[i] = first
        parts = [kind.stack(list(uploads.values()))] if uploads else []
        return Replies(
            tuple(uploads),
            gathered(asked, parts),
            failures,
            down_bytes(asked.down, len(messages)),
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

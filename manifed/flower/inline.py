"""The inline engine: the same ClientApp in one process, with genuine messages.

An `InlineGrid` is a Flower Grid that hands each message to the ClientApp itself: no Ray, no server,
0.2 ms a message. Errors become error replies, state is rolled back when a handler raises (as under
Flower's simulation), and every receiver gets record containers of its own.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from manifed.flower.polling import OwnGrid

_UserConfig = dict[str, bool | float | int | str]
_FIRST_NODE = 2
_RUN_ID = 1


class InlineGrid(OwnGrid):
    """A Grid whose nodes are contexts in this process, with ids 2, 3, ... in partition order."""

    def __init__(
        self,
        client_app: ClientApp,
        num_supernodes: int,
        run_config: Mapping[str, bool | float | int | str],
        node_config: Callable[[int], _UserConfig] = lambda _: {},
    ) -> None:
        """One context a node; ``node_config(i)`` adds to partition i's own."""
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = _RUN_ID
        TaskIdentity.node_id = 1
        self._app = client_app
        super().__init__(Run.create_empty(_RUN_ID))
        self._ids = count(1)
        self._replies: dict[str, Message] = {}
        self._contexts = {
            _FIRST_NODE + i: Context(
                run_id=_RUN_ID,
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
        """Run each message's handler now; replies wait for `pull_messages`."""
        pushed: list[str] = []
        for message in messages:
            if not message.metadata.message_id:
                message.metadata.__dict__["_message_id"] = f"inline-{next(self._ids)}"
            pushed.append(message.metadata.message_id)
            self._replies[message.metadata.message_id] = self._deliver(message)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to the messages with these ids, once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies in order; one that took longer than ``timeout`` seconds is dropped.

        Nodes answer one after the other here, so each has a clock of its own, as where they work at
        the same time: a slow one costs the others nothing.
        """
        replies: list[Message] = []
        for message in messages:
            began = time.monotonic()
            ((identity),) = self.push_messages([message])
            (reply,) = self.pull_messages([identity])
            if timeout is None or time.monotonic() - began <= timeout:
                replies.append(reply)
        return replies

    def _deliver(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
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

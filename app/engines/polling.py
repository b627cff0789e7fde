"""A Grid that asks for replies as soon as there may be some, over any Grid of Flower's.

Flower's own ``send_and_receive`` sleeps 3 s between two looks in a deployment and 0.1 s in a
simulation. This one uses only the public ``push_messages`` and ``pull_messages``, looks again after
5 ms, and doubles the pause up to 0.1 s while nothing comes.
"""

import time
from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 0.1


class PollingGrid(Grid):
    """``grid``, with a ``send_and_receive`` that wakes early; everything else is handed through."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Replace the run of the grid underneath."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run of the grid underneath."""
        return self._grid.run

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

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected now, in no order."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends the messages and returns their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that are there now; each is handed out once."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """The replies, in the order of their arrival; fewer than sent after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        pause = SHORTEST_PAUSE
        while waiting:
            arrived = list(self.pull_messages(waiting))
            replies += arrived
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            if not waiting or (deadline is not None and time.monotonic() >= deadline):
                break
            pause = SHORTEST_PAUSE if arrived else min(2 * pause, LONGEST_PAUSE)
            time.sleep(pause)
        return replies

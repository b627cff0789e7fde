"""The server of projected federated learning as a Flower strategy: Algorithm 1, with everybody.

It sends the ambient x^r, un-projected, because clients rebuild their correction from it, and takes
the plain mean of ambient displacements. Its corrections sum to zero only if all clients reply: one
missing reply fails the round (the state before stays), whatever the reply policy, and so does a
model that leaves the tube in which its projection is unique. For cohorts: control_variates.py.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms.payloads import Point
from manifed.algorithms.projected import Projected
from manifed.federation.exchange import Replies
from manifed.federation.rounds import Attempt, Mean, averaged, noised
from manifed.flower.strategy import JointStrategy


class ProjectionMean(JointStrategy[Projected]):
    """Flower strategy of projected FL, Algorithm 1 of Zhang, Hu, So, Johansson (2024)."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the ambient x^r as it is, off the manifold in general, to everybody."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, Point(now.state["x"]))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Steps along the mean of ambient displacements, which stays in the tube (line 13)."""
        got = self.read(server_round, replies)  # finite
        return self.moved(got)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Returns the mean of ambient displacements, noised in the ambient norm at client level."""
        if self.plan.mechanism is None:
            return averaged(now, replies)
        return noised(now, replies)

"""The server of projected federated learning as a Flower strategy: Algorithm 1, with everybody.

It sends the ambient x^r, un-projected, because clients rebuild their correction from it, and takes
the plain mean of ambient displacements. Its corrections sum to zero only if all clients reply: one
missing reply fails the round (the state before stays), whatever the reply policy, and so does a
model that leaves the tube in which its projection is unique. For cohorts: control_variates.py.
"""

from typing import Unpack

from manifed.algorithms.payloads import Point
from manifed.algorithms.projected import Projected, reach
from manifed.errors import ConfigError, RoundFailed
from manifed.federation.aggregation import Mean
from manifed.federation.replies import Replies
from manifed.federation.rounds import Attempt, averaged, noised
from manifed.flower.strategy import ManifoldStrategy, Settings
from manifed.manifolds.base import Manifold


class ProjectionMean(ManifoldStrategy):
    """Algorithm 1 of Zhang, Hu, So, Johansson (2024) over a Grid."""

    def __init__(
        self,
        manifold: Manifold,
        update: Projected,
        **settings: Unpack[Settings],
    ) -> None:
        """``update`` is client and server update in one; both sides must hold equal ones.

        ``settings`` are the keyword arguments that `Settings` lists.

        Raises:
            ConfigError: for a manifold without a projection, or parts that do not go together.
        """
        try:
            reach(manifold)
        except ValueError as error:
            raise ConfigError(f"manifold: {error}") from None
        super().__init__(manifold, update, update, **settings)

    def send(self, now: Attempt) -> Point:
        """x^r as it is, off the manifold in general."""
        return Point(now.state["x"])

    def judge(self, now: Attempt, replies: Replies) -> Replies:
        """All replies or none; at client level a failed one is the zero vector.

        Raises:
            RoundFailed: when one is missing.
        """
        if self.plan.mechanism is not None:
            return replies.zero_filled(now.asked)
        if replies.failures:
            why = self.plan.policy.explain(replies, len(now.cohort), needs_everyone=True)
            raise RoundFailed(
                f"Round {now.server_round}: {why}; the corrections of projected federated learning "
                "sum to zero over all clients only"
            )
        return replies

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """The mean of ambient displacements, noised in the ambient norm at client level."""
        return averaged(now, replies) if self.plan.mechanism is None else noised(now, replies)

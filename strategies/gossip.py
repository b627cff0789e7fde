"""Gossip over a Grid as a Flower strategy: a model for every node, mixed here or handed on.

The server of a star carries the messages of a graph. It sees all of them: it is the eavesdropper of
decentralised learning, and privacy is priced against it. One message goes to every node and one
comes back in a round. A node that is missing fails the round, whatever the reply policy but
"retry": half of a mixing is none, and masks of neighbours would not cancel.
"""

from typing import Unpack

from manifed.algorithms.decor import Decor
from manifed.algorithms.gossip import Gossip as Plain
from manifed.algorithms.growing_samples import GrowingSamples
from manifed.algorithms.manifold_gossip import ManifoldGossip
from manifed.algorithms.payloads import PerClient
from manifed.errors import RoundFailed
from manifed.federation.aggregation import Mean
from manifed.federation.replies import Replies
from manifed.federation.rounds import Attempt
from manifed.flower.strategy import ManifoldStrategy, Settings
from manifed.manifolds.base import Manifold


class Gossip(ManifoldStrategy):
    """D-SGD and its kin on any graph, over a Grid."""

    def __init__(
        self,
        manifold: Manifold,
        update: Plain | Decor | GrowingSamples | ManifoldGossip,
        **settings: Unpack[Settings],
    ) -> None:
        """``update`` is client and server update in one; both sides must hold equal ones.

        ``settings`` are the keyword arguments that `Settings` lists.

        Raises:
            ConfigError: for parts that do not go together.
        """
        super().__init__(manifold, update, update, **settings)

    def send(self, now: Attempt) -> PerClient:
        """To every node its own row: its model, its neighbourhood, or keys before round 1."""
        down = super().send(now)
        assert isinstance(down, PerClient)
        return down

    def judge(self, now: Attempt, replies: Replies) -> Replies:
        """All half steps or none.

        Raises:
            RoundFailed: when one is missing.
        """
        if replies.failures:
            why = self.plan.policy.explain(replies, len(now.cohort), needs_everyone=True)
            raise RoundFailed(
                f"Round {now.server_round}: {why}; gossip mixes the half steps of all nodes"
            )
        return replies

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Nothing: the step mixes the uploads themselves."""
        return Mean({})

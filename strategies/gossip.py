"""Gossip over a Grid as a Flower strategy: a model for every node, mixed here or handed on.

The server of a star carries the messages of a graph. It sees all of them: it is the eavesdropper of
decentralised learning, and privacy is priced against it. One message goes to every node and one
comes back in a round. A node that is missing fails the round, whatever the reply policy but
"retry": half of a mixing is none, and masks of neighbours would not cancel.
"""

from collections.abc import Iterable
from typing import Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms.decor import Decor
from manifed.algorithms.gossip import Gossip as Plain
from manifed.algorithms.growing_samples import GrowingSamples
from manifed.federation.replies import Replies
from manifed.federation.rounds import Attempt, Mean, sent
from manifed.flower.strategy import ManifoldStrategy, Settings
from manifed.manifolds.base import Manifold


class Gossip(ManifoldStrategy):
    """D-SGD and its kin on any graph, over a Grid."""

    def __init__(
        self,
        manifold: Manifold,
        update: Plain | Decor | GrowingSamples,
        **settings: Unpack[Settings],
    ) -> None:
        """``update`` is client and server update in one; both sides must hold equal ones.

        ``settings`` are the keyword arguments that `Settings` lists.

        Raises:
            ConfigError: for parts that do not go together.
        """
        super().__init__(manifold, update, update, **settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """To every node a row of its own: its model, or keys before round 1."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, sent(now))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mixing of all half steps, or none."""
        got = self.read(server_round, replies)  # finite
        return self.moved(got)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Nothing: the step mixes the uploads themselves."""
        return Mean({})

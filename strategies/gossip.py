"""A Flower strategy of gossip: every node has a model, which the server mixes or passes on.

The server of a star carries the messages of a graph. It sees all of them: it is the eavesdropper of
decentralised learning, and privacy is priced against it. One message goes to every node and one
comes back in a round. A node that is missing fails the round, whatever the reply policy but
"retry": half of a mixing is none, and masks of neighbours would not cancel.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms.decor import Decor
from manifed.algorithms.gossip import Gossip as Plain
from manifed.algorithms.growing_samples import GrowingSamples
from manifed.federation.exchange import Replies
from manifed.federation.rounds import Attempt, Mean, sent
from manifed.flower.strategy import JointStrategy


class Gossip(JointStrategy[Plain | Decor | GrowingSamples]):
    """Flower strategy of D-SGD and its variants on any graph."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends every node its own row: its model, or keys before round 1."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, sent(now))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Mixes all half steps, or passes them on."""
        return self.moved(self.read(server_round, replies))  # finite

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Computes nothing, because the step mixes the uploads themselves."""
        return Mean({})

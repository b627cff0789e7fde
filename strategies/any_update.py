"""A Flower strategy for any server update, which itself says what it sends and how it steps.

For a server update of another package, and for those of the library that no other strategy carries:
algorithms with several exchanges a round, and one-shot releases.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.federation.exchange import Replies
from manifed.federation.rounds import Attempt, Mean, aggregated, sent
from manifed.flower.strategy import ManifoldStrategy


class AnyUpdate(ManifoldStrategy):
    """Flower strategy for any server update, which says itself what it sends and how it steps."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends what the server update broadcasts in its next exchange."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, sent(now))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes the server update's own step on the means of the uploads."""
        return self.moved(self.read(server_round, replies))  # finite, where the exchange says

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Computes every field's mean, noised at client level; nothing if the step needs none."""
        return aggregated(now, replies)

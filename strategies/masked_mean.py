"""A Flower strategy of the masked mean: masked messages come up, and masks cancel in the sum.

It sends one model to everybody and adds up the masked gradients that come back, in which the masks
of all pairs cancel. Where nodes are silent it asks the others for the masks that they shared with
them, once that is charged, and takes those off. A round fails when more are silent than the reply
policy or ``max_dropped`` allow, or when a survivor does not answer the second question.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms import masked_mean
from manifed.federation.exchange import Replies
from manifed.federation.rounds import Attempt, Mean, sent
from manifed.flower.strategy import JointStrategy


class MaskedMean(JointStrategy[masked_mean.MaskedMean]):
    """Flower strategy of the masked mean, DECOR's central special case, on any manifold."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the model or, after its charge, the question for masks with silent nodes."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, sent(now))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Steps along the sum in which masks cancel, less the masks of silent nodes."""
        got = self.read(server_round, replies)  # finite; the policy says how many may be silent
        return self.moved(got)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Computes nothing, because the step adds the uploads up itself."""
        return Mean({})

"""The masked mean over a Grid as a Flower strategy: masked messages in, a sum without masks out.

It sends one model to everybody and adds up the masked gradients that come back, in which the masks
of all pairs cancel. Where nodes are silent it asks the others for the masks that they shared with
them, once that is charged, and takes those off. A round fails when more are silent than the reply
policy or ``max_dropped`` allow, or when a survivor does not answer the second question.
"""

from collections.abc import Iterable
from typing import Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms import masked_mean
from manifed.federation.replies import Replies
from manifed.federation.rounds import Attempt, Mean, sent
from manifed.flower.strategy import ManifoldStrategy, Settings
from manifed.manifolds.base import Manifold


class MaskedMean(ManifoldStrategy):
    """The central special case of DECOR over a Grid, on any manifold."""

    def __init__(
        self, manifold: Manifold, update: masked_mean.MaskedMean, **settings: Unpack[Settings]
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
        """The model; or, once that is charged, the question for masks with silent nodes."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, sent(now))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The step along the sum in which masks cancel, those of silent nodes taken off."""
        got = self.read(server_round, replies)  # finite; the policy says how many may be silent
        return self.moved(got)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Nothing: the step adds the uploads up itself."""
        return Mean({})

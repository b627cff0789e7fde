"""Servers that keep a drift correction, as a Flower strategy: RFedSVRG and partial projected FL.

RFedSVRG takes two exchanges a round (gradients at x^r up and their mean down, then displacements);
under Flower's own loop that is two of its rounds for one of ours. The projected form keeps the last
displacement of every client in the server's state, so any cohort will do. Both keep a correction
for each client, so neither can be protected by noise on the mean alone: client-level privacy is
refused.
"""

from collections.abc import Iterable
from typing import Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms.projected import ProjectedPartial
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.federation.replies import Replies
from manifed.federation.rounds import Attempt, Mean, averaged, sent
from manifed.flower.strategy import CohortSettings, ManifoldStrategy
from manifed.manifolds.base import Manifold


class ControlVariates(ManifoldStrategy):
    """RFedSVRG (Li and Ma, 2022), or projected federated learning with cohorts, over a Grid."""

    def __init__(
        self,
        manifold: Manifold,
        update: RFedSVRG | ProjectedPartial,
        **settings: Unpack[CohortSettings],
    ) -> None:
        """``update`` is client and server update in one; both sides must hold equal ones.

        ``settings`` are the keyword arguments that `CohortSettings` lists.

        Raises:
            ConfigError: for client-level privacy, or parts that do not go together.
        """
        super().__init__(manifold, update, update, **settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The model, then its mean gradient; or the model with the corrections of each client."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, sent(now))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean, and after the last exchange the step; each upload is kept in its correction."""
        # who fails in the first exchange is not asked in the second
        got = self.read(server_round, replies)
        return self.moved(got)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """The mean gradient or displacement; each client's own is kept by the server's step."""
        return averaged(now, replies)

"""Servers that keep a drift correction, as a Flower strategy: RFedSVRG and partial projected FL.

RFedSVRG takes two exchanges a round (gradients at x^r up and their mean down, then displacements);
under Flower's own loop that is two of its rounds for one of ours. The projected form keeps the last
displacement of every client in the server's state, so any cohort will do. Both keep a correction
for each client, so neither can be protected by noise on the mean alone: client-level privacy is
refused.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms.projected import ProjectedPartial
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.federation.exchange import Replies
from manifed.federation.rounds import Attempt, Mean, averaged, sent
from manifed.flower.strategy import JointStrategy


class ControlVariates(JointStrategy[RFedSVRG | ProjectedPartial]):
    """Flower strategy of RFedSVRG (Li and Ma, 2022) and of projected FL with cohorts."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the model, then its mean gradient; or the model with each client's correction."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, sent(now))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes the mean, and after the last exchange the step, which updates the corrections."""
        # who fails in the first exchange is not asked in the second
        return self.moved(self.read(server_round, replies))

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Computes the mean gradient or displacement."""
        return averaged(now, replies)

"""Servers that keep a drift correction, as a Flower strategy: RFedSVRG and partial projected FL.

RFedSVRG takes two exchanges a round (gradients at x^r up and their mean down, then displacements);
under Flower's own loop that is two of its rounds for one of ours. The projected form keeps the last
displacement of every client in the server's state, so any cohort will do. Both keep a correction
for each client, so neither can be protected by noise on the mean alone: client-level privacy is
refused.
"""

from typing import Unpack

from manifed.algorithms.projected import ProjectedPartial
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.errors import ConfigError
from manifed.federation.aggregation import Mean
from manifed.federation.replies import Replies
from manifed.federation.rounds import Attempt, averaged, enough
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
        privacy = settings.get("privacy")
        if privacy is not None and privacy.client_mechanism is not None:
            raise ConfigError(
                f"privacy: expected ExampleLevel with {type(update).__name__}, got ClientLevel: "
                "the server would keep un-noised uploads of single clients"
            )
        super().__init__(manifold, update, update, **settings)

    def judge(self, now: Attempt, replies: Replies) -> Replies:
        """The policy decides in each exchange; who failed in the first is not asked in the second.

        Raises:
            RoundFailed: when the policy is not content.
        """
        return enough(now, replies)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """The mean gradient or displacement; each client's own is kept by the server's step."""
        return averaged(now, replies)

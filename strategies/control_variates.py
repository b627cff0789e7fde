"""Servers that keep a drift correction, as a Flower strategy: RFedSVRG and partial projected FL.

RFedSVRG takes two exchanges a round (gradients at x^r up and their mean down, then displacements);
under Flower's own loop that is two of its rounds for one of ours. The projected form keeps the last
displacement of every client in the server's state, so any cohort will do. Both keep a correction
for each client, so neither can be protected by noise on the mean alone: client-level privacy is
refused.
"""

from collections.abc import Sequence
from pathlib import Path

from manifed.algorithms.projected import ProjectedPartial
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.errors import ConfigError
from manifed.federation.cohorts import Cohort
from manifed.federation.replies import ReplyPolicy
from manifed.flower.privacy import ClientLevel, Privacy
from manifed.flower.strategy import ManifoldStrategy
from manifed.manifolds.base import Manifold
from manifed.privacy.noise import NoiseSource


class ControlVariates(ManifoldStrategy):
    """RFedSVRG (Li and Ma, 2022), or projected federated learning with cohorts, over a Grid."""

    def __init__(
        self,
        manifold: Manifold,
        update: RFedSVRG | ProjectedPartial,
        *,
        num_examples: Sequence[int] | None = None,
        cohort: Cohort | None = None,
        privacy: Privacy | None = None,
        budget: tuple[float, float] | None = None,
        ledger: str | Path | None = None,
        num_rounds: int | None = None,
        replies: ReplyPolicy | None = None,
        source: NoiseSource | None = None,
    ) -> None:
        """``update`` is both halves of the algorithm; clients and server must hold equal ones.

        The other arguments are those of `manifed.flower.strategy.ManifoldStrategy`.

        Raises:
            ConfigError: for client-level privacy, or parts that do not go together.
        """
        if isinstance(privacy, ClientLevel):
            raise ConfigError(
                f"privacy: expected ExampleLevel with {type(update).__name__}, got ClientLevel: "
                "the server would keep un-noised uploads of single clients"
            )
        super().__init__(
            manifold,
            update,
            update,
            num_examples=num_examples,
            cohort=cohort,
            privacy=privacy,
            budget=budget,
            ledger=ledger,
            num_rounds=num_rounds,
            replies=replies,
            source=source,
        )

"""A Flower strategy of secure sums: clients open the mean together, and the server sees no upload.

A round takes several exchanges (`manifed.algorithms.secure_sum`): keys, shares of secrets, masked
integers, a signature over who is in the sum where keys are pinned, and what opens it. Under
Flower's own loop that is as many of its rounds for one of ours. Clients that fall silent cost their
share of the noise, and beyond ``max_dropped`` of them the round fails before anything is opened.
"""

from collections.abc import Iterable
from typing import Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms.algorithm import ClientUpdate, ServerUpdate
from manifed.algorithms.tangent_mean import TangentMean
from manifed.federation.exchange import Replies
from manifed.federation.rounds import Attempt, Mean, sent
from manifed.flower.strategy import ManifoldStrategy, Settings
from manifed.manifolds.base import Manifold


class SecureMean(ManifoldStrategy):
    """Flower strategy of any server step along a mean that nobody opens alone."""

    opens_sums = True

    def __init__(
        self,
        manifold: Manifold,
        update: ClientUpdate,
        server_update: ServerUpdate | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """``settings`` hold a privacy whose ``trust`` is a secure sum; `Settings` lists the others.

        Raises:
            ConfigError: for parts that do not go together, as a config refuses them.
        """
        super().__init__(manifold, update, server_update or TangentMean(), **settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends what the next exchange of the attempt asks."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, sent(now))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keeps what came; charges who is in the sum before it is opened, and steps along it."""
        return self.moved(self.read(server_round, replies))  # sound keys, shares and signatures

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Computes nothing, because the step opens the sum itself."""
        return Mean({})

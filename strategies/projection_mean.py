"""The server of projected federated learning as a Flower strategy: Algorithm 1, with everybody.

It sends the ambient x^r, un-projected, because clients rebuild their correction from it, and takes
the plain mean of ambient displacements. Its corrections sum to zero only if all clients reply: one
missing reply fails the round (the state before stays), whatever the reply policy, and so does a
model that leaves the tube in which its projection is unique. For cohorts: control_variates.py.
"""

from collections.abc import Sequence
from pathlib import Path

from manifed.algorithms.projected import Projected
from manifed.errors import ConfigError
from manifed.federation.replies import ReplyPolicy
from manifed.flower.privacy import Privacy
from manifed.flower.strategy import ManifoldStrategy
from manifed.manifolds.ambient import reach
from manifed.manifolds.base import Manifold
from manifed.privacy.noise import NoiseSource


class ProjectionMean(ManifoldStrategy):
    """Algorithm 1 of Zhang, Hu, So, Johansson (2024) over a Grid."""

    def __init__(
        self,
        manifold: Manifold,
        update: Projected,
        *,
        num_examples: Sequence[int] | None = None,
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
            ConfigError: for a manifold without a projection, or parts that do not go together.
        """
        try:
            reach(manifold)
        except ValueError as error:
            raise ConfigError(f"manifold: {error}") from None
        super().__init__(
            manifold,
            update,
            update,
            num_examples=num_examples,
            privacy=privacy,
            budget=budget,
            ledger=ledger,
            num_rounds=num_rounds,
            replies=replies,
            source=source,
        )

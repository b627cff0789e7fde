"""The server of projected federated learning as a Flower strategy: Algorithm 1, with everybody.

It sends the ambient x^r, un-projected, because clients rebuild their correction from it, and takes
the plain mean of ambient displacements. Its corrections sum to zero only if all clients reply: one
missing reply fails the round (the state before stays), whatever the reply policy, and so does a
model that leaves the tube in which its projection is unique. For cohorts: control_variates.py.
"""

from typing import Unpack

from manifed.algorithms.projected import Projected
from manifed.errors import ConfigError
from manifed.flower.strategy import ManifoldStrategy
from manifed.manifolds.ambient import reach
from manifed.manifolds.base import Manifold
from strategies.settings import Settings


class ProjectionMean(ManifoldStrategy):
    """Algorithm 1 of Zhang, Hu, So, Johansson (2024) over a Grid."""

    def __init__(
        self,
        manifold: Manifold,
        update: Projected,
        **settings: Unpack[Settings],
    ) -> None:
        """``update`` is client and server update in one; both sides must hold equal ones.

        ``settings`` are the keyword arguments that `Settings` lists.

        Raises:
            ConfigError: for a manifold without a projection, or parts that do not go together.
        """
        try:
            reach(manifold)
        except ValueError as error:
            raise ConfigError(f"manifold: {error}") from None
        super().__init__(manifold, update, update, **settings)

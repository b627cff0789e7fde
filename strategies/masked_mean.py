"""The masked mean over a Grid as a Flower strategy: masked messages in, a sum without masks out.

It sends one model to everybody and adds up the masked gradients that come back, in which the masks
of all pairs cancel. Where nodes are silent it asks the others for the masks that they shared with
them, once that is charged, and takes those off. A round fails when more are silent than the reply
policy or ``max_dropped`` allow, or when a survivor does not answer the second question.
"""

from typing import Unpack

from manifed.algorithms import masked_mean
from manifed.federation.aggregation import Mean
from manifed.federation.replies import Replies
from manifed.federation.rounds import Attempt, enough
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

    def judge(self, now: Attempt, replies: Replies) -> Replies:
        """The policy decides how many may be silent; the step refuses half an answer to it.

        Raises:
            RoundFailed: when the policy is not content.
        """
        return enough(now, replies)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Nothing: the step adds the uploads up itself."""
        return Mean({})

"""The server of PriRFed as a Flower strategy: points go down, tangent vectors come up.

Each round it sends the model to a cohort, takes the weighted mean of the tangent vectors that come
back (noised here under `ClientLevel`), and moves the model along it (manifed/algorithms/
tangent_mean.py). A reply that is missing, malformed or not tangent counts as that client's failure;
`ReplyPolicy` says when a round fails, and under `ClientLevel` such a reply is the zero vector.
"""

from typing import Literal, Unpack

from manifed.algorithms import tangent_mean
from manifed.algorithms.averaging import Average
from manifed.algorithms.interface import ClientUpdate
from manifed.algorithms.payloads import Point
from manifed.errors import ConfigError
from manifed.federation.aggregation import Mean
from manifed.federation.replies import Replies
from manifed.federation.rounds import Attempt, averaged, noised
from manifed.flower.privacy import ONE_GRADIENT, ClientLevel, ExampleLevel
from manifed.flower.strategy import CohortSettings, ManifoldStrategy
from manifed.manifolds.base import Manifold, MapChoice


class TangentMean(ManifoldStrategy):
    """Algorithm 1 of PriRFed (Huang, Huang, Jawanpuria, Mishra) over a Grid."""

    def __init__(
        self,
        manifold: Manifold,
        *,
        server_step_size: float = 1.0,
        weights: Literal["num-examples", "uniform"] = "num-examples",
        output_rule: Literal["last", "uniform"] = "last",
        maps: MapChoice = "exact",
        average: Average | None = None,
        momentum: float | None = None,
        update: ClientUpdate | None = None,
        **settings: Unpack[CohortSettings],
    ) -> None:
        """``update`` is what clients run; None takes that of ``privacy``, one gradient by default.

        With an ``average`` the model is one of released iterates, `state` holds the last of them.

        ``settings`` are the keyword arguments that `CohortSettings` lists.

        Raises:
            ConfigError: for parts that do not go together.
        """
        privacy = settings.get("privacy")
        runs = update or ONE_GRADIENT
        if update is None and isinstance(privacy, ExampleLevel | ClientLevel):
            runs = privacy.update
        if len(runs.phases) != 1:
            raise ConfigError(
                f"update: expected an update of one exchange with {type(self).__name__}, got "
                f"{type(runs).__name__} with {len(runs.phases)}"
            )
        super().__init__(
            manifold,
            runs,
            tangent_mean.TangentMean(
                server_step_size=server_step_size,
                weights=weights,
                output_rule=output_rule,
                maps=maps,
                average=average,
                momentum=momentum,
            ),
            **settings,
        )

    def send(self, now: Attempt) -> Point:
        """The model x^(t), the same for the whole cohort."""
        return Point(now.state["x"])

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """The mean of the tangent vectors at x^(t), noised in the metric there at client level."""
        return averaged(now, replies) if self.plan.mechanism is None else noised(now, replies)

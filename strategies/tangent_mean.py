"""The Flower strategy of PriRFed's server: points go down, tangent vectors come up.

Each round it sends the model to a cohort, takes the weighted mean of the tangent vectors that come
back (noised here under `ClientLevel`), and moves the model along it (manifed/algorithms/
tangent_mean.py). A reply that is missing, malformed or not tangent counts as that client's failure;
`ReplyPolicy` says when a round fails, and under `ClientLevel` such a reply is the zero vector.
"""

from collections.abc import Iterable
from typing import Literal, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from manifed.algorithms import tangent_mean
from manifed.algorithms.algorithm import ClientUpdate
from manifed.algorithms.averaging import Average
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.errors import ConfigError
from manifed.federation.exchange import Replies
from manifed.federation.rounds import Attempt, Mean, averaged, noised
from manifed.flower.strategy import ManifoldStrategy, Settings
from manifed.manifolds.base import Manifold, MapChoice
from manifed.oracles.minibatch import Full


class TangentMean(ManifoldStrategy):
    """Flower strategy of PriRFed, Algorithm 1 (Huang, Huang, Jawanpuria, Mishra)."""

    def __init__(
        self,
        manifold: Manifold,
        *,
        server_step_size: float = 1.0,
        weights: Literal["num-examples", "uniform"] = "num-examples",
        output_rule: Literal["last", "uniform"] = "last",
        maps: MapChoice | None = None,
        average: Average | None = None,
        momentum: float | None = None,
        update: ClientUpdate | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """``update`` is what clients run; None is one gradient of all examples.

        With an ``average`` the model is one of released iterates, `state` holds the last of them.

        ``settings`` are the keyword arguments that `Settings` lists.

        Raises:
            ConfigError: for parts that do not go together.
        """
        runs = update or RSGD(step_size=1.0, minibatch=Full())
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

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the model x^(t), the same for a whole cohort (lines 2 and 3)."""
        now = self.opened(server_round, arrays, config, grid)  # a cohort, drawn and charged
        if now is None:  # the budget does not pay it
            return []
        return self.messages(server_round, Point(now.state["x"]))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Steps along the mean of the tangent vectors at x^(t), (3.2)."""
        got = self.read(server_round, replies)  # finite, and tangent at x^(t)
        return self.moved(got)

    def aggregate(self, now: Attempt, replies: Replies) -> Mean:
        """Computes the mean of tangent vectors at x^(t), noised in its metric at client level."""
        if self.plan.mechanism is None:
            return averaged(now, replies)
        return noised(now, replies)

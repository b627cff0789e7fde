"""The base of algorithms that wrap another one, and change how its answers are released."""

from typing import Any

from torch import Tensor

from manifed.algorithms.algorithm import Algorithm, Phase
from manifed.algorithms.payloads import State
from manifed.manifolds.base import Manifold


class Around(Algorithm):
    """Base of algorithms around another one, whose model, start and output they have."""

    client_update: Any
    """What clients run."""
    server_update: Any
    """What the server does with the mean."""

    @property
    def tried(self) -> Any:
        """The algorithm's own client update."""
        return self.client_update

    @property
    def tried_server(self) -> Any:
        """The algorithm's own server update."""
        return self.server_update

    @property
    def inner(self) -> Phase:
        """The algorithm's one exchange."""
        (phase,) = self.client_update.phases
        return phase

    def asks(self) -> Any:
        """Asks what the algorithm asks."""
        return self.client_update.asks()

    def in_round(self, server_round: int) -> Any:
        """Returns the update as it is run in one round."""
        inner = self.client_update.in_round(server_round)
        return self.model_copy(update={"client_update": inner})

    @property
    def is_scheduled(self) -> bool:
        """Whether releases depend on the round."""
        return self.client_update.is_scheduled

    @property
    def needs_everyone(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the algorithm needs every client."""
        return self.server_update.needs_everyone

    @property
    def is_average(self) -> bool:
        """Whether the model is an average of the points that were broadcast."""
        return self.server_update.is_average

    def start(self, x: Tensor) -> State:
        """Returns the algorithm's state before round 1."""
        return self.server_update.start(x)

    def base(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the algorithm's base point."""
        return self.server_update.base(state, manifold)

    def model(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the algorithm's model."""
        return self.server_update.model(state, manifold)

    def output(self, state: State, manifold: Manifold) -> Tensor:
        """Returns the algorithm's output."""
        return self.server_update.output(state, manifold)

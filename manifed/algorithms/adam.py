r"""Adam on the tangent mean: the server's steps follow the size of what was released.

Kingma, Ba: Adam (2015), Algorithm 1, on the server as in Reddi et al.: Adaptive Federated
Optimization (2021, FedAdam), and on manifolds as in Bécigneul, Ganea: Riemannian Adaptive
Optimization Methods (2019): the first moment is transported, the second belongs to a coordinate
where the geometry has coordinates, and to a point where it has none (`coordinate_squares`).

Symbols, in round t: u the tangent mean at x^(t), m state["first"] at x^(t), v state["second"],
    m <- beta1 m + (1 - beta1) u                           v <- beta2 v + (1 - beta2) |u|^2
    x^(t+1) = Retr_x(server_step_size * m_hat / (sqrt(v_hat) + floor)); a hat: without bias.

Guarantee: a function of released means and of the config. Whoever sees them could compute it, so
every bound of the run holds for it as well. Noise is part of v: its steps are shorter where the
noise is larger.
"""

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.algorithm import State
from manifed.manifolds.base import Manifold
from manifed.privacy.events import Frozen


class Adam(Frozen):
    """Moments that forget; goes with a ``server_step_size`` of about 0.01 to 0.1."""

    first_decay: float = Field(default=0.9, ge=0, lt=1)
    """beta1."""
    second_decay: float = Field(default=0.99, ge=0, lt=1)
    """beta2; FedAdam's, less than Adam's 0.999, as rounds are few."""
    floor: float = Field(default=1e-8, gt=0)
    """Added to the root of v."""

    def initial(self, x: Tensor) -> State:
        """What a state holds more: both moments, and how many steps they have seen."""
        steps = torch.zeros((), dtype=torch.float64, device=x.device)
        return {"first": torch.zeros_like(x), "second": torch.zeros_like(x), "steps": steps}

    def moments(self, state: State, mean: Tensor, manifold: Manifold) -> State:
        """Both after a round; the first is still tangent at state["x"]."""
        squares = manifold.coordinate_squares(state["x"], mean)
        return {
            "first": self.first_decay * state["first"] + (1 - self.first_decay) * mean,
            "second": self.second_decay * state["second"] + (1 - self.second_decay) * squares,
            "steps": state["steps"] + 1,
        }

    def direction(self, moments: State) -> Tensor:
        """m_hat / (sqrt(v_hat) + floor), tangent where m is."""
        steps = float(moments["steps"])
        first = moments["first"] / (1 - self.first_decay**steps)
        second = moments["second"] / (1 - self.second_decay**steps)
        return first / (second.sqrt() + self.floor)

r"""RFedProx: local Riemannian gradient steps that are pulled back to the broadcast point.

Rival of Zhang, Hu, So, Johansson (2024), "a direct extension of FedProx"; pseudocode from the
public code of Li and Ma (2022). Server update: manifed/algorithms/tangent_mean.py.

Local objective f_i(x) + (mu / 2) dist^2(x, x^r), and grad of 1/2 dist^2(., y) at x is -log_x(y):
    x_{t+1} = Exp_{x_t}( -eta ( grad f_i(x_t) - mu Log_{x_t}(x^r) ) ).
Symbols: eta step_size, tau local_steps, mu penalty_weight, Exp and Log the ``maps``.
The public code *adds* mu Log, which pushes away from x^r.
Invariant: every iterate is on the manifold; what leaves is tangent at the broadcast point.
"""

from typing import Literal

from torch import Tensor

from manifed.algorithms.algorithm import Here, MappedSteps
from manifed.fields import NonNegative
from manifed.oracles.noisy_oracle import Oracle


class RFedProx(MappedSteps):
    """Local steps with a proximal pull towards the broadcast point."""

    kind: Literal["rfedprox"] = "rfedprox"
    penalty_weight: NonNegative
    """The weight mu of the pull."""

    def client(self, x: Tensor, oracle: Oracle, here: Here) -> Tensor:
        """The steps from the broadcast point; the pull is zero in the first and left out there."""
        maps = here.manifold.maps(self.maps)
        anchor = x
        for t in range(self.local_steps):
            direction = oracle.gradient(x)
            if t > 0:
                direction = direction - self.penalty_weight * maps.inverse(x, anchor)
            x = maps.forward(x, -self.step_size * direction)
        return maps.inverse(anchor, x)

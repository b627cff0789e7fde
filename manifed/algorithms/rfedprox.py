r"""RFedProx: local Riemannian gradient steps that are pulled back to the broadcast point.

Rival of Zhang, Hu, So, Johansson (2024), "a direct extension of FedProx"; pseudocode from the
public code of Li and Ma (2022). Server update: manifed/algorithms/tangent_mean.py.

Local objective f_i(x) + (mu / 2) dist^2(x, x^r), and grad of 1/2 dist^2(., y) at x is -log_x(y):
    x_{t+1} = Exp_{x_t}( -eta ( grad f_i(x_t) - mu Log_{x_t}(x^r) ) ).
Symbols: eta step_size, tau local_steps, mu penalty_weight, Exp and Log the ``maps``.
The public code *adds* mu Log, which pushes away from x^r; ``sign = "published-code"`` does too.
Invariant: every iterate is on the manifold; what leaves is tangent at the broadcast point.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from manifed.algorithms.gradient_steps import GradientSteps
from manifed.algorithms.interface import Memory, Phase, Work
from manifed.algorithms.payloads import Displacement, Payload, Point
from manifed.manifolds.base import Manifold, MapChoice
from manifed.oracles.oracle import Draws, Oracle


class RFedProx(GradientSteps):
    """``local_steps`` proximal gradient steps."""

    kind: Literal["rfedprox"] = "rfedprox"
    penalty_weight: float = Field(ge=0)
    """mu, of the pull towards the broadcast point."""
    penalty: Literal["geodesic", "chordal"] = "geodesic"
    """(mu/2) dist^2(x, x^r), or the cheaper (mu/2) |x - x^r|^2 of the ambient space."""
    sign: Literal["towards-anchor", "published-code"] = "towards-anchor"
    """"published-code" is wrong (it pushes away) and exists for reproduction only."""
    maps: MapChoice = "exact"
    """Exponential map and logarithm, or the retraction and its inverse."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange."""
        return (Phase("train", Point, Displacement, uploads=("tangent",)),)

    def initial_memory(self, x: Tensor) -> Memory | None:
        """Nothing is remembered between rounds."""
        return None

    def towards(self, x: Tensor, anchor: Tensor, manifold: Manifold) -> Tensor:
        """Minus the gradient of the penalty over mu: the tangent vector at x towards the anchor."""
        if self.penalty == "chordal":
            return manifold.proju(x, anchor - x)
        return manifold.maps(self.maps).inverse(x, anchor)

    @property
    def client_work(self) -> Work:
        """Tau steps, a pull in all but the first, and the upload's logarithm."""
        steps = self.local_steps
        pulls = steps - 1 if self.penalty == "geodesic" else 0
        return Work.of_moves(self.maps, steps, pulls + 1, gradients=steps)

    def update(
        self,
        phase: str,
        down: Payload,
        memory: Memory | None,
        oracle: Oracle,
        manifold: Manifold,
        draws: Draws,
    ) -> tuple[Payload, Memory | None]:
        """The steps from the broadcast point; the pull is zero in the first and left out there."""
        assert isinstance(down, Point)
        maps, anchor = manifold.maps(self.maps), down.x.detach()
        x = anchor
        pull = self.penalty_weight if self.sign == "towards-anchor" else -self.penalty_weight
        for t in range(self.local_steps):
            direction = oracle.gradient(x)
            if t > 0:
                direction = direction - pull * self.towards(x, anchor, manifold)
            x = maps.forward(x, -self.step_size * direction)
        return Displacement(maps.inverse(anchor, x)), None

r"""The constants, step sizes and bound of the convergence theorem of projected federated learning.

Zhang, Hu, So, Johansson (2024), Theorem 4.3: for eta_g = sqrt(n) and
    eta~ = eta_g eta tau <= min{ 1/(24 M L), gamma/(6 D_f), 1/(D_f L_P) }                       (11)
    (1/R) sum_r E|G(P(x^r))|^2 <= 8 Omega^1 / (sqrt(n) eta tau R) + 64 sigma^2 / (n tau b).     (12)

Symbols: L smoothness, D_f gradient_bound, gamma half the reach, diam(M) diameter, M growth, L_P
projection_curvature, eta~ total step, Omega^1 initial_gap.

These step sizes are orders of magnitude below those of the paper's experiments.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from manifed.manifolds.base import Manifold


@dataclass(frozen=True)
class Constants:
    """What (11) is made of."""

    smoothness: float
    gradient_bound: float
    gamma: float
    diameter: float
    projection_curvature: float = 0.0
    """Largest |D^2 P_M| in the closed tube of radius gamma."""

    @property
    def growth(self) -> float:
        """M with |P_M(x + u) - x| <= M |u| for x on the manifold and every u."""
        return max(self.diameter / self.gamma, 2.0)  # (15)


def stiefel_constants(
    num_columns: int, euclidean_smoothness: float, gradient_bound: float
) -> Constants:
    """The constants on St(d, k) with k = ``num_columns``.

    gamma = 1/2 and the diameter is 2 sqrt(k). L = L_hat + 2 D_f, since the tangent projection is
    2-Lipschitz in its point. L >= 2 D_f makes the first term of (11) at most 1/(192 sqrt(k) D_f):
    the third binds only for L_P > 192 sqrt(k) and is left out (on the sphere L_P = 4.62).
    """
    smoothness = euclidean_smoothness + 2.0 * gradient_bound
    return Constants(smoothness, gradient_bound, 0.5, 2.0 * math.sqrt(num_columns))


def largest_total_step(constants: Constants) -> float:
    """The largest eta~ that (11) allows."""
    bounds = [
        1.0 / (24.0 * constants.growth * constants.smoothness),
        constants.gamma / (6.0 * constants.gradient_bound),
    ]
    if constants.projection_curvature > 0:
        bounds.append(1.0 / (constants.gradient_bound * constants.projection_curvature))
    return min(bounds)  # (11)


def theory_stepsize(
    constants: Constants, num_clients: int, local_steps: int
) -> tuple[float, float]:
    """(step_size, server_step_size) of Theorem 4.3: eta = eta~ / (sqrt(n) tau), eta_g = sqrt(n)."""
    server_step_size = math.sqrt(num_clients)
    step_size = largest_total_step(constants) / (server_step_size * local_steps)  # (11)
    return step_size, server_step_size


def initial_gap(
    cost_gap: float,
    local_gradients: Tensor,
    step_size: float,
    server_step_size: float,
    local_steps: int,
) -> float:
    """Omega^1 = f(x^1) - f* + eta^2 tau^2 / (n eta~) sum_i |grad f_i(x^1) - grad f(x^1)|^2.

    Args:
        cost_gap: f(x^1) - f*.
        local_gradients: grad f_i(x^1), shape ``(n, *point)``.
        step_size: eta.
        server_step_size: eta_g.
        local_steps: tau.
    """  # (14) at r = 1, where the corrections are zero
    spread = local_gradients - local_gradients.mean(0)
    squared = float(spread.square().sum())
    return cost_gap + step_size * local_steps * squared / (len(spread) * server_step_size)


def stationarity_bound(
    gap: float,
    num_clients: int,
    step_size: float,
    local_steps: int,
    num_rounds: int,
    gradient_variance: float = 0.0,
    batch_size: float = 1.0,
) -> float:
    """The right side of (12) for Omega^1 = ``gap`` and sigma^2 = ``gradient_variance``."""
    sampling = 64.0 * gradient_variance / (num_clients * local_steps * batch_size)
    return 8.0 * gap / (math.sqrt(num_clients) * step_size * local_steps * num_rounds) + sampling


def optimality_measure(
    x: Tensor, gradient: Tensor, total_step: float, manifold: Manifold
) -> Tensor:
    """G(x) = (x - P_M(x - eta~ grad f(x))) / eta~, shape of x."""
    return (x - manifold.projx(x - total_step * gradient)) / total_step  # (10)

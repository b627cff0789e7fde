"""Exact moments of DECOR on quadratic losses, in place of many runs.

Node i has L_i(x) = h_i |x|^2 / 2 - <c_i, x>. All moves are linear and every coordinate has the same
noise, so a mean of shape (n, d) and one covariance between the nodes, (n, n), say everything.
Source: Allouah et al., Algorithm 1, without clipping.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manifed.graphs import Graph, metropolis_hastings

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratics:
    """Quadratic losses, one for each node."""

    curvatures: Array
    """h, (n,)."""
    targets: Array
    """c, (n, d)."""

    @property
    def curvature(self) -> float:
        """The h of L(x) - L* = h |x - x*|^2 / 2; a minimum exists where it is positive."""
        return float(self.curvatures.mean())

    @property
    def smoothness(self) -> float:
        """L of assumption A1."""
        return float(np.abs(self.curvatures).max())

    @property
    def optimum(self) -> Array:
        """x*, (d,)."""
        return self.targets.mean(0) / self.curvature

    @property
    def dissimilarity(self) -> tuple[float, float]:
        """(P, zeta_*^2) of assumption A3, at every x.

        With e = x - x*, v = mean h_i r_i and r_i = grad L_i(x*), the mean of |h_i e + r_i|^2 is at
        most 2 mean(h^2) |e|^2 + |v|^2 / mean(h^2) + mean |r|^2.
        """
        square = float((self.curvatures**2).mean())
        left = self.curvatures[:, None] * self.optimum - self.targets
        pull = float(((self.curvatures[:, None] * left).mean(0) ** 2).sum())
        spread = float((left**2).sum(1).mean())
        return 2 * square / self.curvature**2, spread + pull / square


@dataclass(frozen=True)
class State:
    """Models of all nodes: their mean (n, d), and the covariance (n, n) of each coordinate."""

    mean: Array
    covariance: Array

    @property
    def spread(self) -> float:
        """Xi = (1/n) sum_i E|x_i - mean|^2, (23)."""
        away = self.mean - self.mean.mean(0)
        n, d = self.mean.shape
        left = np.trace(self.covariance) - self.covariance.sum() / n
        return (float((away**2).sum()) + d * float(left)) / n

    def gap(self, task: Quadratics) -> float:
        """E L(mean of the models) - L*."""
        n, d = self.mean.shape
        away = float(((self.mean.mean(0) - task.optimum) ** 2).sum())
        return 0.5 * task.curvature * (away + d * float(self.covariance.sum()) / n**2)


@dataclass(frozen=True)
class Network:
    """A graph, mixed by its Metropolis-Hastings weights, and the noise of a round."""

    graph: Graph
    sigma_cdp: float
    sigma_cor: float

    @property
    def noise(self) -> Array:
        """Covariance of what the nodes add, (n, n)."""
        own = np.eye(self.graph.num_nodes)
        return self.sigma_cdp**2 * own + self.sigma_cor**2 * self.graph.laplacian


def after(
    task: Quadratics, network: Network, start: Array, rounds: int, step: Callable[[int], float]
) -> tuple[State, float]:
    """The state after all rounds from the models ``start``, and the mean of E|grad L|^2 before."""
    weights = metropolis_hastings(network.graph).toarray()
    noise = weights @ network.noise @ weights.T
    pull = weights @ task.targets
    state = State(start, np.zeros_like(noise))
    squares = 0.0
    for t in range(rounds):
        squares += 2 * task.curvature * state.gap(task)
        eta = step(t)
        keep = weights * (1 - eta * task.curvatures)  # W (I - eta H)
        state = State(
            keep @ state.mean + eta * pull, keep @ state.covariance @ keep.T + eta**2 * noise
        )
    return state, squares / rounds

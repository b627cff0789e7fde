"""Algorithm 1 of DECOR in plain numpy: what the engines are compared with, many seeds at once.

Models have shape (..., n, d): seeds in front, a row for each node. `half_steps` and `mixed` are
pure; `run` draws its own noise. Source: Allouah et al., eqs. (3) and (4), matrix form Algorithm 4.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manifed.graphs import Graph, metropolis_hastings

Array = NDArray[np.float64]
Gradients = Callable[[Array], Array]


def clipped(gradients: Array, clip: float | None, norm: int = 2) -> Array:
    """min(1, C / |g|) g for every row; None clips nothing."""
    if clip is None:
        return gradients
    norms = np.linalg.norm(gradients, ord=norm, axis=-1, keepdims=True)
    return gradients * np.minimum(1.0, clip / np.maximum(norms, 1e-300))


def half_steps(
    models: Array, gradients: Array, masks: Array | float, own: Array | float, step_size: float
) -> Array:
    """x_i - eta (g_i + sum_j v_ij + v_i), eq. (3)."""
    return models - step_size * (gradients + masks + own)


def mixed(halves: Array, weights: Array) -> Array:
    """sum_j W_ij x_j, eq. (4)."""
    return np.einsum("ij,...jd->...id", weights, halves)


@dataclass(frozen=True)
class Setting:
    """A graph, its mixing (None: the graph's own), the noise of a round and the step."""

    graph: Graph
    sigma_cdp: float
    sigma_cor: float
    step_size: float | Callable[[int], float]
    """Of a round t = 0, 1, ... where it is a function."""
    rounds: int
    clip: float | None = 1.0
    weights: Array | None = None

    @property
    def mixing(self) -> Array:
        """W, (n, n)."""
        return metropolis_hastings(self.graph).toarray() if self.weights is None else self.weights


def run(
    setting: Setting,
    gradients: Gradients,
    start: Array,
    seed: int,
    watch: Callable[[int, Array], None] | None = None,
) -> Array:
    """The models after all rounds. Own noise and masks come from streams of their own.

    So methods with one seed share their own noise, whatever their graph (common random numbers).
    """
    own_rng, mask_rng = (np.random.default_rng([seed, purpose]) for purpose in (1, 2))
    incidence = setting.graph.incidence.T.copy()
    weights = setting.mixing
    lead = start.shape[:-2]
    d = start.shape[-1]
    x = start
    for t in range(setting.rounds):
        own = setting.sigma_cdp * own_rng.standard_normal(start.shape)
        masks = 0.0
        if setting.sigma_cor > 0 and setting.graph.edges:
            drawn = mask_rng.standard_normal((*lead, len(setting.graph.edges), d))
            masks = setting.sigma_cor * (incidence.T @ drawn)
        g = clipped(gradients(x), setting.clip)
        eta = setting.step_size(t) if callable(setting.step_size) else setting.step_size
        x = mixed(half_steps(x, g, masks, own, eta), weights)
        if watch is not None:
            watch(t, x)
    return x


@dataclass(frozen=True)
class LeastSquares:
    """Task 1: L_i(x) = 1/2 |A_i x - b_i|^2, A_i = (i / sqrt n) I, b_i ~ N(0, I / i^2)."""

    targets: Array
    """b, (seeds, n, d)."""

    @classmethod
    def draw(cls, seeds: int, n: int = 16, d: int = 10, seed: int = 0) -> "LeastSquares":
        """Fresh targets for every seed."""
        scale = np.arange(1, n + 1, dtype=np.float64)[:, None]
        return cls(np.random.default_rng([seed, 0]).standard_normal((seeds, n, d)) / scale)

    @property
    def scales(self) -> Array:
        """The diagonal of A_i, (n, 1)."""
        n = self.targets.shape[-2]
        return np.arange(1, n + 1, dtype=np.float64)[:, None] / np.sqrt(n)

    @property
    def curvature(self) -> float:
        """The h of L(x) - L* = h |x - x*|^2 / 2."""
        return float((self.scales**2).mean())

    @property
    def optimum(self) -> Array:
        """x*, (seeds, 1, d)."""
        top = (self.scales * self.targets).sum(-2, keepdims=True)
        return top / (self.scales**2).sum()

    def gradients(self, x: Array) -> Array:
        """A_i (A_i x_i - b_i)."""
        return self.scales**2 * x - self.scales * self.targets

    @property
    def start(self) -> Array:
        """All ones."""
        return np.ones_like(self.targets)

    def distance(self, x: Array) -> Array:
        """mean_i |x_i - x*|^2 of every seed: the metric of Figure 1(a)."""
        return ((x - self.optimum) ** 2).sum(-1).mean(-1)

    def loss_gap(self, x: Array) -> Array:
        """L(mean) - L* of every seed."""
        mean = x.mean(-2, keepdims=True)
        return 0.5 * self.curvature * ((mean - self.optimum) ** 2).sum((-1, -2))

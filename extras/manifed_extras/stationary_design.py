"""The cheapest noise over rounds and edges at a given price, with a proof of how cheap it can be.

Node models follow x(t+1) = W (rho x(t) - eta (z(t) + ...)) near the optimum of a problem of
curvature h, rho = 1 - eta h. A unit of stationary noise then adds to mean_i E|x_i - x*|^2

    eta^2 d / n * mean_w density(w) sum_k (V^T u)_k^2 w_k^2 / |1 - rho w_k e^iw|^2,

W = V diag(w_k) V^T, u = e_i for a node's own noise and e_i - e_j for a mask. That is linear in the
variances, and sup_w [S(w)^-1]_ii is convex in them: least cost at a given price is a convex
problem, of the kind known as optimal design of experiments (Kiefer 1974; Whittle 1973).

The lower bound. For weights p(i, w) >= 0 and D(w) = diag(p(., w)), let Y = S^-1 D S^-1 and g the
sum over w of density u^T Y u. If s g <= cost for all streams, every S' has by Cauchy and Schwarz

    cost(S') max_i,w [S'^-1]_ii sum p >= s (sum_w tr(D S^-1))^2.

Both the optimum and the bound are for the shapes that are given, over all variances of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from manifed.graphs import Graph, Matrix
from manifed_extras.stationary import Shape, StationaryNoise, against

Array = NDArray[np.float64]

_optimize: Any = scipy.optimize
_POWERS: Final = (8.0, 64.0, 512.0, 2048.0)
"""The maximum over nodes and frequencies is smoothed less and less."""
_FREE: Final = 1e-7
_CRUMB: Final = 1e-7
_OWN: Final = 1e-5
_FREQUENCIES: Final = 40


@dataclass(frozen=True, eq=False)
class Workload:
    """What noise does to the models.

    Raises:
        ValueError: for what is no mixing matrix, or unless 0 <= contraction < 1.
    """

    mixing: Matrix
    """W, symmetric, (n, n)."""
    contraction: float
    """Rho = 1 - step size times curvature."""

    def __post_init__(self) -> None:
        if not np.allclose(self.mixing, self.mixing.T) or not np.allclose(self.mixing.sum(0), 1.0):
            raise ValueError("Expected a symmetric mixing matrix whose rows sum to 1, got another")
        if not 0 <= self.contraction < 1:
            raise ValueError(f"Expected 0 <= contraction < 1, got {self.contraction}")

    def costs(self, directions: Matrix, shapes: Sequence[Shape]) -> Matrix:
        """What unit variance in each column of ``directions`` adds, (columns, shapes).

        The means over frequencies have closed forms: those of autoregressions with r = rho w_k and
        the shape's memory. Where masks cost nothing (complete mixing) they count 1e-7 of what costs
        most: nobody adds noise without a limit.
        """
        found, basis = np.linalg.eigh(self.mixing)
        parts = (basis.T @ directions) ** 2 / len(found)  # (n, columns)
        r = self.contraction * found
        means = np.stack([_mean_gain(r, shape) for shape in shapes], axis=1)
        costs = parts.T @ (found[:, None] ** 2 * means)
        return np.maximum(costs, _FREE * costs.max())


def _mean_gain(r: Array, shape: Shape) -> Array:
    """mean_w density(w) / |1 - r e^iw|^2."""
    phi = shape.memory
    if shape.kind == "white":
        return 1 / (1 - r**2)
    if shape.kind == "slow":
        return (1 + r * phi) / ((1 - r**2) * (1 - r * phi))
    return 1 / ((1 + r) * (1 - r * phi))


@dataclass(frozen=True, eq=False)
class Design:
    """Noise whose worst precision is at most 1 for the given coalitions."""

    noise: StationaryNoise
    cost: float
    """Mean over nodes of E|x_i - x*|^2 / (eta^2 d) that it adds."""
    lower_bound: float
    """No variances of these shapes at this price cost less, whatever they are."""

    @property
    def gap(self) -> float:
        """How far from optimal it may be, relative."""
        return self.cost / self.lower_bound - 1.0


def cost(workload: Workload, noise: StationaryNoise) -> float:
    """What the noise adds to mean_i E|x_i - x*|^2 / (eta^2 d) in the long run."""
    graph = noise.graph
    costs = workload.costs(np.hstack([np.eye(graph.num_nodes), graph.incidence]), noise.shapes)
    return float((np.vstack([noise.nodes, noise.edges]) * costs).sum())


def optimise(
    graph: Graph,
    workload: Workload,
    shapes: Sequence[Shape],
    coalitions: Sequence[Sequence[int]] = ((),),
    *,
    is_uniform: bool = False,
    iterations: int = 400,
) -> Design:
    """The cheapest noise of precision 1; ``is_uniform``: alike at all nodes and at all edges.

    White noise alone, uniform, is DECOR with the best (sigma_cdp, sigma_cor). The price of what is
    returned is bounded by `manifed_extras.stationary.against`, whatever the optimiser found.

    Raises:
        ValueError: without a white shape, or for a mixing matrix of another number of nodes.
    """
    if Shape() not in shapes:
        raise ValueError("shapes: expected a white one among them, got none")
    if len(workload.mixing) != graph.num_nodes:
        raise ValueError(
            f"workload: expected a mixing matrix of {graph.num_nodes} nodes, got "
            f"{len(workload.mixing)}"
        )
    search = _Search(graph, workload, tuple(shapes), coalitions, is_uniform)
    shares = search.start()
    for power in _POWERS:
        shares = search.in_logarithms(shares, power, iterations)
        shares = search.in_shares(shares, power, iterations)
    noise = search.noise(search.without_crumbs(shares))
    peak = max(against(noise, gone).precision for gone in coalitions)
    noise = noise.scaled(peak)
    return Design(noise, cost(workload, noise), search.lower_bound(shares))


class _Search:
    """The problem in shares of the cost; scale does not matter to the objective."""

    def __init__(
        self,
        graph: Graph,
        workload: Workload,
        shapes: tuple[Shape, ...],
        coalitions: Sequence[Sequence[int]],
        is_uniform: bool,
    ) -> None:
        self.graph = graph
        self.shapes = shapes
        self.coalitions = coalitions
        n = graph.num_nodes
        edges = len(graph.edges)
        self.directions = np.hstack([np.eye(n), graph.incidence])
        self.costs = workload.costs(self.directions, shapes)
        self.groups = np.array([0] * n + [1] * edges) if is_uniform else np.arange(n + edges)
        self.prices = self._by_group(self.costs)
        slowest = 1.0 - max(shape.memory for shape in shapes)
        grid = np.geomspace(min(slowest / 16, 0.1), np.pi, _FREQUENCIES)
        is_white = all(shape.kind == "white" for shape in shapes)
        self.grid = grid[:1] if is_white else np.concatenate([[0.0], grid])
        self.densities = np.stack([shape.density(self.grid) for shape in shapes])
        self.views = [self._view(gone) for gone in coalitions]

    def _view(self, gone: Sequence[int]) -> Matrix:
        """The directions as a coalition sees them: its nodes' rows and edges are gone."""
        seen = self.directions.copy()
        known = np.abs(seen[list(gone)]).sum(0) > 0
        seen[:, known] = 0.0
        return np.delete(seen, list(gone), axis=0)

    def start(self) -> Array:
        """Shares of the cost by (group, shape): equal ones."""
        return np.full(self.prices.size, 1.0 / self.prices.size)

    def variances(self, shares: Array) -> Matrix:
        """(streams, shapes)."""
        return (shares.reshape(self.prices.shape) / self.prices)[self.groups]

    def noise(self, shares: Array) -> StationaryNoise:
        """The noise whose streams have these shares of the cost."""
        found = self.variances(shares)
        n = self.graph.num_nodes
        return StationaryNoise(self.graph, self.shapes, found[:n], found[n:])

    def without_crumbs(self, shares: Array) -> Array:
        """Streams of next to no cost are off; every node has some white noise of its own.

        The best design may leave a node to its masks alone, and float64 could not price that.
        """
        kept = np.where(shares > _CRUMB * shares.sum(), shares, 0.0).reshape(self.prices.shape)
        white = self.shapes.index(Shape())
        own = self.groups[: self.graph.num_nodes]
        kept[own, white] = np.maximum(kept[own, white], _OWN * shares.sum() / len(own))
        return kept.ravel()

    def in_logarithms(self, shares: Array, power: float, iterations: int) -> Array:
        """A descent that moves shares over orders of magnitude."""

        def objective(logs: Array) -> tuple[float, Array]:
            value, slope = self.objective(np.exp(logs), power)
            return value, slope * np.exp(logs)

        start = np.log(np.clip(shares, 1e-6 / shares.size, None))
        bounds = np.stack([start - 14.0, start + 14.0], axis=1)
        return np.exp(_descend(objective, start, bounds, iterations))

    def in_shares(self, shares: Array, power: float, iterations: int) -> Array:
        """A descent that can wake a stream that was as good as off."""
        scale = shares.sum()
        bounds = np.array([(1e-9 * scale / shares.size, np.inf)] * shares.size)
        return _descend(lambda v: self.objective(v, power), shares, bounds, iterations)

    def _inverses(self, found: Matrix) -> list[tuple[Array, Array]]:
        """[S(w)^-1]_ii, (frequencies, honest), and S(w)^-1 u_a for every coalition."""
        weights = found @ self.densities  # (streams, frequencies)
        answers: list[tuple[Array, Array]] = []
        for seen in self.views:
            covariance = np.einsum("ia,aw,ja->wij", seen, weights, seen, optimize=True)
            inverse = np.linalg.inv(covariance)
            answers.append((np.einsum("wii->wi", inverse), inverse @ seen))
        return answers

    def _gains(self, shares: Array, power: float) -> tuple[Array, float, float, float]:
        """Of weights p = (precision / largest)^(power - 1): gains g by (group, shape).

        And sum p, sum p times precision, and the largest precision.
        """
        inverses = self._inverses(self.variances(shares))
        largest = max(float(diagonal.max()) for diagonal, _ in inverses)
        gain = np.zeros_like(self.costs)
        spent = weighed = 0.0
        for diagonal, seen in inverses:
            weights = (diagonal / largest) ** (power - 1.0)
            gain += np.einsum("wi,wia->aw", weights, seen**2, optimize=True) @ self.densities.T
            spent += float(weights.sum())
            weighed += float((weights * diagonal).sum())
        return self._by_group(gain), spent, weighed, largest

    def _by_group(self, of_streams: Matrix) -> Matrix:
        grouped = np.zeros((int(self.groups.max()) + 1, len(self.shapes)))
        np.add.at(grouped, self.groups, of_streams)
        return grouped

    def objective(self, shares: Array, power: float) -> tuple[float, Array]:
        """Log cost + log of the power mean of the precisions, and the gradient."""
        gain, _, weighed, largest = self._gains(shares, power)
        value = np.log(shares.sum()) + np.log(largest) + np.log(weighed / largest) / power
        return float(value), 1.0 / shares.sum() - (gain / self.prices).ravel() / weighed

    def lower_bound(self, shares: Array) -> float:
        """The module's bound; any power gives weights p, the best of some is taken."""
        best = 0.0
        for power in (8.0, 32.0, 128.0, 512.0, 2048.0):
            gain, spent, weighed, _ = self._gains(shares, power)
            best = max(best, weighed**2 / spent / float((gain / self.prices).max()))
        return best * (1 - 1e-9)


def _descend(objective: Any, start: Array, bounds: Array, iterations: int) -> Array:
    options = {"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-10, "gtol": 1e-9}
    return _optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x

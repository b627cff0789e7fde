"""Noise correlated over rounds and over edges: what it costs each node, and how it is drawn.

In DECOR a node adds its own noise and its masks, fresh in every round. Here both may be correlated
over rounds. Node i's noise in round t is

    z_i(t) = sum_j sqrt(a_ij) v_ij(t) + sum_{e at i} +- sum_j sqrt(b_ej) m_ej(t),

v_ij its own and m_ej the stream that the two ends of e share, all independent, of unit variance and
stationary: shape j says how. White shapes alone, equal at all nodes and edges, are DECOR.

What holds. Let S(w) = sum_j density_j(w) (diag(a_j) + K diag(b_j) K^T) for a frequency w, without
the rows of a coalition and without the edges that it knows. A node whose clipped gradient may move
by s in every round loses at most what T Gaussian releases of sensitivity s and precision

    sup_w [S(w)^-1]_ii

lose, whatever it sends and however that depends on earlier rounds: mu^2 <= s^2 T sup. One that
takes part in k rounds alone loses mu^2 <= s^2 min(k sup, k^2 mean_w [S(w)^-1]_ii). Both are proved
in extras/docs/decor-beyond.md; with white shapes the first is DECOR's own price. Streams must be
stationary from the first round on. Amplification by sampling is not claimed: rounds share noise.

Sources: Allouah et al. (DECOR), Algorithm 3; Denisov et al. 2022, Theorem 2.1 (adaptive streams).
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor

from manifed.graphs import MOST_SUBSETS, Graph, Matrix
from manifed.privacy.composition import gaussian_delta
from manifed.privacy.secldp import Worst

Array = NDArray[np.float64]
Numbers = TypeVar("Numbers", Array, Tensor)

_UNIT_ROUNDOFF: Final = 2.0**-53
_MOST_LOST: Final = 1e-2
"""Where float64 may lose more than this share of a price, masks are worth nothing."""
_TIGHT: Final = 1e-4
"""A supremum is bounded to this, relative."""
_MOST_HALVINGS: Final = 60
_MOST_CELLS: Final = 1 << 12


def largest_mu(epsilon: float, delta: float) -> float:
    """The Gaussian parameter whose releases cost epsilon at ``delta``; its inverse is a noise."""
    find: Any = optimize.brentq  # scipy ships no stubs
    return float(find(lambda mu: gaussian_delta(epsilon, mu=mu) - delta, 1e-9, 1e3, xtol=1e-14))


@dataclass(frozen=True)
class Shape:
    """How a stream of unit variance is correlated over rounds; u is first-order autoregressive.

    ``white``: not at all. ``slow``: u_t = memory u_{t-1} + sqrt(1 - memory^2) w_t, with a density
    that is large at low frequencies. ``fast``: (u_t - u_{t-1}) / sqrt(2 (1 - memory)), which sums
    to little over many rounds.

    Raises:
        ValueError: unless 0 <= memory < 1, and 0 for a white stream.
    """

    kind: Literal["white", "slow", "fast"] = "white"
    memory: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.memory < 1 or (self.kind == "white" and self.memory):
            raise ValueError(
                f"Expected 0 <= memory < 1, and 0 for a white stream, got {self.memory} for "
                f"{self.kind}"
            )

    def density(self, frequency: Array) -> Array:
        """The spectral density at frequencies in [0, pi], with mean 1; monotone in each kind."""
        if self.kind == "white":
            return np.ones_like(frequency)
        phi, half = self.memory, np.sin(frequency / 2) ** 2  # 1 - cos w = 2 half
        below = (1 - phi) ** 2 + 4 * phi * half  # |1 - phi e^iw|^2
        return (1 - phi**2) / below if self.kind == "slow" else 2 * (1 + phi) * half / below

    def autocovariance(self, lags: Array) -> Array:
        """Of rounds so far apart (>= 0): the covariance whose Fourier sum is `density`."""
        if self.kind == "white":
            return (lags == 0).astype(float)
        phi = self.memory
        slow = phi**lags
        if self.kind == "slow":
            return slow
        return (2 * slow - phi ** np.abs(lags - 1) - phi ** (lags + 1)) / (2 * (1 - phi))

    def least(self, left: Array, right: Array) -> Array:
        """The smallest density between two frequencies, rounded down."""
        at = left if self.kind == "fast" else right  # slow ones fall, fast ones rise
        return self.density(at) * (1 - 64 * _UNIT_ROUNDOFF)

    @property
    def most(self) -> float:
        """The largest density."""
        return float(self.density(np.array([0.0, math.pi])).max())

    def step(self, state: Numbers, normals: Numbers) -> tuple[Numbers, Numbers]:
        """The next state and this round's noise, from fresh standard normals of one shape.

        The state before the first round is standard normal: from any other the stream would not be
        stationary, and its first rounds would hide less than is charged for.
        """
        if self.kind == "white":
            return state, normals
        phi = self.memory
        new = phi * state + math.sqrt(1 - phi**2) * normals
        return new, new if self.kind == "slow" else (new - state) / math.sqrt(2 * (1 - phi))


WHITE: Final = Shape()


def shapes(memories: Iterable[float]) -> tuple[Shape, ...]:
    """White, and a slow and a fast stream for each memory."""
    return WHITE, *(Shape(kind, m) for m in memories for kind in ("slow", "fast"))


@dataclass(frozen=True, eq=False)
class StationaryNoise:
    """The variances of every stream of a graph.

    Raises:
        ValueError: for shapes that do not fit, a negative variance, or a node whose own noise has
            no white and no slow part (its sum over many rounds would be known).
    """

    graph: Graph
    shapes: tuple[Shape, ...]
    nodes: Matrix
    """a, (n, number of shapes)."""
    edges: Matrix
    """b, (number of edges, number of shapes), in the order of ``graph.edges``."""

    def __post_init__(self) -> None:
        for name, rows in (("nodes", self.graph.num_nodes), ("edges", len(self.graph.edges))):
            found = getattr(self, name)
            expected = (rows, len(self.shapes))
            if found.shape != expected:
                raise ValueError(f"{name}: expected shape {expected}, got {found.shape}")
            if not (np.isfinite(found) & (found >= 0)).all():
                raise ValueError(f"{name}: expected finite variances >= 0, got others")
        if not (self.floors > 0).all():
            node = int(self.floors.argmin())
            raise ValueError(f"nodes: expected white or slow noise of its own at every node, got "
                             f"none at node {node}")  # fmt: skip

    @cached_property
    def floors(self) -> Array:
        """What the density of each node's own noise is at least, (n,)."""
        least = [float(s.least(np.array(0.0), np.array(math.pi))) for s in self.shapes]
        return self.nodes @ np.array(least)

    def scaled(self, factor: float) -> "StationaryNoise":
        """All variances times ``factor``."""
        return StationaryNoise(self.graph, self.shapes, self.nodes * factor, self.edges * factor)

    def without(self, coalition: Iterable[int]) -> tuple["StationaryNoise", list[int]]:
        """What an adversary who knows all that ``coalition`` knows cannot compute, and of whom."""
        gone = set(coalition)
        left = [i for i in range(self.graph.num_nodes) if i not in gone]
        kept = [k for k, (i, j) in enumerate(self.graph.edges) if i not in gone and j not in gone]
        graph = self.graph.without(gone)  # keeps the order of nodes, and so that of edges
        return StationaryNoise(graph, self.shapes, self.nodes[left], self.edges[kept]), left

    def precisions(self, left: Array, right: Array) -> Array:
        """Bounds of [S(w)^-1]_ii from above for left <= w <= right, (number of cells, n).

        Every summand of S is positive semidefinite times a density, so S is at least what the
        smallest densities of a cell make. The inverse's relative error is below 8 n cond 2^-53
        (Higham 2002, section 14.3).
        """
        n = self.graph.num_nodes
        cells = len(left)
        least = np.stack([s.least(left, right) for s in self.shapes])
        own = self.nodes @ least
        shared = self.edges @ least
        alone = 1.0 / own.T
        most = np.array([s.most for s in self.shapes])
        largest = float(((self.nodes + 2 * self._at_nodes(self.edges)) @ most).max())
        lost = 8.0 * n * _UNIT_ROUNDOFF * largest / float(self.floors.min())
        if lost > _MOST_LOST or not self.graph.edges:
            return alone * (1 + 4 * _UNIT_ROUNDOFF)
        covariance = np.zeros((cells, n, n))
        first, second = np.array(self.graph.edges).T
        covariance[:, first, second] = -shared.T
        covariance[:, second, first] = -shared.T
        covariance[:, range(n), range(n)] = own.T + self._at_nodes(shared).T
        found = np.linalg.inv(covariance)[:, range(n), range(n)]
        return np.minimum(found * (1 + lost), alone * (1 + 4 * _UNIT_ROUNDOFF))

    def _at_nodes(self, of_edges: Matrix) -> Matrix:
        """Sums over the edges at each node, (n, ...)."""
        return np.abs(self.graph.incidence) @ of_edges


def _cells(noise: StationaryNoise) -> tuple[Array, Array]:
    """Cells of [0, pi] that are short where densities change fast."""
    slowest = 1.0 - max(shape.memory for shape in noise.shapes)
    ends = np.concatenate([[0.0], np.geomspace(min(slowest / 16, 0.1), math.pi, 64)])
    return ends[:-1], ends[1:]


def _suprema(noise: StationaryNoise) -> Array:
    """Sup_w [S(w)^-1]_ii of every node, from above: cells are halved until they say enough."""
    left, right = _cells(noise)
    settled = reached = np.zeros(noise.graph.num_nodes)
    for _ in range(_MOST_HALVINGS):
        bounds = noise.precisions(left, right)
        reached = np.maximum(reached, noise.precisions(right, right).max(0))
        enough = np.maximum(settled, reached * (1 + _TIGHT))
        is_open = (bounds > enough).any(1)
        settled = np.maximum(settled, bounds[~is_open].max(0, initial=0.0))
        if not is_open.any():
            return settled
        left = left[is_open]
        right = right[is_open]
        middle = (left + right) / 2
        left = np.concatenate([left, middle])
        right = np.concatenate([middle, right])
        if len(left) > _MOST_CELLS:
            break
    return np.maximum(settled, noise.precisions(left, right).max(0))


def against(noise: StationaryNoise, coalition: Iterable[int] = ()) -> Worst:
    """The worst node outside a named coalition: sup_w [S(w)^-1]_ii, from above within 1e-4."""
    gone = tuple(sorted(set(coalition)))
    hidden, left = noise.without(gone)
    found = _suprema(hidden)
    node = int(found.argmax())
    return Worst(float(found[node]), left[node], gone, is_exact=False)


def coalitions(graph: Graph, collusion: int) -> tuple[tuple[int, ...], ...]:
    """All coalitions of that many nodes.

    Raises:
        ValueError: unless 0 <= collusion < n, or for more than 4000 coalitions.
    """
    n = graph.num_nodes
    if not 0 <= collusion < n or math.comb(n, collusion) > MOST_SUBSETS:
        raise ValueError(
            f"Expected 0 <= collusion < num_nodes = {n} with at most {MOST_SUBSETS} coalitions, "
            f"got {collusion}"
        )
    return tuple(itertools.combinations(range(n), collusion))


def worst(noise: StationaryNoise, collusion: int) -> Worst:
    """The worst node for the worst coalition of that many nodes; errors as `coalitions`."""
    found = (against(noise, gone) for gone in coalitions(noise.graph, collusion))
    return max(found, key=lambda w: w.precision)


def mean_precision(
    noise: StationaryNoise, coalition: Iterable[int] = (), cells: int = 512
) -> float:
    """The largest mean_w [S(w)^-1]_ii of a node outside the coalition, from above."""
    hidden, _ = noise.without(coalition)
    slowest = 1.0 - max(shape.memory for shape in hidden.shapes)
    ends = np.concatenate([[0.0], np.geomspace(min(slowest / 64, 0.1), math.pi, cells)])
    bounds = hidden.precisions(ends[:-1], ends[1:])
    return float((np.diff(ends)[:, None] * bounds).sum(0).max() / math.pi) * (1 + 1e-12)


def squared_mu(
    sensitivity: float, participations: int, peak: float, mean: float = math.inf
) -> float:
    """Mu^2 of a node that takes part in so many rounds, whichever, rounded up.

    ``peak`` bounds sup_w [S(w)^-1]_ii, ``mean`` (if known) its mean over frequencies.
    """
    worth = min(participations * peak, participations**2 * mean)
    return sensitivity**2 * worth * (1 + 8 * _UNIT_ROUNDOFF)

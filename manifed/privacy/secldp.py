"""The SecLDP accountant: the price of correlated noise on a graph, by node and adversary.

A node's message carries its clipped gradient, its own noise N(0, sigma_cdp^2 I) and one mask
N(0, sigma_cor^2 I) for each neighbour that the neighbour subtracts. Given the secrets that an
adversary does not hold, the messages of the nodes H outside a coalition have covariance
S = sigma_cdp^2 I + sigma_cor^2 L(G - coalition), and a change s of node i's gradient is seen as
s e_i. So for its victim each round *is* a Gaussian mechanism with

    effective standard deviation 1 / sqrt([S^-1]_ii),

and everything that prices Gaussians prices this, subsampled or not. The paper's
Renyi slope is 2 C^2 [S^-1]_ii. Victims are honest nodes: against its own coalition a member has
sigma_cdp alone (§7-B1). `MaskedMechanism` scales the noise of both kinds and states that event.

Source: Allouah et al., "The Privacy Power of Correlated Noise in Decentralized Learning" (DECOR),
Algorithms 1 to 3, Theorems 1 and 6.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from manifed.fields import Frozen, NonNegative
from manifed.graphs import MOST_SUBSETS, Graph, Matrix, connectivity_bound
from manifed.privacy import epsilon_bounds
from manifed.privacy.events import (
    PoissonSampled,
    PrivacyUnit,
    Release,
    Sampling,
    Unsampled,
)
from manifed.privacy.mechanism import ExampleMechanism

_UNIT_ROUNDOFF = 2.0**-53
_DIRECT = 100
"""Up to so many nodes each leaves a matrix that is inverted by itself."""
MOST_EXACT = 4096
"""Nodes of the largest graph whose whole covariance is inverted; of larger ones see `_around`."""
_TREE = 256
"""Nodes of the trees around each node of a larger graph."""
_MOST_LOST = 1e-2
"""Where float64 may lose more than this share of a price, masks are worth nothing."""


@dataclass(frozen=True)
class Correlated:
    """The noise of one round: standard deviations of a node's own noise and of one mask.

    Raises:
        ValueError: unless sigma_cdp > 0 and sigma_cor >= 0, both finite.
    """

    sigma_cdp: float
    sigma_cor: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma_cdp < math.inf:
            raise ValueError(f"Expected 0 < sigma_cdp < inf, got {self.sigma_cdp}")
        if not 0 <= self.sigma_cor < math.inf:
            raise ValueError(f"Expected 0 <= sigma_cor < inf, got {self.sigma_cor}")

    @property
    def ratio(self) -> float:
        """(sigma_cor / sigma_cdp)^2."""
        return (self.sigma_cor / self.sigma_cdp) ** 2


def precisions(graph: Graph, noise: Correlated, coalition: Sequence[int] = ()) -> Matrix:
    """Returns [S^-1]_ii = 1 / (effective deviation)^2 of each node outside, rounded up.

    They are at most 1 / sigma_cdp^2, with equality where a node shares no secret. The diagonal of
    the inverse comes from Cholesky factors; its relative error is below 8 n cond(S) 2^-53 (Higham
    2002, section 14.3), by which it is raised. Where that is no small number masks are worth
    nothing.
    """
    left = np.delete(np.arange(graph.num_nodes), list(coalition))
    lost = 8.0 * graph.num_nodes * _condition(graph, noise) * _UNIT_ROUNDOFF
    if noise.ratio == 0 or lost > _MOST_LOST:
        return np.full(len(left), 1.0 / noise.sigma_cdp**2)
    shared = noise.ratio * graph.adjacency[np.ix_(left, left)]
    root = _inverse_root(np.diag(1.0 + shared.sum(1)) - shared)
    return np.minimum((root**2).sum(0) * (1.0 + lost), 1.0) / noise.sigma_cdp**2


def _condition(graph: Graph, noise: Correlated) -> float:
    """A bound of the condition number of S: eigenvalues of L are at most twice the degree."""
    return 1.0 + 2.0 * max(graph.degrees) * noise.ratio


def _inverse_root(matrix: Matrix) -> Matrix:
    """R with R^T R the inverse of a symmetric positive definite matrix."""
    import scipy.linalg

    factor = scipy.linalg.cholesky(matrix, lower=True, check_finite=False)
    identity = np.eye(matrix.shape[0])
    return scipy.linalg.solve_triangular(factor, identity, lower=True, check_finite=False)


@dataclass(frozen=True)
class Worst:
    """The honest node whose messages the noise hides least from one adversary."""

    precision: float
    """[S^-1]_ii, or a proved upper bound of it."""
    node: int | None
    """None where only a bound is known."""
    coalition: tuple[int, ...] | None
    is_exact: bool

    @property
    def stddev(self) -> float:
        """The effective standard deviation of the noise on that node's messages."""
        return 1.0 / math.sqrt(self.precision)

    def epsilon(
        self, delta: float, rounds: int, sensitivity: float, sampling_rate: float | None = None
    ) -> float:
        """Returns the price of so many rounds for that node; the multiplier is rounded down.

        ``sensitivity`` is that of a message in L2. Without ``sampling_rate`` user level: a node's
        data are replaced and a clipped gradient moves by 2 C. With one example level,
        add-or-remove, Poisson with rate b / m: a sum of clipped gradients over b moves by C / b.
        """
        release = Release(
            unit="client" if sampling_rate is None else "example",
            neighboring_relation="replace-one" if sampling_rate is None else "add-or-remove",
            noise_multiplier=self.stddev / sensitivity * (1 - 4 * _UNIT_ROUNDOFF),
            sampling=Unsampled()
            if sampling_rate is None
            else PoissonSampled(sampling_probability=sampling_rate),
            count=rounds,
        )
        return epsilon_bounds.epsilon([release], delta)


def against(graph: Graph, noise: Correlated, coalition: Iterable[int] = ()) -> Worst:
    """Finds the worst node outside a named coalition (Algorithm 3's inner loop).

    Exact for up to `MOST_EXACT` nodes; of more a bound, as `worst`.
    """
    gone = tuple(sorted(set(coalition)))
    if graph.num_nodes > MOST_EXACT:
        bound = _around(graph.without(gone) if gone else graph, noise, 0)
        return Worst(bound, None, gone, is_exact=False)
    left = [i for i in range(graph.num_nodes) if i not in gone]
    found = precisions(graph, noise, gone)
    worst = int(found.argmax())
    return Worst(float(found[worst]), left[worst], gone, is_exact=True)


def worst(graph: Graph, noise: Correlated, collusion: int) -> Worst:
    """Finds the worst node for the worst coalition of ``collusion`` nodes.

    Of up to `MOST_EXACT` nodes exact (Algorithms 2 and 3) for no or one colluding node and wherever
    the coalitions can be enumerated; else the bound of Theorem 6 with a proved a_q (see
    `connectivity_bound`). Of more nodes a bound: what those around each node hide of it.

    Raises:
        ValueError: unless 0 <= collusion < n.
    """
    n = graph.num_nodes
    if not 0 <= collusion < n:
        raise ValueError(f"Expected 0 <= collusion < num_nodes = {n}, got {collusion}")
    if collusion == 0:
        return against(graph, noise)
    lonely = min(range(n), key=lambda i: graph.degrees[i])
    if graph.degrees[lonely] <= collusion:  # all who share a secret with it can be in the coalition
        near = graph.neighbors[lonely]
        others = [i for i in range(n) if i != lonely and i not in near]
        gone = tuple(sorted([*near, *others][:collusion]))
        return Worst(1.0 / noise.sigma_cdp**2, lonely, gone, is_exact=True)
    if n > MOST_EXACT:
        return Worst(_around(graph, noise, collusion), None, None, is_exact=False)
    if collusion == 1 and (found := _one_colluding(graph, noise)) is not None:
        return found
    if collusion == 1 or (math.comb(n, collusion) <= MOST_SUBSETS and n <= 200):
        subsets = itertools.combinations(range(n), collusion)
        return max((against(graph, noise, gone) for gone in subsets), key=lambda w: w.precision)
    return Worst(theorem_bound(graph, noise, collusion), None, None, is_exact=False)


def _one_colluding(graph: Graph, noise: Correlated) -> Worst | None:
    """The worst node as each in turn colludes; the matrix is inverted once and updated for each.

    The update subtracts numbers of about the condition number's size: what it may have lost is
    added. None where that leaves too few digits, and of small graphs.
    """
    n = graph.num_nodes
    lost = 64.0 * n * _condition(graph, noise) ** 2 * _UNIT_ROUNDOFF
    is_fine = lost <= 1e-6  # relative to the node's own noise
    if n <= _DIRECT or (n <= 2 * _DIRECT and not is_fine):
        return None
    diagonals = enumerate(_each_gone(graph, noise))
    largest = ((float(each.max()), int(each.argmax()), v) for v, each in diagonals)
    precision, node, v = max(largest, key=lambda one: one[0])
    bound = min(precision + lost, 1.0)
    if not is_fine and lost > _MOST_LOST * bound:
        return None
    return Worst(bound / noise.sigma_cdp**2, node, (v,), is_fine)


@lru_cache(maxsize=4)
def _trees(graph: Graph, size: int) -> NDArray[np.int16]:
    """The nodes nearest to each node, which becomes node 0, by the parent of each: (n, size).

    -1: there is none.
    """
    trees = np.full((graph.num_nodes, size), -1, dtype=np.int16)
    for center in range(graph.num_nodes):
        seen = {center}
        order = [center]
        parents = [-1]
        for k, node in enumerate(order):
            for other in graph.neighbors[node]:
                if other not in seen and len(order) < size:
                    seen.add(other)
                    order.append(other)
                    parents.append(k)
            if len(order) == size:
                break
        trees[center, : len(parents)] = parents
    return trees


def _around(graph: Graph, noise: Correlated, collusion: int) -> float:
    """A bound of the worst node's precision, at any size, against so many who collude.

    L(G) is a sum over edges of positive semidefinite matrices, so edges that are left out only
    lower S and raise [S^-1]_ii: those of a tree of the nodes nearest to i bound it. With the
    branches at children c eliminated (Schur), sigma_cdp^2 [S^-1]_ii = 1 / t_i, where
    t_i = 1 + sum_c r t_c / (t_c + r) and t_c likewise, r = (sigma_cor / sigma_cdp)^2. One who
    colludes takes at most the term of the branch he is in, so the largest q terms are left out. All
    terms are positive: the relative error is below 8 nodes 2^-53. Far edges hide little, so of a
    ring the bound is close.
    """
    trees = _trees(graph, _TREE)
    roots = np.arange(len(trees))
    size = trees.shape[1]
    hides = np.ones(trees.shape)
    terms = np.zeros(trees.shape)
    for k in range(size - 1, 0, -1):
        parent = trees[:, k]
        own = hides[:, k]
        term = np.where(parent >= 0, noise.ratio * own / (own + noise.ratio), 0.0)
        terms[:, k] = np.where(parent == 0, term, 0.0)
        hides[roots, np.maximum(parent, 0)] += term
    terms.sort(axis=1)
    least = 1.0 + float(terms[:, : max(size - collusion, 0)].sum(1).min())
    return min((1 + 8 * size * _UNIT_ROUNDOFF) / least, 1.0) / noise.sigma_cdp**2


def _each_gone(graph: Graph, noise: Correlated) -> Iterator[Matrix]:
    """The diagonal of (S / sigma_cdp^2)^-1 as each node has left and what it shared is known, (n,).

    S without v is the principal submatrix, whose inverse is a Schur complement, less sigma_cor^2 at
    v's neighbours: an update of rank deg(v). Of v itself stands 0.
    """
    root = _inverse_root(np.eye(graph.num_nodes) + noise.ratio * graph.laplacian)
    inverse = root.T @ root
    for v in range(graph.num_nodes):
        near = list(graph.neighbors[v])
        column = inverse[:, v] / math.sqrt(inverse[v, v])
        diagonal = np.diag(inverse) - column**2
        if near and noise.ratio > 0:
            wide = inverse[:, near] - np.outer(column, column[near])
            core = np.eye(len(near)) / noise.ratio - wide[near]
            diagonal = diagonal + (wide * np.linalg.solve(core, wide.T).T).sum(1)
        diagonal[v] = 0.0
        yield diagonal


def precision_bound(honest: int, connectivity: float, noise: Correlated) -> float:
    """Theorem 6 over 2 C^2: 1/(h s_cdp^2) + (1 - 1/h) / (s_cdp^2 + a_q s_cor^2), h = n - q."""
    own = noise.sigma_cdp**2
    masks = connectivity * noise.sigma_cor**2
    return (1 / honest / own + (1 - 1 / honest) / (own + masks)) * (1 + 8 * _UNIT_ROUNDOFF)


def theorem_bound(graph: Graph, noise: Correlated, collusion: int) -> float:
    """Evaluates Theorem 6 with a proved a_q, taken as 0 for more than `MOST_EXACT` nodes."""
    n = graph.num_nodes
    connectivity = connectivity_bound(graph, collusion)[0] if n <= MOST_EXACT else 0.0
    return precision_bound(n - collusion, connectivity, noise)


def calibrate_masks(
    graph: Graph, sigma_cdp: float, collusion: int, is_met: Callable[[Worst], bool]
) -> Correlated:
    """Searches the least sigma_cor, to 1e-6 from above, whose worst node meets a condition.

    ``is_met`` must hold for every smaller precision than one that it holds for.

    Raises:
        ValueError: when no sigma_cor does: the message says which sigma_cdp could.
    """

    def is_enough(sigma_cor: float) -> bool:
        return is_met(worst(graph, Correlated(sigma_cdp, sigma_cor), collusion))

    if is_enough(0.0):
        return Correlated(sigma_cdp, 0.0)
    low = 0.0
    high = sigma_cdp
    while not is_enough(high):
        low = high
        high = 4 * high
        if high > 1e5 * sigma_cdp:
            raise ValueError(
                f"sigma_cdp: expected one at which some sigma_cor meets the budget, got "
                f"{sigma_cdp:g}; raise it, or choose a graph that stays connected when "
                f"{collusion} nodes leave"
            )
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return Correlated(sigma_cdp, high)


# -- the mechanism ---------------------------------------------------------------------------
_DOWN = 1 - 2.0**-50
"""Against the rounding of a quotient: a noise multiplier is stated no larger than it is."""


class Hidden(Frozen):
    """Effective standard deviations of the noise on the worst node's message, by adversary."""

    from_server: float
    from_one: float
    from_coalition: float
    from_all: float

    @classmethod
    def of(
        cls, graph: Graph, noise: Correlated, collusion: int, coalition: Sequence[int] = ()
    ) -> "Hidden":
        """Computes the deviations by `worst`, and by `against` for a named coalition.

        Where so many cannot collude without the victim, all others do.
        """

        def least(colluding: int) -> float:
            return worst(graph, noise, min(colluding, graph.num_nodes - 1)).stddev * _DOWN

        named = against(graph, noise, coalition).stddev * _DOWN if coalition else least(collusion)
        return cls(
            from_server=least(0), from_one=least(1), from_coalition=named, from_all=noise.sigma_cdp
        )

    @classmethod
    def uniform(cls, stddev: float) -> "Hidden":
        """Makes the deviations of noise that hides the same from every adversary."""
        return cls(from_server=stddev, from_one=stddev, from_coalition=stddev, from_all=stddev)


class MaskedMechanism(ExampleMechanism):
    """A node's own noise and masks that it shares with its neighbours (DECOR, Algorithm 1).

    What leaves node i is g_i + N(0, noise^2) + mask_stddev * sum_j (+-) v_ij. g_i moves by at most
    its sensitivity: with ``unit = "client"`` the whole gradient is clipped and somebody's data are
    replaced, so 2 C; with "example" each example's gradient is clipped and b are averaged.
    """

    unit: PrivacyUnit = "client"
    mask_stddev: NonNegative = 0.0
    """The deviation of the mask of one pair, per orthonormal coordinate."""
    hidden: Hidden

    def masks(self) -> tuple[PrivacyUnit, float]:
        """The unit that masks hide, and the deviation of one pair's mask."""
        return self.unit, self.mask_stddev

    def sensitivity(
        self, l2_norm_clip: float, expected_size: float, *, terms: int = 1, apart: float = 2.0
    ) -> float:
        """Returns how far a change of one node's data moves a message."""
        if self.unit == "client":
            return 2.0 * l2_norm_clip
        return super().sensitivity(l2_norm_clip, expected_size, terms=terms, apart=apart)

    def scaled(self, factor: float) -> "MaskedMechanism":
        """Refuses to scale, because what masks hide is found for both kinds of noise together.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"Expected masked noise as it is priced, got {factor:g} times as much")

    def release(
        self, *, label: str, count: int, stddev: float, sensitivity: float, sampling: Sampling
    ) -> Release:
        """Returns the release of so many messages of the worst node."""
        del stddev
        hidden = self.hidden
        return Release(
            unit=self.unit,
            neighboring_relation=self.neighboring_relation,
            noise_multiplier=hidden.from_all / sensitivity * _DOWN,
            to_coalition=hidden.from_coalition / sensitivity * _DOWN,
            to_one=hidden.from_one / sensitivity * _DOWN,
            to_server=hidden.from_server / sensitivity * _DOWN,
            sampling=sampling,
            count=count,
            label=label,
        )

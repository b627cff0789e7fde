"""H26 to H29: Lemmas 7 and 9, Theorem 2 and the utility of Corollaries 3 and 12, without chance.

On quadratic losses both sides of every inequality are known exactly (`reproduction.decor_moments`),
so a lemma is checked at its worst models instead of at some.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from manifed.graphs import (
    Complete,
    ErdosRenyi,
    Graph,
    Ring,
    connectivity_bound,
    metropolis_hastings,
)
from reproduction.checks_000.bounds import bounded
from reproduction.checks_004 import identities
from reproduction.checks_004.identities import consensus_rate, distance_to_mean, heterogeneity
from reproduction.decor_moments import Array, Network, Quadratics, State, after
from reproduction.decor_reference import LeastSquares
from reproduction.findings import Finding, Part, log_slope

DELTA = 1e-5
DIM = 10
GRAPHS: Mapping[str, Graph] = {
    **identities.GRAPHS, "erdos-renyi": ErdosRenyi(probability=0.3).build(16)
}  # fmt: skip


def descent_margin(curvatures: Array, step_size: float, smoothness: float) -> float:
    """The least value, over all models, of (right - left) / (size of the right) in Lemma 7.

    A mean gradient g and deviations y from the mean model give g + mean(h y) as the mean of the
    local gradients. The size is eta g^2 / 4 + 3 eta L^2 Xi / 4. Noise is left out: its term on the
    right is that on the left times L over the mean curvature.
    """
    n = len(curvatures)
    sizes = np.array([step_size / 4, *[3 * step_size * smoothness**2 / (4 * n)] * n])
    gradient = np.eye(n + 1)[0]
    deviations = np.eye(n) - 1 / n
    pulled = np.concatenate([[1.0], curvatures @ deviations / n])
    left = -step_size * np.outer(gradient, pulled)
    left += curvatures.mean() * step_size**2 / 2 * np.outer(pulled, pulled)
    margin = np.diag(sizes) - (left + left.T) / 2
    margin[0, 0] -= 2 * sizes[0]  # the right side has -eta g^2 / 4
    roots = np.sqrt(sizes)
    return float(np.linalg.eigvalsh(margin / np.outer(roots, roots))[0])


def descent_parts(each: Sequence[Mapping[str, float]]) -> list[Part]:
    """Margins by losses, of every seed."""
    return [
        Part(f"least margin, {name}", [one[name] for one in each], least=0.0) for name in each[0]
    ]


def check_h26(seeds: Sequence[int] = range(10)) -> Finding:
    """Lemma 7 at its largest step, 1 / (2 L), at the worst models."""
    each = []
    for seed in seeds:
        drawn = np.random.default_rng([seed, 26]).uniform(-1, 1, (2, 16))
        losses = {"curvatures in [-1, 1]": drawn[0], "in [0, 1]": np.abs(drawn[1])}
        each.append({name: descent_margin(h, 0.5, 1.0) for name, h in losses.items()})
    return Finding.judged(
        "Lemma 7 holds at eta = 1 / (2 L) for the worst models of 16 nodes with quadratic losses",
        descent_parts(each),
        {"all curvatures L": descent_margin(np.ones(16), 0.5, 1.0)},
        seeds,
        "Of 1 where the left side is 0. A seed draws curvatures; models and targets are the worst.",
    )


def consensus_margin(graph: Graph, curvature: float, divisor: float) -> float:
    """The least (right - left) / right of Lemma 9 over all models and targets.

    All nodes have curvature ``curvature`` of L = 1 and targets c with mean 0, so that P = 1, M = 0
    and zeta^2 = mean |c|^2. The step is p / (L sqrt(divisor (1 - p))): 18 is the printed divisor.
    """
    weights = metropolis_hastings(graph)
    p = consensus_rate(weights)
    n = graph.num_nodes
    step = p / math.sqrt(divisor * (1 - p))
    mixed = weights.toarray() - 1 / n
    moved = np.hstack([(1 - step * curvature) * mixed, step * mixed])  # of (y, c)
    right = np.array([1 - p / 2] * n + [6 * (1 - p) * step**2 / p] * n)
    roots = np.sqrt(right)
    share = moved.T @ moved / np.outer(roots, roots)
    return float(1 - np.linalg.eigvalsh(share)[-1])


def check_h27() -> Finding:
    """Lemma 9 at the printed step and at the one that its proof needs, at the worst models."""
    margins = {
        name: {
            text: min(consensus_margin(graph, h, divisor) for h in (-1.0, 0.0, 1.0))
            for text, divisor in (("as printed", 18.0), ("with 12 in place of 6", 36.0))
        }
        for name, graph in GRAPHS.items()
        if name != "complete"  # p = 1: one step makes all models equal
    }
    holds = {text: all(row[text] >= 0 for row in margins.values()) for text in margins["ring"]}
    return Finding(
        "Lemma 9 holds for the worst models at eta = p / (L sqrt(6 (1 - p) (3 + p M)))",
        holds["as printed"],
        {"least (right - left) / right": margins},
        remark="Counter-example: L_i(x) = -L x^2 / 2 - c_i x near 0, models and c along the "
        "slowest mode of W. Theorem 2's steps are smaller, and the lemma holds for them.",
        in_regime=holds["with 12 in place of 6"],
    )


# -- Theorem 2 -------------------------------------------------------------------------------
def losses(seed: int, is_convex: bool) -> Quadratics:
    """Task 1 of section 6; where it is not convex, half of the nodes curve downwards."""
    task = LeastSquares.draw(1, d=DIM, seed=seed)
    scales = task.scales[:, 0]
    signs = np.where((np.arange(len(scales)) < 8) & (not is_convex), -1.0, 1.0)
    return Quadratics(signs * scales**2, task.scales * task.targets[0])


def constant(task: Quadratics, p: float) -> float:
    """The constant c of Theorem 2 for M = 0."""
    relative, _ = task.dissimilarity
    return max(4 * math.sqrt(9 * (1 - p) * relative), task.curvature / task.smoothness, 2 * p)


def descended(task: Quadratics, network: Network, start: Array, rounds: int) -> tuple[State, float]:
    """The state after Theorem 2's steps 16 / (mu (t + t_0)), and t_0 = c L / (mu p)."""
    p = consensus_rate(metropolis_hastings(network.graph))
    late = constant(task, p) * task.smoothness / (task.curvature * p)
    state, _ = after(task, network, start, rounds, lambda t: 16 / (task.curvature * (t + late)))
    return state, late


def theorem_2(task: Quadratics, network: Network, rounds: int, is_convex: bool) -> float:
    """What was bounded, over its bound with the constants at the end of B.3.1 and B.3.2.

    With a PL constant: E L(mean) - L* + 48 L^2 Xi / (mu p (T + t_0)); else the mean of
    E|grad L|^2 over all rounds. All models start at (1, ..., 1), so that Xi_0 = 0.
    """
    weights = metropolis_hastings(network.graph)
    p = consensus_rate(weights)
    _, spread = task.dissimilarity
    smooth, mu = task.smoothness, task.curvature
    n = network.graph.num_nodes
    start = np.ones((n, DIM))
    gap = 0.5 * mu * float(((1 - task.optimum) ** 2).sum())
    own = DIM * network.sigma_cdp**2
    masks = 2 * heterogeneity(network.graph, weights) * len(network.graph.edges) / n
    left = (1 - p) * 6 * spread / p + masks * DIM * network.sigma_cor**2
    left += distance_to_mean(weights) * own
    if is_convex:
        state, late = descended(task, network, start, rounds)
        found = state.gap(task) + 48 * smooth**2 / (mu * p * (rounds + late)) * state.spread
        bound = 512 * smooth / (mu**2 * rounds) * own / n
        bound += 49152 * math.log(rounds + 1) / rounds**2 * smooth**2 / (mu**3 * p) * left
        return found / (bound + late**2 * gap / rounds**2)
    c = constant(task, p)
    step = min(p / (2 * c * smooth), 2 * math.sqrt(gap * n / (smooth * rounds * own)))
    _, found = after(task, network, start, rounds, lambda _: step)
    bound = 12 * math.sqrt(smooth * gap * own / (n * rounds)) + 16 * c * smooth * gap / (p * rounds)
    return found / (bound + 96 * smooth * gap * n / (p * rounds * own) * left)


HORIZONS = (100, 1000)


def check_h28(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 2 with its explicit constants, and how much of them is used."""
    shares = {
        f"{'PL' if is_convex else 'non-convex'}, {name}, T = {rounds}": [
            theorem_2(losses(seed, is_convex), Network(GRAPHS[name], 1.0, 10.0), rounds, is_convex)
            for seed in seeds
        ]
        for is_convex in (True, False)
        for name in ("ring", "complete")
        for rounds in HORIZONS
    }
    return Finding.judged(
        "Theorem 2 holds with its explicit constants (task 1, and with half of the nodes concave)",
        bounded(shares),
        {},
        seeds,
        "sigma_cdp = 1, sigma_cor = 10, full gradients, no clip.",
    )


# -- Corollaries 3 and 12 --------------------------------------------------------------------
SIZES = (4, 8, 16)
EPSILONS = (0.5, 2.0)
ROUNDS = 1000


def utility(graph: Graph, colluding: float, epsilon: float, seed: int) -> float:
    """E L(mean) - L* after 1000 rounds with the corollaries' noise and Theorem 2's steps; C = 1.

    Curvatures go from 1/2 to 3/2 over the nodes, so L and mu do not depend on their number.
    ``colluding`` is a share of the nodes; 1 leaves a node its own noise alone (LDP).
    """
    n = graph.num_nodes
    targets = np.random.default_rng([seed, 29]).standard_normal((n, DIM))
    task = Quadratics(np.linspace(0.5, 1.5, n), targets)
    noise = 32 * ROUNDS * math.log(1 / DELTA) / epsilon**2
    q = min(round(colluding * n), n - 1)
    masks = noise / connectivity_bound(graph, q)[0] if q < n - 1 else 0.0
    network = Network(graph, math.sqrt(noise / (n - q)), math.sqrt(masks))
    state, _ = descended(task, network, np.zeros((n, DIM)), ROUNDS)
    return state.gap(task)


WAYS = {
    "complete, nobody colludes": (Complete(), 0.0),
    "complete, half collude": (Complete(), 0.5),
    "ring, nobody colludes": (Ring(), 0.0),
    "LDP": (Complete(), 1.0),
}
Utilities = Mapping[str, Sequence[float]]


def utility_parts(by_size: Sequence[Utilities], by_budget: Sequence[Utilities]) -> list[Part]:
    """Log-log slopes in n and in epsilon, of every seed: upper bounds, and LDP's lower bound."""
    parts = []
    for name in WAYS:
        sizes = [log_slope(SIZES, one[name]) for one in by_size]
        budgets = [log_slope(EPSILONS, one[name]) for one in by_budget]
        if name == "LDP":
            parts.append(Part(f"{name}: slope in n", sizes, least=-1.1))
        else:
            parts.append(Part(f"{name}: slope in n", sizes, most=-1.9))
        parts.append(Part(f"{name}: slope in epsilon", budgets, least=-2.1, most=-1.9))
    return parts


def check_h29(seeds: Sequence[int] = range(10)) -> Finding:
    """The error is of order d log(1 / delta) / (n (n - q) epsilon^2), on a ring as well."""
    by_size, by_budget = [], []
    for seed in seeds:
        by_size.append(
            {
                name: [utility(spec.build(n), share, 1.0, seed) for n in SIZES]
                for name, (spec, share) in WAYS.items()
            }
        )
        by_budget.append(
            {
                name: [utility(spec.build(16), share, e, seed) for e in EPSILONS]
                for name, (spec, share) in WAYS.items()
            }
        )
    units = {n: DIM * math.log(1 / DELTA) / n**2 for n in SIZES}
    return Finding.judged(
        "the error falls as 1 / (n (n - q) epsilon^2) with the corollaries' noise, LDP's as 1 / n",
        utility_parts(by_size, by_budget),
        {
            "error over C^2 d log(1/delta) / (n^2 epsilon^2) at n = 4, 8, 16, first seed": {
                name: [error / units[n] for n, error in zip(SIZES, errors, strict=True)]
                for name, errors in by_size[0].items()
            }
        },
        seeds,
        f"d = {DIM}, T = {ROUNDS}, C = 1; curvatures from 1/2 to 3/2; no clip.",
    )

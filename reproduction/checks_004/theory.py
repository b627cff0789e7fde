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
    Star,
    Torus,
    connectivity_bound,
    metropolis_hastings,
)
from reproduction.checks_004.identities import consensus_rate, distance_to_mean, heterogeneity
from reproduction.decor_moments import Array, Network, Quadratics, after
from reproduction.findings import Finding, Part, log_slope

DELTA = 1e-5
DIM = 10
GRAPHS: Mapping[str, Graph] = {
    spec.kind: spec.build(16)
    for spec in (Ring(), Torus(), Star(), ErdosRenyi(probability=0.3), Complete())
}


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


def consensus_margin(weights: Array, curvature: float, divisor: float) -> tuple[float, float]:
    """The least (right - left) / right of Lemma 9 over models and gradients; and the step.

    All nodes have curvature ``curvature`` of L = 1 and targets c with mean 0, so that P = 1, M = 0
    and zeta^2 = mean |c|^2, at the step p / (L sqrt(divisor (1 - p))): 18 is the printed one.
    """
    n = len(weights)
    p = float(1 - np.linalg.eigvalsh(weights @ weights)[-2])
    step = p / math.sqrt(divisor * (1 - p))
    mixed = weights - 1 / n
    moved = np.hstack([(1 - step * curvature) * mixed, step * mixed])  # of (y, c)
    right = np.array([1 - p / 2] * n + [6 * (1 - p) * step**2 / p] * n)
    roots = np.sqrt(right)
    share = moved.T @ moved / np.outer(roots, roots)
    return float(1 - np.linalg.eigvalsh(share)[-1]), step


def check_h27() -> Finding:
    """Lemma 9 at the printed step and at the one that its proof needs, at the worst models."""
    margins: dict[str, dict[str, float]] = {}
    for name, graph in GRAPHS.items():
        weights = metropolis_hastings(graph).toarray()
        if name != "complete":  # p = 1: one step makes all models equal
            margins[name] = {
                text: min(consensus_margin(weights, h, divisor)[0] for h in (-1.0, 0.0, 1.0))
                for text, divisor in (("as printed", 18.0), ("with 12 in place of 6", 36.0))
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
    scales = np.arange(1, 17) / 4.0
    targets = np.random.default_rng([seed, 28]).standard_normal((16, DIM)) / (4 * scales[:, None])
    signs = np.where((np.arange(16) < 8) & (not is_convex), -1.0, 1.0)
    return Quadratics(signs * scales**2, scales[:, None] * targets)


def theorem_2(
    task: Quadratics, network: Network, rounds: int, is_convex: bool, explicit: bool = True
) -> float:
    """What was bounded, over its bound with the constants at the end of B.3.1 and B.3.2.

    With a PL constant: E L(mean) - L* + 48 L^2 Xi / (mu p (T + c L / (mu p))); else the mean of
    E|grad L|^2 over all rounds. ``explicit`` False leaves the constants out: 1 each.
    """
    weights = metropolis_hastings(network.graph)
    p = consensus_rate(weights)
    relative, spread = task.dissimilarity
    smooth, mu = task.smoothness, task.curvature
    n = network.graph.num_nodes
    start = np.ones((n, DIM))
    c = max(4 * math.sqrt(9 * (1 - p) * relative), mu / smooth, 2 * p)
    gap = 0.5 * mu * float(((1 - task.optimum) ** 2).sum())
    own = DIM * network.sigma_cdp**2
    masks = 2 * heterogeneity(network.graph, weights) * len(network.graph.edges) / n
    left = (1 - p) * 6 * spread / p + masks * DIM * network.sigma_cor**2
    left += distance_to_mean(weights) * own
    if is_convex:
        late = c * smooth / (mu * p)
        state, _ = after(task, network, start, rounds, lambda t: 16 / (mu * (t + late)))
        found = state.gap(task) + 48 * smooth**2 / (mu * p * (rounds + late)) * state.spread
        first, second = (512, 49152) if explicit else (1, 1)
        bound = first * smooth / (mu**2 * rounds) * own / n
        bound += second * math.log(rounds + 1) / rounds**2 * smooth**2 / (mu**3 * p) * left
        return found / (bound + late**2 * gap / rounds**2)
    step = min(p / (2 * c * smooth), 2 * math.sqrt(gap * n / (smooth * rounds * own)))
    _, found = after(task, network, start, rounds, lambda _: step)
    first, second, third = (12, 16, 96) if explicit else (1, 1, 1)
    bound = first * math.sqrt(smooth * gap * own / (n * rounds))
    bound += second * c * smooth * gap / (p * rounds)
    bound += third * smooth * gap * n / (p * rounds * own) * left
    return found / bound


HORIZONS = (100, 1000)


def theorem_parts(each: Sequence[Mapping[str, float]]) -> list[Part]:
    """Shares of the bound by setting, of every seed."""
    return [
        Part(f"{name}: share of the bound", [one[name] for one in each], most=1) for name in each[0]
    ]


def check_h28(seeds: Sequence[int] = range(10)) -> Finding:
    """Theorem 2 with its explicit constants, and how much of them is used."""
    each = []
    sharp = {}
    for seed in seeds:
        one = {}
        for is_convex in (True, False):
            task = losses(seed, is_convex)
            for name in ("ring", "complete"):
                network = Network(GRAPHS[name], 1.0, 10.0)
                case = f"{'PL' if is_convex else 'non-convex'}, {name}"
                shares = {t: theorem_2(task, network, t, is_convex) for t in HORIZONS}
                one |= {f"{case}, T = {t}": share for t, share in shares.items()}
                if case not in sharp:
                    sharp[case] = theorem_2(task, network, HORIZONS[-1], is_convex, explicit=False)
        each.append(one)
    return Finding.judged(
        "Theorem 2 holds with its explicit constants (task 1, and with half of the nodes concave)",
        theorem_parts(each),
        {"the same with all constants 1, T = 1000, first seed": sharp},
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
    p = consensus_rate(metropolis_hastings(graph))
    relative, _ = task.dissimilarity
    c = max(4 * math.sqrt(9 * (1 - p) * relative), task.curvature / task.smoothness, 2 * p)
    late = c * task.smoothness / (task.curvature * p)
    state, _ = after(
        task, network, np.zeros((n, DIM)), ROUNDS, lambda t: 16 / (task.curvature * (t + late))
    )
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

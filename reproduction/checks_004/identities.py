"""H1 to H5: what masks do to the mean and to each node, and the constants of the graphs."""

from typing import Any

import numpy as np
import torch

from manifed.graphs import (
    Complete,
    Graph,
    Ring,
    Star,
    Torus,
    connectivity_bound,
    metropolis_hastings,
)
from manifed.privacy.masks import masks, offer, pair_source
from manifed.privacy.random_numbers import NoiseSource
from reproduction.decor_reference import LeastSquares, Setting, run
from reproduction.findings import Finding

GRAPHS = {spec.kind: spec.build(16) for spec in (Ring(), Torus(), Complete(), Star())}
H5 = {
    "ring": (0.15224, 0.043705, 0.098919, 4.3333),
    "torus": (2.0, 1.65708, 0.64, 2.2),
    "complete": (16.0, 15.0, 1.0, 0.0),
}
"""a, a_1, p and |W - J|_F^2."""
SIGMAS = (0.0, 1.0, 100.0)
"""Of the masks."""
H4 = {"ring": 0.1111, "torus": 0.12, "complete": 0.0, "star": 0.41016}


def consensus_rate(weights: Any) -> float:
    """P of assumption A5: 1 less the second-largest eigenvalue of W W^T."""
    dense = weights.toarray()
    return float(1.0 - np.linalg.eigvalsh(dense @ dense.T)[-2])


def heterogeneity(graph: Graph, weights: Any) -> float:
    """H_G(W) of eq. (11): the mean of |W_i - W_k|^2 / 2 over the edges {i, k}."""
    dense = weights.toarray()
    (i, k) = np.array(graph.edges).T
    return float(((dense[i] - dense[k]) ** 2).sum() / (2 * len(graph.edges)))


def distance_to_mean(weights: Any) -> float:
    """|W - 11^T / n|_F^2, what mixing leaves of independent noise."""
    return float(((weights.toarray() - 1 / weights.shape[0]) ** 2).sum())


def check_h1() -> Finding:
    """The network mean does not see the masks."""
    task = LeastSquares.draw(1)
    worst = {}
    for name, graph in GRAPHS.items():
        for rounds, clip, gradients in (
            (1, 1.0, task.gradients),
            (50, None, lambda x: x - 4),
        ):
            means = [
                run(Setting(graph, 1.0, s, 1e-2, rounds, clip), gradients, task.start, 7).mean(-2)
                for s in SIGMAS
            ]
            worst[f"{name}, {rounds} rounds"] = max(
                float(np.abs(m - means[0]).max()) for m in means
            )
    return Finding(
        "the mean of the models does not depend on sigma_cor (0, 1, 100)",
        max(worst.values()) <= 1e-9 * 100,
        {"largest difference of the mean": worst},
        remark="50 rounds: linear gradients with one matrix for all, no clipping; else 1 round.",
    )


def check_h2() -> Finding:
    """Complete mixing makes all models equal, whatever the masks and the seed graph."""
    task = LeastSquares.draw(1)
    found = {}
    everyone = np.full((16, 16), 1 / 16)
    for name, graph in GRAPHS.items():
        runs = [
            run(Setting(graph, 1.0, s, 1e-3, 200, weights=everyone), task.gradients, task.start, 3)
            for s in SIGMAS
        ]
        found[name] = {
            "between nodes": float(max(np.ptp(x, axis=-2).max() for x in runs)),
            "between masks": float(max(np.abs(x - runs[0]).max() for x in runs)),
        }
    return Finding(
        "W = 11^T/n: all models are equal and do not depend on sigma_cor, for any seed graph",
        max(value for row in found.values() for value in row.values()) <= 1e-9 * 100,
        {"200 rounds": found},
    )


def check_h3() -> Finding:
    """v_ij = -v_ji bit for bit, fresh in every round, and only the pair has the key."""
    secrets = [bytes([i + 1]) * 32 for i in range(3)]

    def of(node: int, other: int) -> NoiseSource:
        offered = offer(b"check", other, secrets[other], None)
        return pair_source(b"check", node, secrets[node], other, offered)

    shape = (20_000,)
    one = [masks({1: of(0, 1)}, 0, shape, server_round=t) for t in (1, 2)]
    other = masks({0: of(1, 0)}, 1, shape, server_round=1)
    outsider = masks({0: of(2, 0)}, 2, shape, server_round=1)
    correlations = {
        "between rounds": float(torch.corrcoef(torch.stack(one))[0, 1]),
        "with what node 2 can draw": float(torch.corrcoef(torch.stack([one[0], outsider]))[0, 1]),
    }
    bound = 4 / np.sqrt(shape[0])
    holds = torch.equal(one[0], -other) and max(map(abs, correlations.values())) < bound
    return Finding(
        "v_ij + v_ji = 0 bit for bit; rounds are uncorrelated; others draw other numbers",
        holds,
        {"correlations": correlations, "bound 4 / sqrt d": float(bound)},
    )


def check_h4() -> Finding:
    """Lemma 8: E|N W|^2 / E|N|^2 = H_G(W), and E|N|^2 = 2 |E| d sigma_cor^2."""
    rng = np.random.default_rng(0)
    draws = 20_000
    found = {}
    holds = True
    for name, graph in GRAPHS.items():
        weights = metropolis_hastings(graph)
        noise = rng.standard_normal((draws, len(graph.edges))) @ graph.incidence.T
        before = float((noise**2).sum(1).mean())
        after = float(((noise @ weights) ** 2).sum(1).mean())
        exact = heterogeneity(graph, weights)
        found[name] = {
            "ratio": after / before, "H": exact, "E|N|^2 / (2|E|)": before / 2 / len(graph.edges),
        }  # fmt: skip
        holds &= abs(after / before - exact) <= 0.02 * exact + 1e-12
        holds &= abs(exact - H4[name]) < 5e-5 and abs(before / 2 / len(graph.edges) - 1) < 0.02
    return Finding(
        "Lemma 8 for ring, torus, complete graph and star of 16",
        holds,
        found,
        (0,),
    )


def check_h5() -> Finding:
    """The constants of the paper's examples."""
    found = {}
    holds = True
    for name, graph in GRAPHS.items():
        weights = metropolis_hastings(graph)
        row = (
            *(connectivity_bound(graph, q)[0] for q in (0, 1)), consensus_rate(weights),
            distance_to_mean(weights),
        )  # fmt: skip
        found[name] = dict(zip(("a", "a_1", "p", "|W-J|^2"), row, strict=True))
        if name in H5:
            holds &= bool(np.allclose(row, H5[name], rtol=2e-5, atol=5e-5))
    holds &= found["star"]["a_1"] == 0 and abs(found["star"]["a"] - 1) < 1e-12
    return Finding(
        "constants of 16 nodes",
        holds,
        found,
    )

"""H17 to H20: DECOR and its baselines on learning tasks, in the numpy of decor_learning.py."""

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manifed.graphs import Complete, Ring, Torus
from manifed.privacy.secldp import Rounds, Worst
from manifed.problems import real
from manifed.problems.data import Dirichlet, build
from manifed.problems.examples import Examples
from manifed.problems.linear import Logistic as Problem
from reproduction import recipes
from reproduction.decor_learning import Array, Logistic, Method, Network, curves, train
from reproduction.decor_prices import paper_slope
from reproduction.findings import Finding, verdict_of

GRAPHS = {spec.kind: spec.build(16) for spec in (Complete(), Torus(), Ring())}
NODES = 16
DELTA = 1e-5
CHOICES = tuple(itertools.product((0.005, 0.01, 0.05, 0.1), (0.001, 0.01, 0.1)))
"""(Step size, clip): the grid of the public code."""
Best = dict[float, dict[str, tuple[float, float, float]]]
"""By epsilon and curve: the value of the best choice, its step size and its clip."""


def best_of(methods: Sequence[Method], values: Sequence[float] | Array, *, is_least: bool) -> Best:
    """The best of all choices for every curve at every epsilon."""
    found = {}
    for method, value in zip(methods, values, strict=True):
        curve, epsilon = method.curve
        row = found.setdefault(epsilon, {})
        made = (float(value), method.step_size, method.clip)
        if curve not in row or (made[0] < row[curve][0]) == is_least:
            row[curve] = made
    return found


def _shown(found: Best) -> dict[str, Any]:
    return {
        f"epsilon {epsilon:g}": {curve: made[0] for curve, made in row.items()}
        for epsilon, row in found.items()
        if epsilon
    }


# -- logistic regression ---------------------------------------------------------------------
def logistic(
    features: Array,
    labels: Array,
    *,
    batch: int,
    rounds: int,
    ratio: float,
    choices: Sequence[tuple[float, float]],
    epsilons: Sequence[float],
    seeds: Sequence[int],
) -> Best:
    """Optimality gaps on the training data of the mean model, averaged over seeds."""
    methods = curves(
        GRAPHS,
        {e: float(np.sqrt(2 / paper_slope(e, rounds, DELTA))) for e in epsilons},
        ratio,
        choices,
    )
    gaps = np.zeros(len(methods))
    for seed in seeds:
        rule = Dirichlet(alpha=10.0)
        rng = np.random.default_rng([seed, 2])
        parts = rule.split(build({"feature": features}, labels=labels.astype(np.int64)), NODES, rng)
        task = Logistic(tuple((features[p], labels[p]) for p in parts), batch, rounds)
        gaps += task.losses(train(methods, GRAPHS, task, seed)) / len(seeds)
    return best_of(methods, gaps - least_loss(features, labels), is_least=True)


def least_loss(features: Array, labels: Array) -> float:
    """The least mean loss, by Newton's method."""
    tensors = {"feature": features, "label": labels}
    shard = Examples({k: torch.tensor(v) for k, v in tensors.items()}, {"feature": 1, "label": 0})
    return Problem().optimum([shard]).value


def data_folder() -> Path | None:
    """The folder that MANIFED_DATA names."""
    named = os.environ.get("MANIFED_DATA")
    return Path(named) if named else None


def _ratios(found: Best, against: str) -> dict[str, list[float]]:
    """LDP / DECOR on the same graph, or DECOR / CDP, by graph, in the order of epsilons."""
    rows = found.values()
    if against == "LDP":
        return {g: [r[f"LDP {g}"][0] / r[f"DECOR {g}"][0] for r in rows] for g in GRAPHS}
    return {g: [r[f"DECOR {g}"][0] / r["CDP"][0] for r in rows] for g in GRAPHS}


def check_h17() -> Finding:
    """Figure 1(b): a9a, or its stand-in where MANIFED_DATA names no a9a."""
    folder = data_folder()
    if folder is not None and (folder / "a9a" / "a9a").is_file():
        features, labels = real.a9a(folder)
        name = "a9a"
    else:
        features, labels = recipes.one_hot_logistic(32_000, np.random.default_rng([0, 1]))
        name = "one-hot stand-in of a9a"
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    found = logistic(
        features, labels.astype(np.float64), batch=64, rounds=5000, ratio=1.06,
        choices=CHOICES,
        epsilons=(3, 10, 40), seeds=(0,),
    )  # fmt: skip
    over = _ratios(found, "LDP")
    under = _ratios(found, "CDP")
    ordered = all(v >= 1 - 1e-9 for row in under.values() for v in row[1:])
    better = min(v for row in over.values() for v in row[1:])
    return Finding(
        "004-H17", "Figure 1(b): ten times better than LDP at every budget, close to CDP",
        verdict_of(min(v for row in over.values() for v in row) >= 10,
            in_regime=ordered and better >= 1.5,
        ),
        {"optimality gap": _shown(found), "LDP / DECOR": over, "DECOR / CDP": under,
         "data": name}, (0,),
        remark="User level, T = 5000, batch 64, best of 12 (step, clip) for every curve; DECOR "
        "with sigma_cdp = 1.06 sigma_CDP, fresh masks, exact calibration.",
    )  # fmt: skip


def check_h18() -> Finding:
    """The same on the breast cancer data, which ship with scikit-learn."""
    features, labels = real.breast_cancer()
    low, high = real.breast_cancer_ranges().T
    features = 2 * np.clip((features - low) / (high - low), 0, 1) - 1
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    found = logistic(
        features, labels.astype(np.float64), batch=32, rounds=1000, ratio=1.25,
        choices=[(step, 0.1) for step in (0.01, 0.03, 0.1)], epsilons=(3, 10, 40),
        seeds=range(4),
    )  # fmt: skip
    over = _ratios(found, "LDP")
    under = _ratios(found, "CDP")
    better = min(v for row in over.values() for v in row[:2])
    close = max(v for row in under.values() for v in row)
    return Finding(
        "004-H18", "breast cancer data: LDP >= 1.5 DECOR at epsilon <= 10, DECOR <= 1.7 CDP",
        verdict_of(better >= 1.5 and close <= 1.7,
            in_regime=min(v[1] for v in over.values()) >= 1.5
            and max(v for row in under.values() for v in row[1:]) <= 1.7,
        ),
        {"optimality gap": _shown(found), "LDP / DECOR": over, "DECOR / CDP": under},
        tuple(range(4)),
        remark="User level, T = 1000, batch 32, C = 0.1, best of three steps, r = 1.25.",
    )  # fmt: skip


# -- networks ----------------------------------------------------------------------------------
def local_stddev(epsilon: float, rounds: int, batch: int, examples: int) -> float:
    """Of the noise that alone gives epsilon to examples, on a mean of gradients of norm 1."""
    whole = Rounds(rounds, 1.0 / batch, batch / examples)
    low = 0.05 / batch
    high = 100.0 / batch
    while high / low > 1.0002:
        middle = float(np.sqrt(low * high))
        worst = Worst(1 / middle**2, None, None, is_exact=True)
        low, high = (low, middle) if whole.epsilon(worst, DELTA) <= epsilon else (middle, high)
    return high


def network(
    task: Network,
    rows: Array,
    labels: Array,
    epsilons: Sequence[float],
    steps: Sequence[float],
    ratio: float,
    graphs: Mapping[str, Any],
    seeds: Sequence[int],
) -> Best:
    """Test accuracies of the mean model; at epsilon 0 without privacy."""
    examples = task.inputs.shape[1]
    local = {e: local_stddev(e, task.rounds, task.batch, examples) for e in epsilons}
    kept = {"complete": GRAPHS["complete"], **graphs}
    methods = [
        m for m in curves(kept, local, ratio, [(step, 1.0) for step in steps])
        if m.graph in graphs or m.curve[0] == "CDP"
    ]  # fmt: skip
    methods += [Method(("none", 0.0), "complete", 0.0, 0.0, step, 1e9) for step in (0.5, 1.0)]
    found = np.zeros(len(methods))
    for seed in seeds:
        found += task.accuracies(train(methods, kept, task, seed), rows, labels) / len(seeds)
    return best_of(methods, found, is_least=False)


def closed(found: Best) -> dict[str, list[float]]:
    """The share of the gap between LDP and CDP that DECOR closes, by graph and epsilon."""
    names = [c.removeprefix("DECOR ") for c in next(iter(found.values())) if c.startswith("DECOR")]
    rows = [row for epsilon, row in found.items() if epsilon]
    return {
        g: [(r[f"DECOR {g}"][0] - r[f"LDP {g}"][0]) / (r["CDP"][0] - r[f"LDP {g}"][0])
            for r in rows]
        for g in names
    }  # fmt: skip


def check_h19() -> Finding:
    """Example level: a network on a mixture of ten classes."""
    seeds = (0, 1)
    all_found = []
    for seed in seeds:
        mixture = recipes.ClassMixture(num_examples=NODES * 1000 + 5000).load(None, seed)
        z = mixture.examples["z"].numpy().astype(np.float32)
        labels = mixture.labels
        count = NODES * 1000
        task = Network(
            z[:count].reshape(NODES, 1000, 40), labels[:count].reshape(NODES, 1000), 32, 10, 64, 500
        )
        all_found.append(
            network(task, z[count:], labels[count:], (1, 3), (1.0, 2.0, 4.0), 1.25, GRAPHS,
                    (seed,))
        )  # fmt: skip
    found = {
        epsilon: {
            curve: (float(np.mean([one[epsilon][curve][0] for one in all_found])), *made[1:])
            for curve, made in row.items()
        }
        for epsilon, row in all_found[0].items()
    }
    share = closed(found)
    rows = [row for epsilon, row in found.items() if epsilon]
    ordered = all(
        row["CDP"][0] >= row[f"DECOR {g}"][0] - 0.005 and row[f"DECOR {g}"][0] > row[f"LDP {g}"][0]
        for row in rows
        for g in GRAPHS
    )
    points = max(100 * (row["CDP"][0] - row["DECOR ring"][0]) for row in rows)
    least = min(v for values in share.values() for v in values)
    return Finding(
        "004-H19", "example level: CDP >= DECOR > LDP, 60 % of their gap closed, the ring within "
        "one point of CDP",
        verdict_of(ordered and least >= 0.6 and points <= 1, in_regime=ordered
                   and least >= 0.6),
        {"test accuracy": _shown(found), "without privacy": found[0]["none"][0],
         "share of the gap closed": share, "CDP less DECOR on the ring, points": points}, seeds,
        remark="40-32-10 network, 1000 examples a node, T = 500, Poisson batches of 64, "
        "add-or-remove, priced by privacy loss distributions; r = 1.25.",
    )  # fmt: skip


def check_h20() -> Finding:
    """MNIST as far as it is here: the 10 000 test images, 500 a node, 2 000 kept to test.

    Raises:
        DataMissing: MANIFED_DATA names no MNIST.
    """
    z, labels, split = real.mnist(data_folder())
    order = np.random.default_rng([0, 2]).permutation(len(z))
    z = z[order].astype(np.float32)
    labels = labels[order]
    each = (len(z) - 2000) // NODES
    count = NODES * each
    task = Network(
        z[:count].reshape(NODES, each, -1), labels[:count].reshape(NODES, each), 128, 10, 64, 300
    )
    graphs = {name: GRAPHS[name] for name in ("ring",)}
    found = network(task, z[count:], labels[count:], (1, 6), (0.5, 1.5), 1.25, graphs, (0,))
    share = closed(found)
    tight = found[1]
    gap = 100 * (tight["CDP"][0] - tight["LDP ring"][0])
    points = max(100 * (r["CDP"][0] - r["DECOR ring"][0]) for e, r in found.items() if e)
    ordered = all(
        row["CDP"][0] >= row["DECOR ring"][0] - 0.005 and row["DECOR ring"][0] > row["LDP ring"][0]
        for epsilon, row in found.items()
        if epsilon
    )
    return Finding(
        "004-H20", "Figure 1(c): ten points between CDP and LDP at the tightest budget, the ring "
        "within one point of CDP",
        verdict_of(ordered and points <= 1 and gap >= 8, in_regime=ordered),
        {"test accuracy": _shown(found), "without privacy": found[0]["none"][0],
         "share of the gap closed": share, "CDP less LDP at epsilon 1, points": gap,
         "CDP less DECOR on the ring, points": points, "images": f"{count} of the {split} set"},
        (0,),
        remark=f"784-128-10 network, {each} examples a node, T = 300, Poisson batches of 64; the "
        "epsilons are budgets of the whole run, which those of Figure 1(c) are not.",
    )  # fmt: skip

r"""MNIST (d = 784) when a client may upload at most 50 d numbers: rounds against sketches.

    python -m benchmarks.few_numbers [--epsilon 0.5 1 2] [--seeds 5] [--out benchmarks/results]

An epsilon that was measured is a file below --cells, and is not measured again.

The leading principal component of MNIST's test set, ten clients, noise at each, (epsilon, 1e-5).

* rounds, plain: descent with equal noise, its last iterate, the best of a grid of rounds and steps
  on the tuning seeds 1000 and 1001.
* rounds, with averages and falling noise (and momentum, where a plan says so): `auto` with
  ``numbers_up`` 50 d, which is not tuned.
* the same on plain's grid with correlated noise and an average.
* range sketch, one shot: Y = A Omega + noise for a public frame Omega (d, 50), 50 d numbers; a row
  z adds z (Omega^T z)^T, at most |z|^2 long. The answer is the leading direction of the Nystroem
  approximation Y (Omega^T Y)^+ Y^T, or of Y: whichever is better on the tuning seeds.
* row sketch, one shot: the second moment of rows in a public random subspace of m dimensions,
  m (m + 1) / 2 <= 50 d.
* one-shot release of the whole second moment: d (d + 1) / 2 numbers, 7.9 times as many.

Printed is the relative gap (f(x) - f*) / |f*|. Sketches are simulated with the noise that the mean
of ten clients' uploads has (isometric on Sym(m) where they are symmetric).
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.stopwatch import table
from benchmarks.leaderboard.cells import levels
from benchmarks.leaderboard.cells import run as run_of
from benchmarks.leaderboard.methods import Setting
from benchmarks.leaderboard.tasks import TASKS, Task
from benchmarks.warm_start import once
from manifed.durable import write_atomically
from manifed.experiment import load as config_of
from manifed.experiment.assembly import load_shards
from manifed.experiment.schema import Experiment

TUNING, TIMES = (1000, 1001), 50
ROUNDS, STEPS = (10, 25, 50), (0.25, 0.5, 1.0)
CLIP = 0.5
"""Of gradients of rows of length 1, which are no longer: what `auto` takes too."""
TASK = next(task for task in TASKS if task.name == "pca-mnist-1")


def moments() -> np.ndarray:
    """A, shape (784, 784)."""
    made = {**TASK.table(1.0, 0), "privacy": {"kind": "none"}}
    made["training"] = {"kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}}
    data = load_shards(config_of.parse(made))
    rows = torch.cat([shard["z"] for shard in data.examples]).numpy()
    return rows.T @ rows / len(rows)


def spread_of(task: Task, price: float) -> float:
    """Standard deviation of the mean of ten uploads, of sensitivity 1 / N_i each."""
    made = {**task.table(1.0, 0), "privacy": {"kind": "none"}}
    made["training"] = {"kind": "rsgd", "step_size": 1.0, "minibatch": {"kind": "full"}}
    sizes = [shard.size for shard in load_shards(config_of.parse(made)).examples]
    return price * math.sqrt(len(sizes)) / sum(sizes)


def symmetric(rng: np.random.Generator, size: int) -> np.ndarray:
    """The isotropic normal on Sym(size)."""
    noise = rng.standard_normal((size, size)) / math.sqrt(2)
    return (noise + noise.T) / math.sqrt(2)


def gap_of(a: np.ndarray, v: np.ndarray) -> float:
    """(f(v) - f*) / |f*|."""
    best = np.linalg.eigvalsh(a)[-1]
    return float((best - v @ a @ v / (v @ v)) / best)


def of_range(a: np.ndarray, s: float, seed: int, *, nystroem: bool) -> float:
    """The range sketch."""
    rng = np.random.default_rng(seed)
    omega, _ = np.linalg.qr(rng.standard_normal((len(a), TIMES)))
    y = a @ omega + s * rng.standard_normal(omega.shape)
    if not nystroem:
        return gap_of(a, np.linalg.svd(y)[0][:, 0])
    core = omega.T @ y
    values, vectors = np.linalg.eigh((core + core.T) / 2)
    kept = values > s * math.sqrt(2 * TIMES)  # above the noise of the core
    if not kept.any():
        kept = values == values.max()
    half = y @ vectors[:, kept] / np.sqrt(np.maximum(values[kept], 1e-12))
    return gap_of(a, np.linalg.svd(half, full_matrices=False)[0][:, 0])


def of_rows(a: np.ndarray, s: float, seed: int) -> float:
    """The row sketch."""
    rng = np.random.default_rng(seed)
    size = int((math.sqrt(1 + 8 * TIMES * len(a)) - 1) / 2)
    frame, _ = np.linalg.qr(rng.standard_normal((len(a), size)))
    core = frame.T @ a @ frame + s * symmetric(rng, size)
    return gap_of(a, frame @ np.linalg.eigh(core)[1][:, -1])


def of_all(a: np.ndarray, s: float, seed: int) -> float:
    """The whole second moment."""
    rng = np.random.default_rng(seed)
    return gap_of(a, np.linalg.eigh(a + s * symmetric(rng, len(a)))[1][:, -1])


def relative(share: float, seed: int) -> float:
    """(f - f*) / |f*| from a share of the start's gap."""
    lowest, start = levels(TASK, seed)
    return share * (start - lowest) / abs(lowest)


def tuned(epsilon: float, candidates: list[Setting], seeds: int) -> tuple[Setting, list[float]]:
    """The best on the tuning seeds, and its gaps at the others."""

    def left(setting: Setting, seed: int) -> float:
        made = setting.into(TASK.table(epsilon, seed))
        made["privacy"] = {**made["privacy"], "l2_norm_clip": CLIP}
        return relative(run_of(TASK, config_of.parse(made))["share"], seed)

    mean = {i: statistics.mean(left(c, s) for s in TUNING) for i, c in enumerate(candidates)}
    best = candidates[min(mean, key=mean.__getitem__)]
    return best, [left(best, seed) for seed in range(seeds)]


def plain(*, is_correlated: bool) -> list[Setting]:
    """Descent on a grid."""
    found = list[Setting]()
    for rounds in ROUNDS:
        for step in STEPS:
            training: dict[str, Any] = {
                "kind": "rsgd",
                "step_size": step,
                "minibatch": {"kind": "full"},
            }
            average = None
            if is_correlated:
                training["kind"] = "correlated-rsgd"
                training["correlation"] = {"kind": "banded-inverse", "bands": 4}
                average = {"average": {"kind": "projector", "from_round": max(2, rounds // 2)}}
            found.append(Setting(training, rounds, average))
    return found


def measured(epsilons: list[float], seeds: int, *, is_quick: bool = False) -> list[dict[str, Any]]:
    """A row for every epsilon and method."""
    rows, a, d = list[dict[str, Any]](), moments(), 784

    def add(epsilon: float, method: str, numbers: int, gaps: list[float], how: str) -> None:
        rows.append(
            {"epsilon": epsilon, "method": method, "numbers": numbers, "gaps": gaps, "how": how}
        )
        print(epsilon, method, numbers, f"{statistics.mean(gaps):.4g}", how, flush=True)

    families = (("rounds, plain", False), ("rounds, correlated noise", True))
    for epsilon in epsilons:
        for name, correlated in families[: 1 if is_quick else 2]:
            best, gaps = tuned(epsilon, plain(is_correlated=correlated), seeds)
            how = f"{best.rounds} rounds, step {best.training['step_size']:g}"
            add(epsilon, name, best.rounds * d, gaps, how)
        plans = list[Experiment]()
        for seed in range(seeds):
            made = TASK.table(epsilon, seed)
            made["training"] = {"kind": "auto", "numbers_up": TIMES * d}
            made["federation"]["num_rounds"] = 100
            plans.append(config_of.parse(made))
        gaps = [relative(run_of(TASK, one)["share"], one.federation.seed) for one in plans]
        rounds = plans[0].federation.num_rounds
        add(epsilon, "rounds, auto", rounds * d, gaps, f"{plans[0].training.kind}, {rounds} rounds")
        s = spread_of(TASK, once(TASK, epsilon))
        size = int((math.sqrt(1 + 8 * TIMES * d) - 1) / 2)

        both = {
            way: statistics.mean(of_range(a, s, seed, nystroem=way) for seed in TUNING)
            for way in (True, False)
        }
        way = both[True] <= both[False]
        gaps = [of_range(a, s, seed, nystroem=way) for seed in range(seeds)]
        add(epsilon, "range sketch", TIMES * d, gaps, "Nystroem" if way else "leading direction")
        gaps = [of_rows(a, s, seed) for seed in range(seeds)]
        add(epsilon, "row sketch", size * (size + 1) // 2, gaps, f"{size} dimensions")
        gaps = [of_all(a, s, seed) for seed in range(seeds)]
        add(epsilon, "whole second moment", d * (d + 1) // 2, gaps, "")
    return rows


def kept(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows; what was measured before of the same question is read."""
    given.cells.mkdir(parents=True, exist_ok=True)
    rows, way = list[dict[str, Any]](), "-quick" if given.quick else ""
    for epsilon in given.epsilon:
        path = given.cells / f"{epsilon:g}-{given.seeds}{way}.json"
        if not path.is_file():
            found = measured([epsilon], given.seeds, is_quick=given.quick)
            write_atomically(path, json.dumps(found).encode())
        rows += json.loads(path.read_text(encoding="utf-8"))
    return rows


def text_of(rows: list[dict[str, Any]]) -> str:
    """A table."""
    cells = [
        [f"{r['epsilon']:g}", r["method"], str(r["numbers"]), f"{statistics.mean(r['gaps']):.3g}",
         f"{statistics.median(r['gaps']):.3g}", f"{statistics.stdev(r['gaps']):.1g}", r["how"]]
        for r in rows
    ]  # fmt: skip
    return "\n".join(
        ["# At most 50 d numbers up, d = 784", "",
         f"`{' '.join(['python -m benchmarks.few_numbers', *sys.argv[1:]])}`", "",
         table(["epsilon", "method", "numbers up", "gap", "median", "sd", "settings"], cells), ""]
    )  # fmt: skip


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="without correlated noise")
    parser.add_argument("--cells", type=Path, default=Path("runs/few_numbers"))
    parser.add_argument("--out", type=Path, help="folder for few_numbers.md")
    parser.add_argument("--json", action="store_true", help="the rows as the last line")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = kept(given)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "few_numbers.md").write_text(text_of(rows), encoding="utf-8")
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()

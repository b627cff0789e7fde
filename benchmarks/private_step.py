"""A private step of one client beside a bare step of Opacus: a9a, d = 123, batches of 256.

    python benchmarks/private_step.py --data DIR/a9a [--json]

Ours draws a fresh batch of the 32 561 rows in every step, clips, sums and adds noise of AES; Opacus
(left out where it is not installed) clips and noises one batch that lies ready: its draw is not in
its time. CPU time of a step on one thread, smallest of interleaved runs of 200 steps. Nothing of
this folder is imported: Opacus installs a package of its name.
"""

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_svmlight_file
from torch import Tensor

from manifed.algorithms.rsgd import RSGD
from manifed.oracles.minibatch import Minibatch, Poisson, WithoutReplacement
from manifed.oracles.oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, RelativeNoise
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
from manifed.problems.linear import with_squared_norms
from manifed.problems.logistic import Logistic

BATCH, STEPS, RUNS, DIMENSION, CLIP, NOISE = 256, 200, 7, 123, 1.0, 0.7
Work = Callable[[], object]


def ours(examples: Examples, minibatch: Minibatch, *, is_draw_only: bool = False) -> Work:
    """200 steps of one client update, or the draws of them alone."""
    training = RSGD(step_size=0.1, local_steps=STEPS, minibatch=minibatch)
    mechanism = ExampleMechanism(l2_norm_clip=CLIP, noise=RelativeNoise(multiplier=NOISE))
    source, rounds = NoiseSource.from_seed(5), itertools.count(1)
    queries = [training.queries(mechanism, len(examples))]

    def run() -> None:
        draws = Draws(source, 0, next(rounds))
        if is_draw_only:
            for step in range(STEPS):
                if minibatch.kind == "poisson":
                    draws.coins(len(examples), BATCH / len(examples), step)
            return
        oracle = Oracle(Logistic(), examples, queries, draws)
        x = torch.zeros(DIMENSION, dtype=torch.float64)
        for _ in range(STEPS):
            x = x - training.step_size * oracle.gradient(x)

    return run


def opacus(rows: Tensor, labels: Tensor, dtype: torch.dtype) -> Work:
    """200 steps of a linear layer on one batch that lies ready."""
    found, optimizers = (
        importlib.import_module("opacus"),
        importlib.import_module("opacus.optimizers"),
    )
    layer = torch.nn.Linear(DIMENSION, 1, bias=False).to(dtype)
    module = found.GradSampleModule(layer)
    optimizer = optimizers.DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=BATCH,
    )  # fmt: skip
    x, y = rows[:BATCH].to(dtype), ((labels[:BATCH] + 1) / 2).to(dtype).unsqueeze(1)
    loss = torch.nn.BCEWithLogitsLoss()

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss(module(x), y).backward()
            optimizer.step()

    return run


def main() -> None:
    """Microseconds of a step by rival, and what is over what."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the file a9a")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    matrix, b = load_svmlight_file(str(arguments.data / "a9a"), n_features=DIMENSION)
    rows, labels = torch.tensor(matrix.toarray()), torch.tensor(b).double()
    shard = Examples({"feature": rows, "label": labels}, {"feature": 1, "label": 0})
    examples = with_squared_norms(shard, "feature")
    rivals: dict[str, Work] = {
        "poisson": ours(examples, Poisson(batch_size=BATCH)),
        "subset": ours(examples, WithoutReplacement(batch_size=BATCH)),
        "coins alone": ours(examples, Poisson(batch_size=BATCH), is_draw_only=True),
    }
    if importlib.util.find_spec("opacus") is not None:
        rivals["opacus float32"] = opacus(rows, labels, torch.float32)
        rivals["opacus float64"] = opacus(rows, labels, torch.float64)
    best = dict.fromkeys(rivals, float("inf"))
    for _ in range(RUNS):
        for name, work in rivals.items():
            began = time.process_time()
            work()
            best[name] = min(best[name], (time.process_time() - began) / STEPS)
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for name, seconds in best.items():
        print(f"{name:16s}{seconds * 1e6:8.0f} us a step")
    bare = [best[name] for name in best if name.startswith("opacus")]
    if bare:
        print(f"poisson over the faster Opacus: {best['poisson'] / min(bare):.2f}")
    if arguments.json:
        print(json.dumps({name: seconds * 1e6 for name, seconds in best.items()}))


if __name__ == "__main__":
    main()

"""Torch modules trained privately: beside Opacus, beside plain torch, and a cohort at once.

    pip install --no-deps opacus opt_einsum
    python benchmarks/modules.py [--data DIR] [--json] [--out benchmarks/results]

The same Euclidean networks, clip, steps, Poisson rates and (epsilon, delta); each library finds
its own noise. Every rival draws its batches; Opacus (left out where it is not installed) by its own
loader, as people run it, in both of its modes, and once more with batches that lie ready. Digits:
1280 images train, 517 judge. The last 10 000 images of MNIST that a folder mnist/ has, which --data
or MANIFED_DATA names: 8192 and 1808.
CPU time of a step on one thread, median of interleaved runs. Nothing of this folder is imported:
Opacus installs a package of its name.
"""

import argparse
import copy
import importlib
import importlib.util
import itertools
import json
import math
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import manifed
from manifed.algorithms.algorithm import Here
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.federation.stack import StackTransport
from manifed.oracles.minibatch import Poisson
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.module_problem import ModuleProblem, made
from manifed.problems.real import Digits, Mnist
from manifed.runs.fit import federate
from manifed.torch import examples_of

BATCH = 256
CLIP = 1.0
NOISE = 1.0
WARM = 120
"""Steps before those that are timed: after 50 of one size ours replays what torch ran."""
EPSILON = 2.0
DELTA = 1e-4
TYPES = {"float32": torch.float32, "float64": torch.float64}
Work = Callable[[], object]
Pairs = tuple[Tensor, Tensor]


# -- networks and data -----------------------------------------------------------------------
def mlp(width: int, hidden: int) -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 10))


def cnn() -> nn.Module:
    """Two convolutions and a head, on 8 x 8 images."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip


def tutorial_cnn() -> nn.Module:
    """The network of Opacus' MNIST example, with tanh."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(),
        nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def images_of(kind: type[Digits | Mnist], folder: Path | None = None) -> Pairs:
    """Images as rows of numbers, and labels; at most the last 10 000."""
    found = kind(is_unit_norm=False).load(folder, 0)
    return found.examples["z"][-10_000:], torch.tensor(found.labels[-10_000:])


# -- one step --------------------------------------------------------------------------------
def ours(model: nn.Module, data: Pairs, dtype: torch.dtype, steps: int) -> Work:
    """Steps of a client update: draw, clip, noise, move."""
    problem = ModuleProblem(model, dtype=dtype)
    examples = examples_of(data, "data")
    problem.point_shape(examples)
    start = problem.start
    training = RSGD(
        step_size=0.1, local_steps=steps, minibatch=Poisson(batch_size=BATCH), maps="retraction"
    )
    mechanism = ExampleMechanism(l2_norm_clip=CLIP, noise=Noise(multiplier=NOISE))
    queries = [training.queries(mechanism, len(examples))]
    source = NoiseSource.from_seed(5)
    rounds = itertools.count(1)

    def run() -> None:
        draws = Draws(source, 0, number := next(rounds))
        oracle = Oracle(problem, examples, queries, draws)
        here = Here(problem.manifold, "train", number, Point(start), None, draws)
        training.client(start, oracle, here)

    for _ in range(math.ceil(WARM / steps)):
        run()
    return run


def descend(module: nn.Module, optimizer: Any, batches: Iterable[Pairs], loss: Any = None) -> None:
    """A step of the optimizer for every batch."""
    loss = loss or nn.CrossEntropyLoss()
    for rows, classes in batches:
        optimizer.zero_grad()
        loss(module(rows), classes).backward()
        optimizer.step()


def opacus(
    model: nn.Module, data: Pairs, dtype: torch.dtype, steps: int, *, bare: bool, ghost: bool
) -> Work:
    """The same; ``bare``: on a batch that lies ready; ``ghost``: without examples' gradients."""
    found = importlib.import_module("opacus.grad_sample")
    optimizers = importlib.import_module("opacus.optimizers")
    kind, of = found.GradSampleModule, optimizers.DPOptimizer
    bound = {}
    if ghost:
        kind = found.GradSampleModuleFastGradientClipping
        of = optimizers.DPOptimizerFastGradientClipping
        bound = {"max_grad_norm": CLIP, "use_ghost_clipping": True}
    module = kind(copy.deepcopy(model).to(dtype), **bound)
    optimizer = of(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=BATCH,
    )  # fmt: skip
    loss: Any = nn.CrossEntropyLoss()
    if ghost:
        utils = importlib.import_module("opacus.utils.fast_gradient_clipping_utils")
        loss = utils.DPLossFastGradientClipping(module, optimizer, loss)
    feature = data[0].to(dtype)
    label = data[1]
    loader = importlib.import_module("opacus.data_loader").DPDataLoader(
        torch.utils.data.TensorDataset(feature, label), sample_rate=BATCH / len(label)
    )
    batches = [(feature[:BATCH], label[:BATCH])] if bare else loader

    def run() -> None:
        endless = itertools.chain.from_iterable(itertools.repeat(batches))
        descend(module, optimizer, itertools.islice(endless, steps), loss)

    return run


def by_hand(model: nn.Module, data: Pairs, dtype: torch.dtype, steps: int) -> Work:
    """The same for two linear layers: a Poisson batch, and the formulas of this one network."""
    feature = data[0].to(dtype)
    label = data[1]
    w, b, v, c = (p.detach().clone().to(dtype) for p in model.parameters())
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        for _ in range(steps):
            drawn = torch.rand(len(label), generator=generator) < BATCH / len(label)
            x, y = feature[drawn], label[drawn]
            h = torch.tanh(x @ w.T + b)
            error = torch.softmax(h @ v.T + c, -1)
            error[torch.arange(len(y)), y] -= 1
            back = error @ v * (1 - h * h)
            square = back.square().sum(-1) * (1 + x.square().sum(-1))
            square += error.square().sum(-1) * (1 + h.square().sum(-1))
            weight = (CLIP / square.sqrt()).clamp_max(1)[:, None]
            error, back = weight * error, weight * back
            sums = (back.T @ x, back.sum(0), error.T @ h, error.sum(0))
            for part, found in zip((w, b, v, c), sums, strict=True):
                noise = torch.randn(part.shape, dtype=dtype, generator=generator)
                part.sub_(found + NOISE * CLIP * noise, alpha=0.1 / BATCH)

    return run


def plain(model: nn.Module, data: Pairs, dtype: torch.dtype, steps: int) -> Work:
    """Without privacy: draws a batch, and moves."""
    module = copy.deepcopy(model).to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    feature = data[0].to(dtype)
    label = data[1]
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        drawn = (torch.randint(len(label), (BATCH,), generator=generator) for _ in range(steps))
        descend(module, optimizer, ((feature[rows], label[rows]) for rows in drawn))

    return run


def medians(rivals: Mapping[str, Work], runs: int) -> dict[str, float]:
    """Milliseconds of CPU time of interleaved runs, after a warm-up."""
    seen = {name: [] for name in rivals}
    for number in range(runs + 1):
        for name, work in rivals.items():
            began = time.process_time()
            work()
            if number:
                seen[name].append((time.process_time() - began) * 1e3)
    return {name: statistics.median(values) for name, values in seen.items()}


def step_times(model: nn.Module, data: Pairs, runs: int, steps: int) -> dict[str, float]:
    """Of every rival in both types."""
    rivals = {}
    for name, dtype in TYPES.items():
        rivals[f"ours {name}"] = ours(model, data, dtype, steps)
        rivals[f"torch {name}"] = plain(model, data, dtype, steps)
        if has_opacus():
            own = (model, data, dtype, steps)
            rivals[f"opacus {name}"] = opacus(*own, bare=False, ghost=False)
            rivals[f"ghost {name}"] = opacus(*own, bare=False, ghost=True)
            rivals[f"ghost bare {name}"] = opacus(*own, bare=True, ghost=True)
        if len(list(model.parameters())) == 4 and len(list(model.children())) == 3:
            rivals[f"hand {name}"] = by_hand(model, data, dtype, steps)
    return {name: spent / steps for name, spent in medians(rivals, runs).items()}


def has_opacus() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec("opacus") is not None


# -- accuracy at equal epsilon ---------------------------------------------------------------
def our_accuracy(
    model: nn.Module, train: Pairs, test: Pairs, seed: int, epochs: int, rate: float
) -> float:
    """Of one site whose rounds are epochs."""
    found = manifed.fit_module(
        model, [train], test=test, rounds=epochs, batch_size=BATCH, step_size=rate,
        local_steps=len(train[1]) // BATCH, seed=seed,
        privacy=manifed.ExampleLevel(epsilon=EPSILON, delta=DELTA, noise_source="seed"),
    )  # fmt: skip
    return float(found.curves["test_accuracy"][-1] or 0.0)


def their_accuracy(
    model: nn.Module, train: Pairs, test: Pairs, seed: int, epochs: int, rate: float
) -> float:
    """Of Opacus' engine with its own calibration."""
    engine = importlib.import_module("opacus").PrivacyEngine()
    dataset = torch.utils.data.TensorDataset(train[0].float(), train[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251  # Opacus draws from no other generator
        plain_ = copy.deepcopy(model).float()
        module, optimizer, loader = engine.make_private_with_epsilon(
            module=plain_, optimizer=torch.optim.SGD(plain_.parameters(), lr=rate),
            data_loader=torch.utils.data.DataLoader(dataset, batch_size=BATCH),
            target_epsilon=EPSILON, target_delta=DELTA, epochs=epochs, max_grad_norm=CLIP,
        )  # fmt: skip
        for _ in range(epochs):
            descend(module, optimizer, loader)
    with torch.no_grad():
        right = module(test[0].float()).argmax(-1) == test[1]
    return float(right.double().mean())


def accuracies(
    factory: Callable[[], nn.Module], data: Pairs, train: int, epochs: int, seeds: int, rate: float
) -> dict[str, Any]:
    """Both, from the same starts."""
    first = (data[0][:train], data[1][:train])
    rest = (data[0][train:], data[1][train:])
    ways = {"ours": our_accuracy, "opacus": their_accuracy}
    found = {name: [] for name in ways}
    for seed in range(seeds):
        model = made(factory, seed)
        for name, way in ways.items():
            if name == "ours" or has_opacus():
                found[name].append(way(model, first, rest, seed, epochs, rate))
    return found


# -- a cohort --------------------------------------------------------------------------------
def cohort_times(clients: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a round of all clients at once, and of one message after the other."""
    feature, label = images_of(Digits)
    problem = ModuleProblem(made(lambda: mlp(64, 64), 0))
    shards = [
        examples_of(pair, "site")
        for pair in zip(feature.chunk(clients), label.chunk(clients), strict=True)
    ]
    privacy = manifed.ExampleLevel(epsilon=4, delta=DELTA, noise_source="seed")
    training = RSGD(
        step_size=0.1, local_steps=5, minibatch=Poisson(batch_size=8), maps="retraction"
    )
    stacked = partial(StackTransport, at_once=None, memory_budget_mb=1024)
    running = {
        name: federate(
            problem, shards, (training, TangentMean()), rounds=rounds + 1, privacy=privacy,
            start=problem.start, transport=way,
        ).__next__
        for name, way in {"stacked": stacked, "messages": StackTransport}.items()
    }  # fmt: skip
    return medians(running, rounds)


# -- telling ---------------------------------------------------------------------------------
def time_table(times: Mapping[str, Mapping[str, float]]) -> str:
    """Milliseconds of a step, and ours over each rival's."""
    rivals = ("ghost", "ghost bare", "opacus", "hand", "torch")
    head = ["network", "type", "ours ms", *(f"{r} ms" for r in rivals)]
    head += [f"ours / {r}" for r in rivals]
    lines = [f"| {' | '.join(head)} |", "|---|---" + "|--:" * (len(head) - 2) + "|"]
    for network, found in times.items():
        for name in TYPES:
            mine = found[f"ours {name}"]
            theirs = [found.get(f"{who} {name}", float("nan")) for who in rivals]
            numbers = (mine, *theirs, *(mine / each for each in theirs))
            cells = ["" if math.isnan(n) else f"{n:.3g}" if n < 10 else f"{n:.1f}" for n in numbers]
            lines.append(f"| {network} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def accuracy_table(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Means over seeds, and the difference with its standard error."""
    lines = ["| network | seeds | ours % | Opacus % | difference |", "|---|--:|--:|--:|--:|"]
    for network, scores in found.items():
        mine = 100 * np.array(scores["ours"])
        theirs = 100 * np.array(scores["opacus"] or [float("nan")] * len(mine))
        apart = mine - theirs
        error = apart.std(ddof=1) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        lines.append(
            f"| {network} | {len(mine)} | {mine.mean():.1f} | {theirs.mean():.1f} | "
            f"{apart.mean():+.2f} ± {error:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """All three, as tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("MANIFED_DATA"))
    parser.add_argument("--seeds", type=int, default=10, help="of the accuracies on digits")
    parser.add_argument("--runs", type=int, default=7, help="interleaved runs of each rival")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="folder of modules.md and modules.json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    load = f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    small = images_of(Digits)
    cases = {
        # factory, data, images that train, epochs, seeds, steps a run, step size
        "MLP 64-64-10, digits": (lambda: mlp(64, 64), small, 1280, 20, given.seeds, 20, 1.0),
        "CNN, digits": (cnn, small, 1280, 20, given.seeds, 20, 1.0),
    }
    if given.data is not None and (Path(given.data) / "mnist").is_dir():
        large = images_of(Mnist, Path(given.data))
        few = max(1, given.seeds // 3)
        cases |= {
            "MLP 784-128-10, MNIST": (lambda: mlp(784, 128), large, 8192, 3, few, 5, 0.5),
            "CNN, MNIST": (tutorial_cnn, large, 8192, 3, few, 5, 0.5),
        }
    times = {
        name: step_times(made(factory, 0), data, given.runs, steps)
        for name, (factory, data, _, _, _, steps, _) in cases.items()
    }
    scores = {
        name: accuracies(factory, data, train, epochs, seeds, rate)
        for name, (factory, data, train, epochs, seeds, _, rate) in cases.items()
    }
    cohort = cohort_times(100, given.runs)
    version = importlib.import_module("opacus").__version__ if has_opacus() else "not installed"
    stacked = cohort["stacked"]
    messages = cohort["messages"]
    page = f"""# Torch modules

`python benchmarks/modules.py --out benchmarks/results`

Python {platform.python_version()}, torch {torch.__version__}, Opacus {version}, {load} at the
start. CPU time on one thread, median of {given.runs} interleaved runs: read the ratios.

A step of expected batch {BATCH}, after {WARM} others. All but "bare", whose batch lies ready, draw
batches. Ghost: Opacus' `GradSampleModuleFastGradientClipping`; opacus: its mode that holds the
gradient of every example; hand: the formulas of this one network; torch: without privacy.

{time_table(times)}

Test accuracy at epsilon 2, delta {DELTA:g}, from the same starts.

{accuracy_table(scores)}

A round of 100 clients, five local steps of an MLP 64-64-10: {stacked:.1f} ms at once,
{messages:.0f} ms one message at a time: {messages / stacked:.1f} times.
"""
    print(page)
    found = {"times": times, "accuracy": scores, "cohort": cohort, "load": load}
    if given.json:
        print(json.dumps(found))
    if given.out is not None:
        (given.out / "modules.md").write_text(page, encoding="utf-8")
        (given.out / "modules.json").write_text(
            json.dumps(found, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()

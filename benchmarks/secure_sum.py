"""What a secure sum buys and costs: accuracy by trust, processor time and bytes by exchange.

    python -m benchmarks.secure_sum [--only cost accuracy module] [--seeds 20] [--out DIR] [--json]

Accuracy: ten clients, full batches, (epsilon, delta 1e-5) for every example over ten rounds; the
share of the gap at the start that is left, medians over seeds 0, 1, ..., with the quartiles. All
have the same clip, step and rounds, stated beside the task. "central" is one client with all
data and noise once, "local" ten that add noise each. D and c are `max_dropped` and `collusion` of
the secure sum; with "silent" D clients really send nothing, in every round.

Module: a network 64-32-10 with tanh on 1500 digits, 40 rounds of full batches, clip 1, step 4; the
share of wrong answers on the other 297. Data and start are drawn anew for each seed. D = c = 0.

Cost: one private round of principal components with a frame of 4000 numbers and four rows a client,
keys from the operating system, in this process: milliseconds of processor time and bytes for
each client, and milliseconds of the server for all.
"""

import logging
import statistics
import sys
from collections import defaultdict
from time import process_time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import manifed
from benchmarks.common.cases import rounds_of
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import prepare
from benchmarks.common.stopwatch import table as markdown
from manifed.algorithms.rsgd import RSGD
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.load import parse
from manifed.federation.rounds import Course, free, sent
from manifed.federation.stack import StackTransport
from manifed.oracles.minibatch import Full
from manifed.setting import ExampleLevel, SecureSum, Target

EPSILONS = (0.5, 1.0, 2.0)
NODES, ROUNDS = 10, 10
WAYS: dict[str, dict[str, Any]] = {
    "central": {},
    "secure": {"max_dropped": 0, "collusion": 0},
    "secure, D = 3, c = 2": {"max_dropped": 3, "collusion": 2},
    "secure, D = 3 silent, c = 2": {"max_dropped": 3, "collusion": 2},
    "local": {},
}
TASKS = {
    "digits, k = 1 (sphere)": (
        {"kind": "principal-eigenvector"}, {"kind": "digits"}, 0.2, {"step_size": 2.0},
    ),
    "digits, k = 3 (Stiefel)": (
        {"kind": "kpca", "num_components": 3, "scaling": "mean"}, {"kind": "digits"}, 0.5,
        {"step_size": 3.0, "maps": "retraction"},
    ),
    "mean of SPD(3), 300 matrices": (
        {"kind": "frechet-mean"}, {"kind": "spd-lognormal", "num_examples": 300, "dimension": 3},
        2.0, {"step_size": 0.5},
    ),
}  # fmt: skip
"""Problem, data, clip and training."""


def config_of(task: str, way: str, epsilon: float, seed: int):
    """The experiment of a task with one way to noise it."""
    problem, data, clip, training = TASKS[task]
    privacy = {
        "kind": "example-level", "l2_norm_clip": clip, "noise_source": "seed",
        "noise": {"kind": "target", "epsilon": epsilon, "delta": 1e-5},
    }  # fmt: skip
    if way.startswith("secure"):
        privacy["trust"] = {"kind": "secure-sum", **WAYS[way]}
    nodes = 1 if way == "central" else NODES
    return parse(
        {
            "name": "secure-sum",
            "problem": problem,
            "data": data,
            "federation": {"num_clients": nodes, "num_rounds": ROUNDS, "seed": seed},
            "training": {"kind": "rsgd", "minibatch": {"kind": "full"}, **training},
            "privacy": privacy,
        }
    )


def share_left(task: str, way: str, epsilon: float, seed: int) -> float:
    """(f(x_T) - f*) / (f(x_0) - f*) of one run."""
    config = config_of(task, way, epsilon, seed)
    plan, rounds = rounds_of(config)
    if "silent" in way:
        rounds = without_three(config)
    *_, last = rounds
    data = load_shards(config)
    best = data.problem.optimum(data.examples).value
    ends = (initial_point(config), plan.server_update.output(last.state, plan.manifold))
    first, left = (float(data.problem.objective(x, data.examples)) - best for x in ends)
    return left / first


def without_three(config):
    """The rounds of a config in which clients 7, 8 and 9 send nothing."""
    plan = plan_of(config)
    transport = StackTransport(client_side(config), at_once=None, memory_budget_mb=1024)
    course = Course(plan, plan.server_update.start(initial_point(config)), free)

    def exchange():
        came = transport.exchange(course.asked(sent(course.opened())))
        return course.moved(course.judged(came.without(dict.fromkeys((7, 8, 9), "silent"))))

    while course.round <= ROUNDS:
        yield course.one_round(exchange)


def accuracy(page: Page, seeds: int) -> list[dict[str, Any]]:
    """Measures all tasks."""
    found, rows = [], []
    for task, (_, _, clip, training) in TASKS.items():
        for epsilon in EPSILONS:
            cells = {}
            for way in WAYS:
                each = [share_left(task, way, epsilon, seed) for seed in range(seeds)]
                low, middle, high = np.quantile(each, (0.25, 0.5, 0.75))
                cells[way] = middle
                found.append({"task": task, "epsilon": epsilon, "way": way, "median": middle,
                              "low": low, "high": high})  # fmt: skip
            ratio = {way: f"{cells[way]:.5f} ({cells[way] / cells['central']:.2f})" for way in WAYS}
            rows.append([f"{task}; clip {clip}, step {training['step_size']}", f"{epsilon:g}",
                         *ratio.values()])  # fmt: skip
    page.say('\nShare of the gap that is left (over that of "central"):\n')
    page.say(markdown(["task", "epsilon", *WAYS], rows))
    return found


def network(seed: int) -> nn.Module:
    """Makes the module, from a start of its own for each seed."""
    made = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in made.parameters():
            drawn = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            one.copy_(0.1 * drawn if one.dim() == 2 else 0 * drawn)
    return made


def wrong_answers(way: str, epsilon: float, seed: int) -> float:
    """The share of held-out digits that a trained module gets wrong."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1500], order[1500:]
    sites = [(images[p], labels[p]) for p in train.chunk(1 if way == "central" else NODES)]
    trust = {"trust": SecureSum(**WAYS[way])} if way == "secure" else {}
    privacy = ExampleLevel(
        noise=Target(epsilon=epsilon, delta=1e-5), l2_norm_clip=1.0, noise_source="seed", **trust
    )
    found = manifed.fit_module(
        network(seed), sites, rounds=40, privacy=privacy, seed=seed, progress=False,
        algorithm=RSGD(step_size=4.0, minibatch=Full()),
    )  # fmt: skip
    trained = network(seed)
    trained.load_state_dict(found.state_dict)
    with torch.no_grad():
        return float((trained(images[test]).argmax(1) != labels[test]).double().mean())


def module(page: Page, seeds: int) -> list[dict[str, Any]]:
    """Measures the module with three ways to noise it."""
    rows, found = [], []
    draws = np.random.default_rng(0).integers(0, seeds, (20_000, seeds))
    for epsilon in EPSILONS:
        each = {
            way: np.array([wrong_answers(way, epsilon, seed) for seed in range(seeds)])
            for way in ("central", "secure", "local")
        }
        middles = {way: float(np.median(errors)) for way, errors in each.items()}
        ratios = {way: np.median(errors[draws], 1) / np.median(each["central"][draws], 1)
                  for way, errors in each.items()}  # fmt: skip
        low, high = np.quantile(ratios["secure"], (0.025, 0.975))
        found += [{"epsilon": epsilon, "way": way, "errors": each[way].tolist()} for way in each]
        rows.append([f"{epsilon:g}", *(f"{middles[way]:.4f}" for way in each),
                     f"{middles['secure'] / middles['central']:.2f} [{low:.2f}, {high:.2f}]",
                     f"{middles['local'] / middles['central']:.2f}"])  # fmt: skip
    page.say(f"\nWrong answers of the module, medians of {seeds} seeds (95 % by bootstrap):\n")
    page.say(markdown(["epsilon", "central", "secure", "local", "secure / central",
                       "local / central"], rows))  # fmt: skip
    return found


def cost(page: Page, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Measures one private round by exchange."""
    rows, found = [], []
    for nodes in sizes:
        config = parse(
            {
                "name": "cost",
                "problem": {"kind": "kpca", "num_components": 2, "scaling": "mean"},
                "data": {"kind": "synthetic-pca", "num_clients": nodes, "rows": 4,
                         "dimension": 2000},
                "federation": {"num_clients": nodes, "num_rounds": 3,
                               "partition": {"kind": "natural"}},
                "training": {"kind": "rsgd", "step_size": 1e-3, "minibatch": {"kind": "full"}},
                "privacy": {"kind": "example-level", "l2_norm_clip": 1.0, "delta": 1e-5,
                            "noise": {"kind": "multiplier", "noise_multiplier": 2.0},
                            "noise_source": "os",
                            "trust": {"kind": "secure-sum", "max_dropped": 0.3, "collusion": 2}},
            }
        )  # fmt: skip
        plan = plan_of(config)
        transport = StackTransport(client_side(config))
        course = Course(plan, plan.server_update.start(initial_point(config)), free)
        client, server = defaultdict(list), defaultdict(list)
        down, up = {}, {}
        for _ in range(1 if nodes > 100 else 3):
            report = None
            while report is None:
                begin = process_time()
                now = course.opened()
                asked = course.asked(sent(now))
                middle = process_time()
                came = transport.exchange(asked)
                end = process_time()
                name = now.phase.name
                down[name] = came.bytes_down / len(asked.partitions)
                up[name] = came.uploads.num_bytes() / len(came.partitions)
                report = course.moved(course.judged(came))
                client[name].append(1e3 * (end - middle) / len(asked.partitions))
                server[name].append(1e3 * (process_time() - end + middle - begin))
        for name in client:
            row = (statistics.median(client[name]), statistics.median(server[name]))
            found.append({"nodes": nodes, "exchange": name, "client_ms": row[0],
                          "server_ms": row[1], "down": down[name], "up": up[name]})  # fmt: skip
            rows.append([str(nodes), name, f"{row[0]:.2f}", f"{row[1]:.1f}", f"{down[name]:.0f}",
                         f"{up[name]:.0f}"])  # fmt: skip
        totals = [sum(map(statistics.median, each.values())) for each in (client, server)]
        rows.append([str(nodes), "all", f"{totals[0]:.2f}", f"{totals[1]:.1f}",
                     f"{sum(down.values()):.0f}", f"{sum(up.values()):.0f}"])  # fmt: skip
    page.say("\nCost of one private round:\n")
    page.say(markdown(["clients", "exchange", "ms a client", "ms of the server", "bytes down",
                       "bytes up"], rows))  # fmt: skip
    return found


def main() -> int:
    """Measures and writes both tables."""
    page = Page(__doc__, "secure_sum.md", seeds=20)
    parts = {
        "cost": lambda: cost(page, (10, 100, 1000)),
        "accuracy": lambda: accuracy(page, given.seeds),
        "module": lambda: module(page, given.seeds),
    }
    page.parser.add_argument("--only", nargs="*", choices=parts, default=list(parts))
    given = page.parser.parse_args()
    logging.getLogger("manifed").setLevel(logging.ERROR)  # who is silent here is known
    page.say(prepare("Secure sums"))
    page.explain()
    page.save(given, {name: parts[name]() for name in given.only})
    return 0


if __name__ == "__main__":
    sys.exit(main())

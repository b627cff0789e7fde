"""What guard costs a Flower app: accuracy and time, beside the app alone and Flower's own wrapper.

    python -m benchmarks.guard [--seeds 5] [--rounds 40] [--out benchmarks/results] [--json]

The app: FedAvg over 100 clients of 15 digits each (scikit-learn), 20 of them a round in
expectation, a network 64-32-10, two epochs of SGD at the client; accuracy on 297 other digits,
medians over seeds. All private ways have clip 1 and the same epsilon at delta 1e-3 after all
rounds, against an outsider who sees every model. Flower's wrapper draws its cohorts with the global
generator, so sampling buys it nothing; guard draws Poisson cohorts in secret.

Time: of a round of all clients of the app in this process, smallest of interleaved rounds, with
the ledger's fsync.
"""

import logging
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import prepare
from benchmarks.common.stopwatch import table as markdown
from manifed.flower.grids import InlineGrid
from manifed.flower.guard import guard
from manifed.privacy.composition import gaussian_epsilon
from manifed.privacy.epsilon_bounds import least_multiplier
from manifed.setting import Target

NODES, COHORT, CLIP, DELTA = 100, 20, 1.0, 1e-3
EPSILONS = (2.0, 8.0)


def network(seed: int) -> nn.Module:
    """Makes the app's network."""
    made = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in made.parameters():
            one.copy_((torch.rand(one.shape, generator=generator) - 0.5) * (2 / 8))
    return made


class App:
    """One seed of the app: its data, its ClientApp and its test."""

    def __init__(self, seed: int) -> None:
        digits = load_digits()
        images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
        labels = torch.tensor(digits.target)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        self.seed, self.test = seed, (images[order[1500:]], labels[order[1500:]])
        shards = [(images[p], labels[p]) for p in order[:1500].chunk(NODES)]
        self.client = app = ClientApp()

        @app.train()
        def train(message: Message, context: Any) -> Message:
            x, y = shards[int(context.node_config["partition-id"])]
            model = network(0)
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            steps = torch.optim.SGD(model.parameters(), lr=0.3)
            for _ in range(2):
                for rows in torch.arange(len(x)).split(5):
                    steps.zero_grad()
                    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                    steps.step()
            metrics = MetricRecord({"num-examples": 1.0})
            content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
            return Message(content, reply_to=message)

    @property
    def start(self) -> ArrayRecord:
        """The first model."""
        return ArrayRecord(network(self.seed).state_dict())

    @property
    def grid(self) -> InlineGrid:
        """Fresh nodes in this process."""
        return InlineGrid(self.client, NODES, {})

    def accuracy(self, arrays: ArrayRecord) -> float:
        """The share of right answers on the test."""
        model = network(0)
        model.load_state_dict(arrays.to_torch_state_dict())
        images, labels = self.test
        with torch.no_grad():
            return float((model(images).argmax(1) == labels).double().mean())


def average() -> FedAvg:
    """Makes the app's strategy."""
    return FedAvg(fraction_train=COHORT / NODES, fraction_evaluate=0.0)


def guarded(folder: str, rounds: int, epsilon: float) -> Any:
    """Wraps it."""
    return guard(
        average(), population=NODES, clip=CLIP, delta=DELTA, cohort="poisson", rounds=rounds,
        noise=Target(epsilon=epsilon, delta=DELTA), ledger=Path(folder) / "ledger.jsonl",
    )  # fmt: skip


def wrapped(rounds: int, epsilon: float) -> Any:
    """Makes Flower's wrapper with the noise that the same epsilon takes without amplification."""
    z = least_multiplier(lambda z: gaussian_epsilon(DELTA, mu=rounds**0.5 / (z or 1e-99)), epsilon)
    return DifferentialPrivacyServerSideFixedClipping(average(), z, CLIP, COHORT)


def accuracies(page: Page, seeds: int, rounds: int) -> list[dict[str, Any]]:
    """Trains with each way."""
    rows, found = [], []
    for epsilon in EPSILONS:
        each: dict[str, list[float]] = {"alone": [], "guard": [], "Flower's wrapper": []}
        for seed in range(seeds):
            app = App(seed)
            with tempfile.TemporaryDirectory() as folder:
                ways = (average(), guarded(folder, rounds, epsilon), wrapped(rounds, epsilon))
                for name, strategy in zip(each, ways, strict=True):
                    ended = strategy.start(app.grid, app.start, num_rounds=rounds)
                    each[name].append(app.accuracy(ended.arrays))
                ways[1].close()
        found += [{"epsilon": epsilon, "way": name, "accuracy": a} for name, a in each.items()]
        rows.append([f"{epsilon:g}", *(f"{statistics.median(a):.3f}" for a in each.values())])
    page.say(f"\nAccuracy after {rounds} rounds, medians of {seeds} seeds:\n")
    page.say(markdown(["epsilon", "alone", "guard", "Flower's wrapper"], rows))
    return found


def times(page: Page, rounds: int) -> list[dict[str, Any]]:
    """Times single rounds of each way in turns."""
    app = App(0)
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "alone": FedAvg(fraction_evaluate=0.0),
            "guard": guard(
                FedAvg(fraction_evaluate=0.0), population=NODES, clip=CLIP, delta=DELTA,
                noise_multiplier=1.0, ledger=Path(folder) / "ledger.jsonl",
            ),
            "Flower's wrapper": DifferentialPrivacyServerSideFixedClipping(
                FedAvg(fraction_evaluate=0.0), 1.0, CLIP, NODES
            ),
        }  # fmt: skip
        grid, arrays = app.grid, app.start
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for r in range(1, rounds + 1):
            for name, strategy in ways.items():
                begin = process_time(), perf_counter()
                sent = strategy.configure_train(r, arrays, ConfigRecord(), grid)
                strategy.aggregate_train(r, grid.send_and_receive(sent))
                spent[name].append((process_time() - begin[0], perf_counter() - begin[1]))
        ways["guard"].close()
    least = {
        name: [1e3 * min(one) for one in zip(*each, strict=True)] for name, each in spent.items()
    }
    rows = [
        [name, f"{cpu:.1f}", f"{wall:.1f}", f"{cpu / least['alone'][0]:.3f}"]
        for name, (cpu, wall) in least.items()
    ]
    page.say(f"\nA round of all {NODES} clients, smallest of {rounds}:\n")
    page.say(markdown(["way", "ms of processor time", "ms of wall time", "over alone"], rows))
    return [{"way": name, "cpu_ms": cpu, "wall_ms": wall} for name, (cpu, wall) in least.items()]


def main() -> int:
    """Measures both and writes the page."""
    page = Page(__doc__, "guard.md", seeds=5, rounds=40)
    given = page.parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("manifed").setLevel(logging.ERROR)
    page.say(prepare("Guard"))
    page.explain()
    numbers = {
        "time": times(page, given.rounds),
        "accuracy": accuracies(page, given.seeds, given.rounds),
    }
    page.save(given, numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main())

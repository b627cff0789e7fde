"""The stacked cohort over Ray workers: the same bits, what a round costs more, how much faster.

    python benchmarks/workers.py [--repeats 5] [--only NAME ...] [--json] [--out benchmarks/results]

Wall time of a round, one thread a process, medians of interleaved repeats:

* overhead: a round over one worker less the same round in this process, least squares d = 10;
* two workers beside two independent processes, each of which runs half of the clients in memory at
  the same time: kPCA 784 x 5 and Fréchet means of SPD(50);
* 100 000 least-squares clients on two workers, with the memory that each worker took;
* clients a second of gossip, DECOR and a torch module: one by one, stacked, over two workers;
* sizes: stacked rounds of gossip and DECOR by graph and number of nodes;
* owners: 10 000 nodes over one and two workers, mixed in the driver ("server") and in the workers.

No ledger is written here; what it costs is in engines.md.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import ray
import torch
from torch import nn

from benchmarks.common.cases import CASES
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, table
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.federation.exchange import Transport
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from manifed.federation.workers import RayTransport
from manifed.runs.driver import cohort_transport

ROOT = Path(__file__).resolve().parents[1]
Step = Callable[[], object]


def mlp() -> nn.Module:
    """Two layers for the 8 x 8 digits."""
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def kpca(clients: int) -> dict[str, Any]:
    """784 x 5, a hundred rows a client, all of them summed in chunks of four clients."""
    return CASES["kpca_784x5"](clients, 10**6) | {"engine": {"chunk_clients": 4}}


def spd(clients: int) -> dict[str, Any]:
    """The Fréchet mean of 50 x 50 matrices, four a client, in chunks of four clients."""
    given = CASES["spd_10"](clients, 10**6)
    given["data"] |= {"dimension": 50, "num_examples": 4 * clients}
    given["training"]["local_steps"] = 3
    return given | {"engine": {"chunk_clients": 4}}


def lines(clients: int, chunk: int) -> dict[str, Any]:
    """Least squares in ten dimensions."""
    return CASES["least_squares_d10"](clients, 10**6) | {"engine": {"chunk_clients": chunk}}


RING: dict[str, Any] = {"kind": "ring"}


def gossip(kind: str, nodes: int = 64, graph: dict[str, Any] = RING) -> dict[str, Any]:
    """Nodes on a graph, least squares in ten dimensions, node i's curvature at most i + 1."""
    masked = {
        "kind": "correlated", "l2_norm_clip": 1.0, "noise_stddev": 3.0, "mask_stddev": 20.0,
        "delta": 1e-3,
    }  # fmt: skip
    return {
        "name": kind,
        "problem": {"kind": "least-squares", "scaling": "sum"},
        "data": {"kind": "scaled-identities", "num_clients": nodes, "dimension": 10},
        "federation": {
            "num_clients": nodes, "num_rounds": 10**6, "partition": {"kind": "natural"},
        },
        "training": {
            "kind": kind, "graph": graph, "step_size": 1 / max(1000, nodes),
        },
        "privacy": masked if kind == "decor" else {"kind": "none"},
        "engine": {"chunk_clients": max(1, nodes // 2)},
    }  # fmt: skip


def module() -> dict[str, Any]:
    """A small network, ten clients' digits, clipped and noised."""
    return {
        "name": "module",
        "problem": {"kind": "module", "model": "benchmarks.workers:mlp"},
        "data": {"kind": "digits", "has_labels": True, "num_examples": 1700},
        "federation": {"num_clients": 100, "num_rounds": 10**6},
        "training": {
            "kind": "rsgd", "step_size": 0.1, "local_steps": 5, "maps": "retraction",
            "minibatch": {"kind": "poisson", "batch_size": 8},
        },
        "privacy": {
            "kind": "example-level", "l2_norm_clip": 1.0, "delta": 1e-3,
            "noise": {"kind": "multiplier", "noise_multiplier": 1.0},
        },
        "engine": {"chunk_clients": 25},
    }  # fmt: skip


def with_engine(given: dict[str, Any], workers: int | None) -> Experiment:
    """The experiment of a table, in this process (None) or over workers."""
    engine = {**given["engine"], "execution": "cohort", "memory_budget_mb": 4096}
    return parse(given | {"engine": engine | ({"workers": workers} if workers else {})})


def steps(config: Experiment, transport: Transport) -> Step:
    """A function that runs the next round, and gives its report."""
    plan = plan_of(config)
    start = plan.server_update.start(initial_point(config))
    rounds = run_rounds(plan, start, transport, num_rounds=10**6)

    def step() -> object:
        report = next(rounds)
        if report.failures:
            raise RuntimeError(f"Expected no failures, got {report.failures}")
        return report.state

    return step


@contextmanager
def stepping(given: dict[str, Any], workers: int | None) -> Iterator[Step]:
    config = with_engine(given, workers)
    with cohort_transport(config) as transport:
        yield steps(config, transport)


def seconds(step: Step) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def interleaved(ways: dict[str, Step], repeats: int, inner: int = 1) -> dict[str, float]:
    """Median seconds of one call of each, after a warm-up."""
    found = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, step in ways.items():
            spent = [seconds(step) for _ in range(inner)]
            if repeat:
                found[name].append(median(spent))
    return {name: median(spent) for name, spent in found.items()}


def overhead(repeats: int) -> dict[str, float]:
    given = lines(400, 100)
    with stepping(given, None) as here, stepping(given, 1) as one:
        found = interleaved({"here": here, "one worker": one}, repeats, inner=20)
    both = {f"{name} ms": spent * 1e3 for name, spent in found.items()}
    return {**both, "overhead ms": both["one worker ms"] - both["here ms"]}


# -- two workers beside two processes ----------------------------------------------------------
def half(path: str) -> None:
    """One of two independent processes: a round in memory for every line that it reads."""
    torch.set_num_threads(1)
    with stepping(json.loads(Path(path).read_text()), None) as step:
        print("ready", flush=True)
        for _ in sys.stdin:
            step()
            print("done", flush=True)


class Independent:
    """Two processes that know nothing of each other, each with half of the clients."""

    def __init__(self, given: dict[str, Any], path: Path) -> None:
        path.write_text(json.dumps(given))
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.workers", "--half", str(path)]
        pipe = subprocess.PIPE
        self.both = [
            subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
            for _ in range(2)
        ]
        self._hear("ready")

    def _hear(self, word: str) -> None:
        for process in self.both:
            if (said := process.stdout.readline().strip()) != word:
                raise RuntimeError(f"Expected {word!r} of an independent process, got {said!r}")

    def __call__(self) -> None:
        """A round of both."""
        for process in self.both:
            process.stdin.write("go\n")
            process.stdin.flush()
        self._hear("done")

    def close(self) -> None:
        """End both."""
        for process in self.both:
            process.stdin.close()
            process.wait()


def speed_up(make: Callable[[int], dict[str, Any]], clients: int, repeats: int) -> dict[str, float]:
    with ExitStack() as held, tempfile.TemporaryDirectory() as folder:
        here = held.enter_context(stepping(make(clients), None))
        two = held.enter_context(stepping(make(clients), 2))
        apart = Independent(make(clients // 2), Path(folder) / "half.json")
        held.callback(apart.close)
        found = interleaved({"here": here, "two": two, "apart": apart}, repeats)
    return {
        "clients": clients,
        "one process s": found["here"],
        "two workers s": found["two"],
        "two processes s": found["apart"],
        "of two processes": found["apart"] / found["two"],
        "speed-up": found["here"] / found["two"],
    }


def many(repeats: int) -> dict[str, float]:
    config = with_engine(lines(100_000, 2000), 2)
    with cohort_transport(config) as transport:
        assert isinstance(transport, RayTransport)
        step = steps(config, transport)
        first = seconds(step)
        spent = median(seconds(step) for _ in range(repeats))
        grown = ray.get([actor.__ray_call__.remote(peak_mb) for actor in transport.actors])
    return {"clients": 100_000, "first round s": first, "round s": spent, "worker MiB": max(grown)}


def peak_mb(_: object) -> float:
    """The most memory that this worker ever held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def per_second(given: dict[str, Any], repeats: int, inner: int) -> dict[str, float]:
    clients = given["federation"]["num_clients"]
    config = with_engine(given, None)
    one = steps(config, StackTransport(client_side(config)))
    with stepping(given, None) as here, stepping(given, 2) as two:
        ways = {"one by one": one, "stacked": here, "two workers": two}
        found = interleaved(ways, repeats, inner)
    return {name: clients / spent for name, spent in found.items()}


def graphs(nodes: int) -> dict[str, dict[str, Any]]:
    """A ring, a grid, and a random graph with twice as many edges as connect one."""
    likely = 2 * math.log(nodes) / nodes
    return {
        "ring": RING,
        "torus": {"kind": "torus", "rows": {64: 8, 1000: 25, 10_000: 100}[nodes]},
        "erdos-renyi": {"kind": "erdos-renyi", "probability": likely},
    }


def sizes(repeats: int) -> dict[str, Any]:
    """Rounds a second and clients a second of a stacked round."""
    found = {}
    for nodes in (64, 1000, 10_000):
        for name, graph in graphs(nodes).items():
            if nodes == 10_000 and name == "erdos-renyi":
                continue  # more pairs of nodes to draw from than a config may ask for
            with ExitStack() as held:
                both = {
                    kind: held.enter_context(stepping(gossip(kind, nodes, graph), None))
                    for kind in ("gossip", "decor")
                }
                rounds = interleaved(both, repeats, 20)
            found[f"{name}, {nodes}"] = {
                f"{kind} {what}/s": count / rounds[kind]
                for kind in both
                for what, count in (("rounds", 1), ("clients", nodes))
            }
    return found


def owners(repeats: int) -> dict[str, Any]:
    """10 000 nodes on a ring over workers: mixed in the driver, and by those who own the nodes."""
    found = {}
    for workers in (1, 2):
        for name, kind in (("server", "gossip"), ("decor", "decor")):
            with stepping(gossip(kind, 10_000), workers) as step:
                spent = interleaved({"round": step}, repeats, 5)["round"]
            found[f"{name}, {workers}"] = {"round ms": spent * 1e3, "clients/s": 10_000 / spent}
    return found


RUNS: dict[str, Callable[[int], dict[str, Any]]] = {
    "overhead": overhead,
    "kpca_784x5": lambda repeats: speed_up(kpca, 64, repeats),
    "spd_50": lambda repeats: speed_up(spd, 32, repeats),
    "many": many,
    "gossip": lambda repeats: per_second(gossip("gossip"), repeats, 10),
    "decor": lambda repeats: per_second(gossip("decor"), repeats, 10),
    "module": lambda repeats: per_second(module(), repeats, 1),
    "sizes": sizes,
    "owners": owners,
}


def shown(numbers: dict[str, Any]) -> str:
    """A table of one row, or of a row for each case."""
    first = next(iter(numbers.values()))
    if not isinstance(first, dict):
        return table(list(numbers), [[f"{value:.4g}" for value in numbers.values()]])
    rows = [
        [case, *(f"{row[name]:.4g}" if name in row else "" for name in first)]
        for case, row in numbers.items()
    ]
    return table(["case", *first], rows)


def main() -> None:
    page = Page(__doc__, "workers.md", repeats=5)
    page.parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    page.parser.add_argument("--half", help=argparse.SUPPRESS)
    given = page.parser.parse_args()
    if given.half:
        half(given.half)
        return
    torch.set_num_threads(1)
    found = {}
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        kept = given.out / "workers.json"
        found = json.loads(kept.read_text()) if kept.exists() else {}
    for name in given.only:
        said = circumstances().splitlines()[-1]
        found[name] = {**RUNS[name](given.repeats), "on": said}
        if given.out:
            kept.write_text(json.dumps(found, indent=1) + "\n")
    page.say("# The stacked cohort over Ray workers\n\n`python benchmarks/workers.py`\n")
    page.say("Wall time, one thread a process, medians of interleaved repeats.")
    for name in RUNS:
        if name in found:
            numbers = {k: v for k, v in found[name].items() if k != "on"}
            page.say(f"\n**{name}**: {found[name]['on']}\n\n{shown(numbers)}")
    page.save(given, found)


if __name__ == "__main__":
    main()

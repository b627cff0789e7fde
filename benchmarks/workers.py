"""What several workers or threads gain for a stacked cohort, and what the machine has to give.

    python -m benchmarks.workers [--repeats 15] [--json] [--out benchmarks/results]

Wall time of a round, one thread of torch a process, medians of interleaved repeats.

* two of a kind: a round of all clients in one process over the same round on two threads of this
  process, on two Ray workers, and by two independent processes, each with half of the clients;
* overhead: a round over one worker less the same round in this process, least squares d = 10;
* 100 000 least-squares clients on two workers, with the memory that each worker took;
* clients a second of gossip and of a torch module: one by one, stacked, over two workers.

No ledger is written here; what it costs is in engines.md.
"""

import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

import ray
from torch import nn

from benchmarks.common.cases import CASES
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, prepare, table
from manifed.experiment.assembly import client_side, initial_point, plan_of
from manifed.experiment.load import parse
from manifed.experiment.schema import Experiment
from manifed.federation.exchange import Transport
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from manifed.federation.workers import RayTransport
from manifed.runs.driver import cohort_transport

Table = dict[str, Any]
Step = Callable[[], object]


def mlp() -> nn.Module:
    """Two layers for the 8 x 8 digits."""
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def kpca(clients: int) -> Table:
    """784 x 5, a hundred rows a client, all of them summed in chunks of four clients."""
    return CASES["kpca_784x5"](clients, 10**6) | {"engine": {"chunk_clients": 4}}


def spd(clients: int) -> Table:
    """The Fréchet mean of 50 x 50 matrices, four a client, in chunks of four clients."""
    given = CASES["spd_10"](clients, 10**6)
    given["data"] |= {"dimension": 50, "num_examples": 4 * clients}
    given["training"]["local_steps"] = 3
    return given | {"engine": {"chunk_clients": 4}}


def lines(clients: int, chunk: int | None = None, *, d: int = 10, private: bool = False) -> Table:
    """Least squares in d dimensions, ten steps."""
    given = CASES["least_squares_d10"](clients, 10**6)
    given["data"] |= {"dimension": d}
    noise = {"kind": "multiplier", "noise_multiplier": 1.0}
    level = {"kind": "example-level", "l2_norm_clip": 1.0, "delta": 1e-9, "noise": noise}
    engine = {"chunk_clients": chunk} if chunk else {}
    return given | ({"privacy": level} if private else {}) | {"engine": engine}


def gossip(nodes: int = 64) -> Table:
    """Nodes on a ring, least squares in ten dimensions."""
    return {
        "name": "gossip",
        "problem": {"kind": "least-squares", "scaling": "sum"},
        "data": {"kind": "scaled-identities", "num_clients": nodes, "dimension": 10},
        "federation": {
            "num_clients": nodes, "num_rounds": 10**6, "partition": {"kind": "natural"},
        },
        "training": {"kind": "gossip", "graph": {"kind": "ring"}, "step_size": 1e-3},
        "privacy": {"kind": "none"},
        "engine": {"chunk_clients": max(1, nodes // 2)},
    }  # fmt: skip


def module() -> Table:
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
            "kind": "example-level", "l2_norm_clip": 1.0, "delta": 1e-4,
            "noise": {"kind": "multiplier", "noise_multiplier": 1.0},
        },
        "engine": {"chunk_clients": 25},
    }  # fmt: skip


def with_engine(given: Table, workers: int | None, address: str | None = None) -> Experiment:
    """The experiment of a table, in this process (None) or over workers."""
    engine = {**given["engine"], "execution": "cohort", "memory_budget_mb": 4096}
    more = {"workers": workers} | ({"address": address} if address else {}) if workers else {}
    return parse(given | {"engine": engine | more})


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
def stepping(given: Table, workers: int | None, address: str | None = None) -> Iterator[Step]:
    config = with_engine(given, workers, address)
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


# -- two of a kind -------------------------------------------------------------------------------
_half = list[Step]()
"""The rounds of an independent process."""
_open = ExitStack()
"""What they need, as long as that process lives."""


def _begin(given: Table) -> None:
    prepare("")
    _half.append(_open.enter_context(stepping(given, None)))
    _half[0]()


def _step(_: int) -> None:
    _half[0]()


def two_of_a_kind(make: Callable[[int], Table], clients: int, repeats: int) -> Table:
    """How much quicker than one process each way is that has two."""
    with ExitStack() as held:
        ways = {
            name: held.enter_context(stepping(make(clients), *where))
            for name, where in (
                ("one", (None,)), ("threads", (2, "threads")), ("Ray workers", (2, "local")),
            )
        }  # fmt: skip
        apart = held.enter_context(
            ProcessPoolExecutor(
                2,
                mp_context=get_context("spawn"),
                initializer=_begin,
                initargs=(make(clients // 2),),
            )
        )
        list(apart.map(time.sleep, (5, 5)))  # both have begun
        ways["processes"] = lambda: list(apart.map(_step, range(2)))
        found = interleaved(ways, repeats)
    one = found.pop("one")
    return {"one process s": one} | {f"two {name}": one / spent for name, spent in found.items()}


def twos(repeats: int) -> Table:
    """A row for each case."""
    cases: dict[str, tuple[Callable[[int], Table], int]] = {
        "kpca_784x5": (kpca, 64), "spd_50": (spd, 32),
    }  # fmt: skip
    for d, clients in ((10, 40_000), (200, 5000), (2000, 600)):
        for private in (False, True):
            name = f"least squares, d = {d}, {clients} clients" + ", private" * private
            cases[name] = partial(lines, d=d, private=private), clients
    return {name: two_of_a_kind(make, count, repeats) for name, (make, count) in cases.items()}


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


def per_second(given: Table, repeats: int, inner: int) -> dict[str, float]:
    clients = given["federation"]["num_clients"]
    config = with_engine(given, None)
    one = steps(config, StackTransport(client_side(config)))
    with stepping(given, None) as here, stepping(given, 2) as two:
        ways = {"one by one": one, "stacked": here, "two workers": two}
        found = interleaved(ways, repeats, inner)
    return {name: clients / spent for name, spent in found.items()}


RUNS: dict[str, Callable[[int], Table]] = {
    "two of a kind": twos,
    "overhead": overhead,
    "many": many,
    "gossip": lambda repeats: per_second(gossip(), repeats, 10),
    "module": lambda repeats: per_second(module(), repeats, 1),
}


def shown(numbers: Table) -> str:
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
    page = Page(__doc__, "workers.md", repeats=15)
    given = page.parser.parse_args()
    prepare("")
    page.say(f"# Several workers or threads\n\n{circumstances()}")
    page.explain()
    found = {}
    for name, run in RUNS.items():
        found[name] = run(given.repeats)
        page.say(f"\n**{name}**\n\n{shown(found[name])}")
    page.save(given, found)


if __name__ == "__main__":
    main()

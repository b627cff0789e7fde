"""What a round costs: stacked, one message a client, under Ray; how it grows; what it holds.

    python benchmarks/engines.py [--only times growth memory] [--ray] [--json] [--out FOLDER]

Every engine runs the same experiment of benchmarks/common/cases.py, with its ledger, its checks and
its byte accounting; evaluation is off. Rivals in this process take turns of 20 ms of rounds each,
and the median turn is kept; Ray runs once a case, its first round (start-up) dropped. Growth: the
slope of log time against log size over the larger half of the sizes, where a round no longer costs
its fixed part; 1 is linear. Memory is the growth of a process of its own during one round beyond
the shards (Linux).
"""

import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common.cases import CASES, experiment
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, table
from manifed.algorithms.payloads import Point
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.load import parse, save
from manifed.experiment.schema import Experiment
from manifed.federation.exchange import Asked, Header, Transport
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from manifed.plan import promise_of
from manifed.privacy.charging import opened
from reproduction.findings import log_slope

TURN = 0.02
TURNS = 15
MOST = 20.0
"""Seconds of a turn, turns of each rival, and the seconds after which a slow one stops."""
CLIENTS = (10, 100, 1000)
GROWTH: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("least_squares_d10", "clients", (10, 100, 1000, 3000, 10_000)),
    ("kpca_100x5", "clients", (10, 30, 100, 300, 1000)),
    ("spd_10", "clients", (10, 30, 100, 300)),
    ("least_squares_d10", "dimension", (10, 30, 100, 300, 1000)),
    ("spd_10", "dimension", (3, 5, 10, 20)),
    ("kpca_100x5", "local_steps", (1, 5, 10, 20, 40)),
)
MEMORY: tuple[tuple[str, int, int], ...] = (
    ("least_squares_d10", 10_000, 32),
    ("lorentz_d10", 10_000, 64),
    ("spd_10", 2000, 96),
    ("kpca_100x5", 1000, 128),
    ("kpca_784x5", 300, 1024),
)
"""Case, clients and the memory budget of the config in MiB."""


def stepper(config: Experiment, folder: Path) -> Callable[[], None]:
    """A function that runs the next round, ledger included."""
    folder.mkdir()
    plan = plan_of(config)
    promise = promise_of(config.setting, load_shards(config).sizes)
    held = ExitStack()  # closes the ledger with the function that holds it
    ledger = opened(folder / "ledger.jsonl", promise, header={}, last_round=1_000_000)
    account = held.enter_context(ledger)
    start = plan.server_update.start(initial_point(config))
    transport = _transport(config, folder)
    rounds = run_rounds(plan, start, transport, account.charge, num_rounds=1_000_000)

    def step(_held: ExitStack = held) -> None:
        next(rounds)

    return step


def _transport(config: Experiment, folder: Path) -> Transport:
    if config.engine.execution == "cohort":
        return StackTransport(client_side(config), at_once=None, memory_budget_mb=1024)
    from app.client_app import app
    from manifed.flower.grids import InlineGrid
    from manifed.flower.handshake import meet

    save(config, folder / "experiment.toml")
    run_config = {"experiment": str(folder / "experiment.toml"), "overrides": ""}
    grid = InlineGrid(app, config.federation.num_clients, run_config)
    return meet(grid, plan_of(config))


def interleaved(rivals: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median wall seconds of one round of each rival, in turns that begin with caches warm."""

    def wall(step: Callable[[], object], times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            step()
        return (time.perf_counter() - began) / times

    turns = {name: max(1, int(TURN / wall(step, 3))) for name, step in rivals.items()}
    seconds = {name: [] for name in rivals}
    for _ in range(TURNS):
        for name, step in rivals.items():
            if sum(seconds[name]) * turns[name] <= MOST:
                seconds[name].append(wall(step, turns[name]))
    return {name: statistics.median(values) for name, values in seconds.items()}


def _ray_seconds(case: str, clients: int) -> float:
    """Median seconds of a round under Flower's simulation engine, without the first."""
    from manifed.cli.launch import Request, launch

    with tempfile.TemporaryDirectory(prefix="manifed-bench-") as root:
        path = Path(root) / "case.toml"
        save(experiment(case, clients, 5, kind="ray"), path)
        folder = launch(Request(str(path), out=Path(root) / "run", plain=True))
        return statistics.median(s for s in folder.metrics()["seconds"][2:] if s is not None)


def times(page: Page, *, with_ray: bool) -> dict[str, float]:
    """Updates a second of the stacked cohort, and the time of the others over its time."""
    found = {}
    rows = []
    for case in CASES:
        for clients in CLIENTS:
            with tempfile.TemporaryDirectory(prefix="manifed-bench-") as root:
                stacked = experiment(case, clients, 1000, execution="cohort")
                seconds = interleaved(
                    {
                        "cohort": stepper(stacked, Path(root) / "a"),
                        "messages": stepper(experiment(case, clients, 1000), Path(root) / "b"),
                    }
                )
            if with_ray and clients == CLIENTS[-1]:
                seconds["ray"] = _ray_seconds(case, clients)
            mine = seconds["cohort"]
            over = {name: spent / mine for name, spent in seconds.items() if name != "cohort"}
            found |= {f"{case}_{clients}_cohort_over_{name}": one for name, one in over.items()}
            cells = [f"{over[name]:.1f}" if name in over else "" for name in ("messages", "ray")]
            rows.append([case, str(clients), f"{clients / mine:,.0f}", f"{mine * 1e3:.3g}", *cells])
    header = ["case", "clients", "cohort updates/s", "ms a round", "x messages", "x Ray"]
    page.say(table(header, rows) + "\n")
    return found


def growth(page: Page) -> dict[str, float]:
    """Slopes of a stacked round's time over clients, dimension and local steps."""
    found = {}
    rows = []
    for case, over, sizes in GROWTH:
        with tempfile.TemporaryDirectory(prefix="manifed-bench-") as root:
            steps = {}
            for size in sizes:
                given = CASES[case](size if over == "clients" else 100, 1000)
                if over != "clients":
                    given["training" if over == "local_steps" else "data"][over] = size
                config = parse(given | {"engine": {"execution": "cohort"}})
                steps[str(size)] = stepper(config, Path(root) / str(size))
            seconds = list(interleaved(steps).values())
        half = len(sizes) // 2
        slope = found[f"{case}_{over}_slope"] = log_slope(sizes[half:], seconds[half:])
        told = "  ".join(f"{n}: {s * 1e3:.3g}" for n, s in zip(sizes, seconds, strict=True))
        rows.append([case, over, told, f"{slope:.2f}"])
    page.say(table(["case", "over", "size: ms a round", "slope"], rows) + "\n")
    return found


def memory_of_a_round(case: str, clients: int, budget_mb: int) -> dict[str, float]:
    """MiB held by the stacked shards, MiB that one round adds, and how many clients at a time.

    Measured in a process of its own, by the high-water mark of its resident memory (Linux).
    """
    code = "import json, sys; from benchmarks.engines import grow; print(json.dumps(grow({!r})))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code.format((case, clients, budget_mb))],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def grow(given: tuple[str, int, int]) -> dict[str, float]:
    """`memory_of_a_round`, in this process."""
    case, clients, budget_mb = given
    config = parse(CASES[case](clients, 1000) | {"engine": {"execution": "cohort"}})
    header = Header("", 1, 0, "train", -1)
    phase = config.training.phases[0]
    side = client_side(config)
    down = Point(initial_point(config))
    many = StackTransport(side, at_once=None, memory_budget_mb=budget_mb)
    one = StackTransport(side, at_once=None, memory_budget_mb=budget_mb)
    one.exchange(Asked(header, phase, down, (0,), {}))  # libraries load
    del one
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    replies = many.exchange(Asked(header, phase, down, tuple(range(clients)), {}))
    if replies.failures:
        raise RuntimeError(f"Expected no failures, got {replies.failures}")
    stacks = many.stacks.values()
    shards = [t for stack in stacks for t in stack.kept[0].tensors.values()]
    return {
        "shards_mb": sum(t.nbytes for t in shards) / 2**20,
        "growth_mb": _status("VmHWM") - before,
        "clients_at_a_time": many.chunking.at_once,
    }


def _status(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def memory(page: Page) -> dict[str, float]:
    """What a round holds beside the budget of its config."""
    found = {}
    rows = []
    for case, clients, budget in MEMORY:
        one = memory_of_a_round(case, clients, budget)
        found[f"{case}_{clients}_{budget}_round_mb"] = one["growth_mb"]
        told = [f"{one[key]:.0f}" for key in ("clients_at_a_time", "shards_mb", "growth_mb")]
        rows.append([case, str(clients), str(budget), *told])
    header = ["case", "clients", "budget MiB", "at a time", "shards MiB", "round MiB"]
    page.say(table(header, rows) + "\n")
    return found


def main() -> None:
    """Print the tables; with --json the ratios as the last line."""
    page = Page(__doc__, "engines.md")
    page.parser.add_argument("--ray", action="store_true", help="Flower's engine too")
    parts = {
        "times": lambda page: times(page, with_ray=given.ray), "growth": growth, "memory": memory,
    }  # fmt: skip
    page.parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    given = page.parser.parse_args()
    found = {}
    page.say(f"# What a round costs\n\n{circumstances()} Wall time.\n")
    for part in given.only:
        found |= parts[part](page)
    page.save(given, found)


if __name__ == "__main__":
    main()

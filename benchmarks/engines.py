"""Client updates a second: stacked cohort, one message a client, Flower under Ray, numpy.

    python benchmarks/engines.py [--clients 10 100 1000] [--cases ...] [--no-ray] [--json]
    python benchmarks/engines.py --cases spd_10 --out benchmarks/results   # adds to what is there

numpy is the loop over clients, and for least squares all clients as one stack. Every engine runs
the same experiment of benchmarks/common/cases.py, with its ledger, its checks and its byte
accounting; evaluation is off. In-process rivals take turns of 20 ms of rounds each, and
the median turn is kept; Ray runs once per case, its first round (start-up) dropped. The floor of a
kPCA case is the flops of its gradients and polar factors over the rate of the bare products,
measured on the same shards, stacked in the same way.
"""

import argparse
import contextlib
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.common.cases import CASES, STEPS, experiment
from benchmarks.common.numpy_loops import Array, Round, round_of, stacked_round_of
from benchmarks.common.stopwatch import table
from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
from manifed.experiment.load import save
from manifed.experiment.privacy import promise_of
from manifed.experiment.schema import Experiment
from manifed.federation.rounds import run_rounds
from manifed.federation.stacked import StackedTransport
from manifed.federation.transport import Transport
from manifed.privacy.account import opened

INTERLEAVED, TURN = 15, 0.02
"""Turns of each rival, and the seconds that a turn of quick rounds fills."""
RIVALS = ("messages", "numpy", "stacked_numpy", "ray")
Results = dict[str, dict[str, float]]
"""Seconds of a round by rival, by "case clients"; "memory" is the peak of the process in MiB."""


def stepper(
    config: Experiment, folder: Path, held: contextlib.ExitStack | None = None
) -> Callable[[], None]:
    """A function that runs the next round of an inline experiment, ledger included.

    ``held`` closes the ledger; where nobody pays, nothing is left to write.
    """
    found, plan = load_shards(config), plan_of(config)
    start = plan.server_update.initial(initial_point(config))
    transport = _transport(config, folder)
    held = contextlib.ExitStack() if held is None else held
    promise = promise_of(config, found.sizes)
    block = config.federation.reserve_rounds or 1
    path = folder / "ledger.jsonl"
    ledger = opened(path, promise, header={}, last_round=1_000_000, block=block)
    account = held.enter_context(ledger)
    rounds = run_rounds(plan, start, transport, account.charge, num_rounds=1_000_000)

    def step(_held: contextlib.ExitStack = held) -> None:
        next(rounds)

    return step


def _transport(config: Experiment, folder: Path) -> Transport:
    if config.engine.execution == "cohort":
        return StackedTransport(client_side(config), device="cpu", memory_budget_mb=1024)
    from app.client_app import app
    from manifed.flower.inline import InlineGrid
    from manifed.flower.transport import MessageTransport

    save(config, folder / "experiment.toml")
    run_config = {"experiment": str(folder / "experiment.toml"), "overrides": ""}
    grid = InlineGrid(app, config.federation.num_clients, run_config)
    return MessageTransport.meet(grid, plan_of(config))


def numpy_stepper(one: Round, x: Array) -> Callable[[], None]:
    """The researcher's loop."""
    state = [x]

    def step() -> None:
        state[0] = one(state[0])

    return step


def interleaved(
    rivals: dict[str, Callable[[], None]], most: float, rounds: int = INTERLEAVED
) -> dict[str, float]:
    """Median wall seconds of one round of each rival; slow ones stop after ``most`` seconds.

    A turn is as many rounds as fill ``TURN``: in a run a round follows a round, too.
    """
    turns = {name: max(1, int(TURN / _warm(step))) for name, step in rivals.items()}
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, step in rivals.items():
            if sum(seconds[name]) * turns[name] <= most:
                seconds[name].append(_wall(step, turns[name]))
    return {name: statistics.median(values) for name, values in seconds.items()}


def _warm(step: Callable[[], None]) -> float:
    """Wall seconds of a round after two turns: what first rounds find out is no part of it."""
    ends = time.perf_counter() + 2 * TURN
    while True:
        took = _wall(step, 3)
        if time.perf_counter() >= ends:
            return took


def _wall(step: Callable[[], None], times: int) -> float:
    """Wall seconds of one of so many rounds."""
    began = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - began) / times


def ray_seconds(case: str, clients: int, rounds: int) -> float:
    """Median seconds of a round under Flower's simulation engine, without the first."""
    from manifed.cli.launch import Request, launch

    with tempfile.TemporaryDirectory(prefix="manifed-bench-") as root:
        path = Path(root) / "case.toml"
        save(experiment(case, clients, rounds, kind="ray"), path)
        folder = launch(Request(str(path), out=Path(root) / "run", plain=True))
        return statistics.median(s for s in folder.metrics()["seconds"][2:] if s is not None)


def bare_products(config: Experiment) -> Callable[[], None]:
    """The products Z^T (Z x) of one round of kPCA, stacked as the engine stacks them, alone."""
    side = client_side(config)
    size = StackedTransport(side, device="cpu", memory_budget_mb=1024).chunk_size
    z = [shard["z"] for shard in side.shards]
    chunks = [torch.stack(z[i : i + size]) for i in range(0, len(z), size)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, *side.point_shape, dtype=torch.float64, generator=generator)

    def step() -> None:
        for chunk in chunks:
            for _ in range(STEPS):
                torch.matmul((chunk @ x[: len(chunk)]).mT, chunk)

    return step


def flops_over_products(config: Experiment) -> float:
    """Flops of gradients and polar factors over those of the bare products, a step of one client.

    Products 4 n d k; tangent part 2 n k^2 + 2 d k^2; Gram matrix and frame 4 d k^2; eigh 9 k^3.
    """
    side = client_side(config)
    n, (d, k) = len(side.shards[0]), side.point_shape
    return 1 + (2 * n * k**2 + 6 * d * k**2 + 9 * k**3) / (4 * n * d * k)


def measure(case: str, clients: int, *, with_ray: bool, most: float) -> dict[str, float]:
    """Seconds of a round of every rival."""
    with tempfile.TemporaryDirectory(prefix="manifed-bench-") as root:
        (Path(root) / "a").mkdir()
        (Path(root) / "b").mkdir()
        cohort = experiment(case, clients, 1000, execution="cohort")
        rivals = {"cohort": stepper(cohort, Path(root) / "a")}
        if clients < 10_000:
            rivals["messages"] = stepper(experiment(case, clients, 1000), Path(root) / "b")
            rivals["numpy"] = numpy_stepper(*round_of(case, cohort))
        if case.startswith("least_squares"):
            rivals["stacked_numpy"] = numpy_stepper(*stacked_round_of(cohort))
        if case.startswith("kpca"):
            rivals["floor"] = bare_products(cohort)
        found = interleaved(rivals, most)
        if case.startswith("kpca"):
            found["floor"] *= flops_over_products(cohort)
    if with_ray:
        found["ray"] = ray_seconds(case, clients, 5)
    return found


# -- report ------------------------------------------------------------------------------------
def flat_ratios(results: Results) -> dict[str, float]:
    """Every ratio by one name: case_clients_cohort_over_rival, case_clients_over_floor."""
    flat: dict[str, float] = {}
    for key, seconds in results.items():
        name, mine = key.replace(" ", "_"), seconds["cohort"]
        for rival in RIVALS:
            if rival in seconds:
                flat[f"{name}_cohort_over_{rival}"] = seconds[rival] / mine
        if "floor" in seconds:
            flat[f"{name}_over_floor"] = mine / seconds["floor"]
    aliases = {
        "kpca_784x5_cohort_over_ray": "kpca_784x5_1000_cohort_over_ray",
        "kpca_784x5_over_floor": "kpca_784x5_100_over_floor",
    }
    return flat | {short: flat[long] for short, long in aliases.items() if long in flat}


def report(results: Results) -> str:
    """A Markdown table."""
    flat, rows = flat_ratios(results), []
    for key, seconds in results.items():
        case, clients = key.split(" ")
        name, mine = f"{case}_{clients}", seconds["cohort"]
        ratios = [flat.get(f"{name}_cohort_over_{n}") for n in RIVALS]
        rows.append(
            [case, clients, f"{int(clients) / mine:,.0f}", f"{mine * 1e3:.3g}"]
            + ["" if ratio is None else f"{ratio:.1f}" for ratio in ratios]
            + [f"{flat[f'{name}_over_floor']:.2f}" if "floor" in seconds else ""]
            + [f"{seconds['memory']:.0f}"]
        )
    header = ["case", "clients", "cohort updates/s", "ms a round"]
    header += ["x messages", "x numpy loop", "x stacked numpy", "x Ray", "over floor", "peak MiB"]
    return table(header, rows)


def plot(results: Results, path: Path) -> None:
    """Client updates a second of every engine, a bar each, for the largest cohort Ray ran."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from manifed.runs.report.figures import COLORS, STYLE

    shown = {key: seconds for key, seconds in results.items() if "ray" in seconds}
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for place, rival in enumerate(("cohort", "numpy", "messages", "ray")):
            heights = [int(key.split(" ")[1]) / seconds[rival] for key, seconds in shown.items()]
            left = [i + place * 0.2 for i in range(len(shown))]
            axes.bar(left, heights, 0.19, label=rival, color=COLORS[place])
        names = [f"{case},\n{count} clients" for case, count in map(str.split, shown)]
        axes.set_xticks([i + 0.3 for i in range(len(shown))], names, fontsize=8)
        axes.grid(visible=False, axis="x")
        axes.set_yscale("log")
        axes.set_ylabel("client updates a second")
        axes.legend()
        figure.savefig(path, dpi=110, metadata={"Software": None})


def write(results: Results, out: Path) -> None:
    """engines.json (what later commands add to), engines.md and engines.png."""
    (out / "engines.json").write_text(json.dumps(results, indent=1) + "\n")
    heading = (
        "# Client updates a second, engine by engine\n\n`python benchmarks/engines.py --out "
        "benchmarks/results`, case by case with `--cases`\n\nTwo cores, "
        f"{torch.get_num_threads()} torch threads, ten local steps, full gradients. Ratios are wall"
        " times of a round over the cohort engine's, medians of interleaved rounds (Ray: its own "
        "rounds, in the same command). Peak memory is that of the benchmark's process.\n\n"
    )
    (out / "engines.md").write_text(heading + report(results) + "\n")
    plot(results, out / "engines.png")


def main() -> None:
    """Print the table; with --json the ratios as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--ray-clients", type=int, nargs="+", default=[1000])
    parser.add_argument("--most", type=float, default=20.0, help="seconds a slow rival may take")
    parser.add_argument("--out", type=Path, help="folder whose engines.json, .md, .png to update")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results: Results = {}
    for case in arguments.cases:
        for clients in arguments.clients:
            with_ray = not arguments.no_ray and clients in arguments.ray_clients
            found = measure(case, clients, with_ray=with_ray, most=arguments.most)
            found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            results[f"{case} {clients}"] = found
            print(report({f"{case} {clients}": found}).splitlines()[-1], flush=True)
            if arguments.out is not None:
                kept = arguments.out / "engines.json"
                earlier = json.loads(kept.read_text()) if kept.exists() else {}
                write(earlier | results, arguments.out)
    print(report(results))
    if arguments.json:
        print(json.dumps(flat_ratios(results)))


if __name__ == "__main__":
    main()

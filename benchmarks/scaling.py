"""How a round of the cohort engine grows with clients, dimension, local steps, and its memory.

    python benchmarks/scaling.py [--out benchmarks/results] [--json]

One round's median wall time, all settings of one curve interleaved. The slope is that of log time
against log size over the larger half of the sizes, where a round no longer costs its fixed part: 1
is linear. kPCA and least squares read d numbers an example, so linear in d; the factorisations of
SPD matrices cost d^3. Memory is the growth of the process during one round beyond the shards.
"""

import argparse
import ctypes
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.findings import log_slope

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 7


@dataclass(frozen=True)
class Curve:
    """One line of the plot: a case, what grows, and the median seconds of a round."""

    case: str
    over: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def slope(self) -> float:
        """Least-squares slope of log seconds over log size, larger half."""
        half = len(self.sizes) // 2
        return log_slope(self.sizes[half:], self.seconds[half:])

    def milliseconds(self) -> str:
        """Each size with its milliseconds a round."""
        pairs = zip(self.sizes, self.seconds, strict=True)
        return "  ".join(f"{size}: {seconds * 1e3:.3g}" for size, seconds in pairs)


def with_size(case: str, over: str, size: int) -> dict[str, Any]:
    """The table of a case with one size changed."""
    from benchmarks.common.cases import CASES

    clients = size if over == "clients" else 100
    table = CASES[case](clients, 1000)
    if over == "local_steps":
        table["training"]["local_steps"] = size
    if over == "dimension":
        table["data"]["dimension"] = size
    return table | {"engine": {"execution": "cohort"}}


SWEEPS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("least_squares_d10", "clients", (10, 100, 1000, 3000, 10_000)),
    ("lorentz_d10", "clients", (10, 100, 1000, 3000, 10_000)),
    ("kpca_100x5", "clients", (10, 30, 100, 300, 1000)),
    ("spd_10", "clients", (10, 30, 100, 300)),
    ("least_squares_d10", "dimension", (10, 30, 100, 300, 1000)),
    ("kpca_100x5", "dimension", (50, 100, 200, 400, 800)),
    ("spd_10", "dimension", (3, 5, 10, 20)),
    ("least_squares_d10", "local_steps", (1, 5, 10, 20, 40, 80)),
    ("kpca_100x5", "local_steps", (1, 5, 10, 20, 40)),
    ("spd_10", "local_steps", (1, 5, 10, 20)),
)


def measured(case: str, over: str, sizes: Sequence[int]) -> Curve:
    """Median seconds of a round at every size, interleaved."""
    from benchmarks.engines import interleaved, stepper
    from manifed.experiment.load import parse

    with tempfile.TemporaryDirectory(prefix="manifed-bench-") as root:
        steps: dict[str, Callable[[], None]] = {}
        for size in sizes:
            folder = Path(root) / str(size)
            folder.mkdir()
            steps[str(size)] = stepper(parse(with_size(case, over, size)), folder)
        seconds = interleaved(steps, math.inf, rounds=ROUNDS)
    return Curve(case, over, tuple(sizes), tuple(seconds.values()))


# -- memory ------------------------------------------------------------------------------------
MEMORY: tuple[tuple[str, int, int], ...] = (
    ("least_squares_d10", 10_000, 32),
    ("lorentz_d10", 10_000, 64),
    ("lorentz_d10", 10_000, 1024),
    ("spd_10", 2000, 96),
    ("kpca_100x5", 1000, 128),
    ("kpca_784x5", 300, 1024),
)


def memory_of_a_round(case: str, clients: int, budget_mb: int) -> dict[str, float]:
    """MiB held by the stacked shards, MiB that one round adds, and how many clients at a time.

    Measured in a process of its own, by the high-water mark of its resident memory (Linux).
    """
    code = (
        "from benchmarks.scaling import grow; import json, sys; "
        "print(json.dumps(grow(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, case, str(clients), str(budget_mb)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout.splitlines()[-1])


def grow(case: str, clients: int, budget_mb: int) -> dict[str, float]:
    """`memory_of_a_round`, in this process."""
    from manifed.algorithms.payloads import Point
    from manifed.experiment.assembly import client_side, initial_point
    from manifed.experiment.load import parse
    from manifed.federation.header import Header
    from manifed.federation.stacked import StackedTransport

    config = parse(with_size(case, "clients", clients))
    header, phase = Header("", 1, 0, "train", -1), config.training.phases[0]
    side, down = client_side(config), Point(initial_point(config))
    many = StackedTransport(side, device="cpu", memory_budget_mb=budget_mb)
    one = StackedTransport(side, device="cpu", memory_budget_mb=budget_mb)
    one.exchange(header, phase, down, (0,), {})  # libraries load
    del one
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    replies = many.exchange(header, phase, down, tuple(range(clients)), {})
    if replies.failures:
        raise RuntimeError(f"Expected no failures, got {replies.failures}")
    return {
        "shards_mb": many.shards_bytes() / 2**20,
        "growth_mb": _status("VmHWM") - before,
        "clients_at_a_time": many.chunk_size,
        "budget_mb": budget_mb,
    }


def _status(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


# -- report ------------------------------------------------------------------------------------
def plot(curves: Sequence[Curve], path: Path) -> None:
    """Seconds of a round against each size, log-log."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from manifed.runs.report.figures import COLORS, STYLE

    overs = list(dict.fromkeys(curve.over for curve in curves))
    cases = list(dict.fromkeys(curve.case for curve in curves))  # one colour a case in all panels
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(4 * len(overs), 3.8), layout="constrained")
        axes = figure.subplots(1, len(overs), sharey=True)
        for axis, over in zip(axes, overs, strict=True):
            for curve in (one for one in curves if one.over == over):
                axis.loglog(
                    curve.sizes,
                    curve.seconds,
                    color=COLORS[cases.index(curve.case)],
                    marker="o",
                    markersize=3,
                    label=f"{curve.case}, slope {curve.slope:.2f}",
                )
            axis.set_xlabel(over.replace("_", " "))
            axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        axes[0].set_ylabel("seconds a round")
        figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Print the tables; with --json slopes and memory as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for scaling.md and scaling.png")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    import torch

    from benchmarks.common.stopwatch import table

    curves = [measured(*sweep) for sweep in SWEEPS]
    rows = [[c.case, c.over, c.milliseconds(), f"{c.slope:.2f}"] for c in curves]
    memory = [(case, n, memory_of_a_round(case, n, budget)) for case, n, budget in MEMORY]
    spent = [
        [case, str(n), str(found["budget_mb"]), str(found["clients_at_a_time"]),
         f"{found['shards_mb']:.0f}", f"{found['growth_mb']:.0f}"]
        for case, n, found in memory
    ]  # fmt: skip
    text = "\n".join(
        [
            "# How a round grows",
            "",
            f"`{' '.join(['python', *sys.argv])}`",
            "",
            f"Cohort engine, {torch.get_num_threads()} torch threads, medians of {ROUNDS} "
            "interleaved rounds. Slope of log time over the larger half of the sizes.",
            "",
            table(["case", "over", "size: ms a round", "slope"], rows),
            "",
            table(["case", "clients", "budget MiB", "at a time", "shards MiB", "round MiB"], spent),
            "",
        ]
    )
    sys.stdout.write(text)
    if given.out is not None:
        (given.out / "scaling.md").write_text(text)
        plot(curves, given.out / "scaling.png")
    if given.json:
        flat = {f"{c.case}_{c.over}_slope": c.slope for c in curves}
        flat |= {f"{case}_{n}_{f['budget_mb']}_round_mb": f["growth_mb"] for case, n, f in memory}
        sys.stdout.write(json.dumps(flat) + "\n")


if __name__ == "__main__":
    main()

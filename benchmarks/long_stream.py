"""A run of 10^5 rounds on streams: is what a round takes, holds and writes the same at the end?

    python benchmarks/long_stream.py [--rounds 100000] [--json] [--out benchmarks/results]

configs/examples/long_stream.toml: six nodes, samples that grow, each record read once and kept by
nobody, one line of the ledger for up to 1000 rounds. Both algorithms, each in a process of its own:
Algorithm 2, and Algorithm 1 with gradients at the mixed point. Nodes are stacked in one process.

Time beyond gradients is the CPU time of a round without that of drawing its records and of the
clipped mean of its gradients, whose number grows on purpose. Memory is the resident set. The audit
verifies the ledger and prices every adversary from the file alone, in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from manifed.durable import write_atomically
from manifed.experiment.assembly import client_side
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment
from manifed.federation.plan import RoundReport
from manifed.federation.stack import StackTransport
from manifed.oracles.oracle import Oracle
from manifed.runs.driver import Job, rounds_over, run

CONFIG = Path(__file__).parents[1] / "configs" / "examples" / "long_stream.toml"
ALGORITHMS = {
    "gradient": (),
    "output, mixed": (  # the conditions of Theorems 3 and 4, and a finite sum
        "training.perturbation=output",
        "training.grad_point=mixed",
        "training.schedules.mixing.exponent=-0.8",
        "training.schedules.noise_scale.exponent=0.1",
    ),
}
AUDIT = """
import json, sys, time
from pathlib import Path
from manifed.privacy.statement import audit_ledger
begun = time.perf_counter()
found = audit_ledger(Path(sys.argv[1]), 1e-9)
epsilon = found["adversaries"][0]["epsilon"]
print(json.dumps([time.perf_counter() - begun, found["charges"], epsilon]))
"""


def resident_mib() -> float:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


class Watch:
    """CPU seconds of every round, and of its gradients; resident memory as rounds end."""

    def __init__(self, rounds: int) -> None:
        """Everything is allocated now, so that the watch itself does not grow."""
        self.total, self.gradients = np.ones(rounds), np.ones(rounds)
        self.memory = np.ones(rounds)
        self._spent = 0.0

    def counts_gradients(self) -> None:
        """Count what every oracle of this process spends on its means."""
        mean = Oracle._mean

        def timed(*args: Any) -> Any:
            begun = time.process_time()
            found = mean(*args)
            self._spent += time.process_time() - begun
            return found

        Oracle._mean = timed

    def over(self, job: Job, transport: StackTransport) -> Iterator[RoundReport]:
        """The rounds of a job."""
        begun = time.process_time()
        spent = self._spent
        for report in rounds_over(transport)(job):
            yield report  # the run writes down what came, and comes back
            now = time.process_time()
            at = report.server_round - 1
            self.total[at], self.gradients[at] = now - begun, self._spent - spent
            if at % 100 == 0:
                self.memory[at] = resident_mib()
            begun = now
            spent = self._spent


def config_of(name: str, rounds: int, folder: Path) -> Experiment:
    """The config for so many rounds."""
    return load(
        CONFIG,
        [*ALGORITHMS[name], f"federation.num_rounds={rounds}",
         f"evaluation.every={max(1, rounds // 10)}", f"output.directory={folder}",
         "output.plots=false", "output.quiet=true", "engine.execution=cohort"],
    )  # fmt: skip


def measured(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """One row of the table."""
    config = config_of(name, rounds, folder / "run")
    watch = Watch(rounds)
    watch.counts_gradients()
    begun = time.perf_counter()
    side = client_side(config)
    transport = StackTransport(side, at_once=None, memory_budget_mb=512)
    made = run(config, lambda job: watch.over(job, transport))
    tenth = max(1, rounds // 10)
    beyond = 1e3 * (watch.total - watch.gradients)
    truth = np.full(6, 0.5)
    x = made.load_tensors("model")["x"].numpy()
    size = made.ledger_path.stat().st_size
    seconds, charges, epsilon = audit(made.ledger_path)
    return {
        "rounds": rounds,
        "wall s": time.perf_counter() - begun,
        "ms beyond gradients": _ends(beyond, tenth),
        "ms of gradients": _ends(1e3 * watch.gradients, tenth),
        "resident MiB": [
            float(watch.memory[:tenth].max()), float(watch.memory[-tenth:].max()),
        ],
        "ledger bytes a round": size / rounds,
        "ledger bytes a round of the last tenth": _late_bytes(made.ledger_path, rounds - tenth),
        "audit s": seconds,
        "audited rounds": charges,
        "epsilon": epsilon,
        "squared distance to the truth": float(np.square(x - truth).sum()),
    }  # fmt: skip


def _ends(values: np.ndarray, tenth: int) -> list[float]:
    """Medians of the first tenth and of the last."""
    return [float(np.median(values[:tenth])), float(np.median(values[-tenth:]))]


def _late_bytes(path: Path, after: int) -> float:
    """Bytes a round of the lines that reserve rounds after ``after``."""
    total = 0
    last = 0
    first = 0
    for line in path.read_bytes().splitlines(keepends=True):
        rounds = json.loads(line).get("body", {}).get("rounds")
        if rounds is not None and rounds[0] > after:
            total = total + len(line)
            last = rounds[1]
            first = first or rounds[0]
    return total / (last - first + 1) if first else float("nan")


def audit(path: Path) -> tuple[float, int, float]:
    """Seconds of an audit in a fresh process, imports not counted; rounds and epsilon."""
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, str(path)], check=True, capture_output=True, text=True
    )
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def alone(name: str, rounds: int) -> dict[str, Any]:
    """`measured` in a process of its own."""
    command = [sys.executable, __file__, "--rounds", str(rounds), "--only", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--only", choices=ALGORITHMS, help="one algorithm, here, as JSON")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for long_stream.md")
    args = parser.parse_args()
    if args.only:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(args.only, args.rounds, Path(folder))))
        return
    found = {name: alone(name, args.rounds) for name in ALGORITHMS}
    if args.json:
        print(json.dumps(found))
    table = page(found)
    if not args.json:
        print(table)
    if args.out is not None:
        write_atomically(args.out / "long_stream.md", table.encode())


def page(found: dict[str, dict[str, Any]]) -> str:
    """The table."""
    rounds = next(iter(found.values()))["rounds"]
    lines = [
        f"# {rounds} rounds on streams",
        "",
        f"`python benchmarks/long_stream.py --rounds {rounds} --out benchmarks/results`, of "
        "configs/examples/long_stream.toml: six nodes, each record read once. Times are medians of "
        "CPU time; first / last: of the rounds' first and last tenth.",
        "",
        "| | " + " | ".join(found) + " |",
        "|---|" + "---|" * len(found),
    ]
    rows = {
        "ms a round beyond gradients, first / last": ("ms beyond gradients", "{:.2f}"),
        "ms a round of records and gradients, first / last": ("ms of gradients", "{:.2f}"),
        "resident MiB, first / last": ("resident MiB", "{:.1f}"),
        "ledger, bytes a round": ("ledger bytes a round", "{:.2f}"),
        "of the last tenth": ("ledger bytes a round of the last tenth", "{:.2f}"),
        "audit of the ledger, s": ("audit s", "{:.2f}"),
        "rounds that it found": ("audited rounds", "{}"),
        "epsilon at delta 1e-9": ("epsilon", "{:.3f}"),
        "squared distance of the mean of what nodes show to the truth": (
            "squared distance to the truth", "{:.2e}",
        ),
        "wall time, s": ("wall s", "{:.0f}"),
    }  # fmt: skip
    for title, (key, form) in rows.items():
        cells = [one[key] for one in found.values()]
        said = [
            " / ".join(form.format(v) for v in (cell if isinstance(cell, list) else [cell]))
            for cell in cells
        ]
        lines.append(f"| {title} | " + " | ".join(said) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

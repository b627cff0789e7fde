"""A run of 10^5 rounds on streams: is what a round takes, holds and writes the same at the end?

    python benchmarks/long_stream.py [--rounds 100000] [--json] [--out benchmarks/results]

configs/examples/long_stream.toml: six nodes, samples that grow, each record read once and kept by
nobody, one line of the ledger for up to 1000 rounds. Both algorithms, each in a process of its own:
Algorithm 2, and Algorithm 1 with gradients at the mixed point. Nodes are stacked in one process.

Time beyond gradients is the CPU time of a round without that of drawing its records and of the
clipped mean of its gradients, whose number grows on purpose. Memory is the resident set. The audit
verifies the ledger and prices every adversary from the file alone, in a process of its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import table
from benchmarks.ledger import audit, resident_bytes
from manifed.experiment.assembly import client_side
from manifed.experiment.load import load
from manifed.federation.plan import RoundReport
from manifed.federation.stack import StackTransport
from manifed.oracles.noisy_oracle import Oracle
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


class Watch:
    """CPU seconds of every round, and of its gradients; resident memory as rounds end."""

    def __init__(self, rounds: int) -> None:
        """Everything is allocated now, so that the watch itself does not grow."""
        self.total = np.ones(rounds)
        self.gradients = np.ones(rounds)
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
            self.total[at] = now - begun
            self.gradients[at] = self._spent - spent
            if at % 100 == 0:
                self.memory[at] = resident_bytes() / 2**20
            begun = now
            spent = self._spent


def measured(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """One row of the table."""
    tenth = max(1, rounds // 10)
    config = load(
        CONFIG,
        [*ALGORITHMS[name], f"federation.num_rounds={rounds}", f"evaluation.every={tenth}",
         f"output.directory={folder}", "output.quiet=true",
         "engine.execution=cohort"],
    )  # fmt: skip
    watch = Watch(rounds)
    watch.counts_gradients()
    begun = time.perf_counter()
    transport = StackTransport(client_side(config), at_once=None, memory_budget_mb=512)
    made = run(config, lambda job: watch.over(job, transport))
    audited = audit(made.ledger_path, 1e-9)
    return {
        "rounds": rounds,
        "wall s": time.perf_counter() - begun,
        "ms beyond gradients": _ends(1e3 * (watch.total - watch.gradients), tenth, np.median),
        "ms of gradients": _ends(1e3 * watch.gradients, tenth, np.median),
        "resident MiB": _ends(watch.memory, tenth, np.max),
        "ledger bytes a round": made.ledger_path.stat().st_size / rounds,
        "ledger bytes a round of the last tenth": _late_bytes(made.ledger_path, rounds - tenth),
        "audit s": audited["audit seconds"],
        "audited rounds": audited["charges"],
        "epsilon": audited["epsilons"][0],
        "squared distance to the truth": float(
            np.square(made.load_tensors("model")["x"].numpy() - 0.5).sum()
        ),
    }


def _ends(values: np.ndarray, tenth: int, of: Callable[[np.ndarray], Any]) -> list[float]:
    """What ``of`` makes of the first tenth and of the last."""
    return [float(of(values[:tenth])), float(of(values[-tenth:]))]


def _late_bytes(path: Path, after: int) -> float:
    """Bytes a round of the lines that reserve rounds after ``after``."""
    lines = path.read_bytes().splitlines(keepends=True)
    reserved = [(line, json.loads(line).get("body", {}).get("rounds")) for line in lines]
    late = [(line, rounds) for line, rounds in reserved if rounds is not None and rounds[0] > after]
    if not late:
        return float("nan")
    return sum(len(line) for line, _ in late) / (late[-1][1][1] - late[0][1][0] + 1)


def alone(name: str, rounds: int) -> dict[str, Any]:
    """`measured` in a process of its own."""
    command = [sys.executable, __file__, "--rounds", str(rounds), "--only", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    page = Page(__doc__, "long_stream.md", rounds=100_000)
    page.parser.add_argument("--only", choices=ALGORITHMS, help="one algorithm, here, as JSON")
    given = page.parser.parse_args()
    if given.only:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(given.only, given.rounds, Path(folder) / "run")))
        return
    found = {name: alone(name, given.rounds) for name in ALGORITHMS}
    page.say(text_of(found, given.rounds))
    page.save(given, found)


def text_of(found: dict[str, dict[str, Any]], rounds: int) -> str:
    """The table."""
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
    cells = [
        [
            title,
            *(
                " / ".join(form.format(v) for v in np.atleast_1d(one[key]).tolist())
                for one in found.values()
            ),
        ]
        for title, (key, form) in rows.items()
    ]
    return (
        f"# {rounds} rounds on streams\n\n"
        f"`python benchmarks/long_stream.py --rounds {rounds} --out benchmarks/results`, of "
        "configs/examples/long_stream.toml: six nodes, each record read once. Times are medians of "
        "CPU time; first / last: of the rounds' first and last tenth.\n\n"
        + table(["", *found], cells)
    )


if __name__ == "__main__":
    main()

"""Start-up: how long until the quickstart's statement is printed, beyond torch's own import.

    python benchmarks/startup.py [--runs 5] [--json]

Processes take turns: ``python -c "import torch"``, the same with Flower, ``python simulation.py
configs/quickstart.toml`` (what ``make quickstart`` runs) until the last line of its statement, and
``python -m manifed --help`` until its end. Medians of wall time and of processor time, user and
system, as the kernel counts it (Linux alone) when the line is printed. The aim is 2 s between the
first and the statement, at most 1.6 times both imports, and 0.3 s for the last.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.page import Page
from benchmarks.common.stopwatch import circumstances, table

ROOT = Path(__file__).resolve().parents[1]
TORCH = "import torch"
BOTH = "import torch, flwr.app, flwr.clientapp, flwr.serverapp"
STATEMENT = "statement"
HELP = "--help"
LAST = {TORCH: "there", BOTH: "there", STATEMENT: "seconds: ", HELP: ""}
"""How the line begins that is waited for; nothing: the end."""


def words_of(kind: str, folder: Path) -> list[str]:
    """The command line of one process."""
    if kind in (TORCH, BOTH):
        return ["-c", f"{kind}; print('there', flush=True)"]
    if kind == HELP:
        return ["-m", "manifed", "--help"]
    return ["simulation.py", "configs/quickstart.toml", "--out", str(folder)]


def processor_seconds(process: int) -> float:
    """What a process of this machine has used, user and system, all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measure(kind: str, folder: Path) -> tuple[float, float]:
    """Wall and processor seconds until the line is there."""
    began = time.perf_counter()
    command = [sys.executable, "-W", "ignore", *words_of(kind, folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if LAST[kind] and line.startswith(LAST[kind]):
                break
        else:
            if LAST[kind]:
                raise SystemExit(f"{' '.join(command)}: ended without its last line")
        found = time.perf_counter() - began, processor_seconds(process.pid)
        process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return found


def main() -> None:
    """Print the table; with --json the medians as the last line."""
    page = Page(__doc__, "startup.md", runs=5)
    given = page.parser.parse_args()
    found = {kind: [] for kind in LAST}
    page.say(circumstances())
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # else each process would compile this library anew
    with tempfile.TemporaryDirectory(prefix="manifed-bench-") as root:
        for number in range(given.runs + 1):
            for kind in LAST:
                seconds = measure(kind, Path(root) / str(number))
                if number:  # the first reads the files from the disk and compiles them
                    found[kind].append(seconds)
    rows = []
    flat = {}
    for kind, pairs in found.items():
        cells = []
        flat[kind] = {}
        for key, spent in zip(("wall", "processor"), zip(*pairs, strict=True), strict=True):
            flat[kind][key] = statistics.median(spent)
            cells += [f"{flat[kind][key]:.2f}", f"{min(spent):.2f} to {max(spent):.2f}"]
        rows.append([kind, *cells])
    over = {key: flat[STATEMENT][key] - flat[TORCH][key] for key in flat[TORCH]}
    rows.append(["beyond torch", *(cell for one in over.values() for cell in (f"{one:.2f}", ""))])
    times = {key: flat[STATEMENT][key] / flat[BOTH][key] for key in flat[BOTH]}
    rows.append(["over both imports", *(c for one in times.values() for c in (f"{one:.2f}", ""))])
    page.say(table(["", "wall s", "from, to", "processor s", "from, to"], rows))
    page.save(given, flat | {"beyond torch": over, "over both imports": times})


if __name__ == "__main__":
    main()

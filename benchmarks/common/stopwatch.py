"""CPU seconds of rival implementations, measured interleaved in one process on one thread.

The machine is shared, so wall time and absolute numbers mean little: every rival of one case runs
once per round, rounds repeat, and the smallest CPU time of each rival is kept. Read the ratios.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

Work = Callable[[], object]


def prepare(title: str) -> str:
    """One thread and a settled allocator; returns the heading of a result page.

    glibc returns freed blocks to the system until a large one has been freed: without that, page
    faults of the first cases would count as arithmetic.
    """
    torch.set_num_threads(1)
    torch.ones(4_000_000, dtype=torch.float64).sum()
    return (
        f"# {title}\n\n{circumstances()} CPU time, one thread, smallest of interleaved rounds: "
        "read the ratios.\n"
    )


def circumstances() -> str:
    """The command that runs, when, of which commit, on what, and beside how much other work."""
    command = " ".join(["python", *sys.argv])
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    described = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(described, check=False, capture_output=True, text=True).stdout.strip()
    return (
        f"`{command}`\n\n{datetime.now(UTC):%Y-%m-%d}, commit {commit or 'unknown'}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{os.cpu_count()} cores, load average {load} at the start."
    )


def cpu_seconds(work: Work, repeats: int) -> float:
    """CPU seconds of one call, averaged over ``repeats`` calls."""
    start = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - start) / repeats


def race(rivals: Mapping[str, Work], *, rounds: int = 5, slice_: float = 0.02) -> dict[str, float]:
    """CPU seconds of one call of each rival: the smallest of ``rounds`` interleaved slices.

    A rival whose single call exceeds a slice runs in the first three rounds only, one whose call
    exceeds a hundred slices once after its warm-up. Each round begins with another rival.

    Args:
        rivals: what to run, by name.
        rounds: number of rounds.
        slice_: CPU seconds that one rival gets in one round.
    """
    for work in rivals.values():
        work()  # libraries load and compile at the first call
    best = {name: max(cpu_seconds(work, 1), 1e-7) for name, work in rivals.items()}
    running = {name: work for name, work in rivals.items() if best[name] <= 100 * slice_}
    repeats = {name: max(1, int(slice_ / seconds)) for name, seconds in best.items()}
    order = list(running.items())
    for number in range(rounds):
        order = order[1:] + order[:1]
        for name, work in order:
            if number < 3 or repeats[name] > 1:
                if repeats[name] > 1:
                    work()  # the caches hold what the rival before it used
                best[name] = min(best[name], cpu_seconds(work, repeats[name]))
    return best


def mean_and_error(values: np.ndarray) -> str:
    """A mean with its standard error."""
    return f"{values.mean():.3g} ± {values.std(ddof=1) / len(values) ** 0.5:.1g}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

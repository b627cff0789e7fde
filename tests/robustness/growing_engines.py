"""Growing samples on every engine at full size, against the plain loop in numpy; what it costs.

    python -m tests.robustness.growing_engines --out tests/robustness/results

Inline and Ray with 6 and with 30 nodes, real SuperNodes with 4; five rounds, one seed. The gate
compares in memory; this needs several starts of Ray and of SuperNodes.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.common.stopwatch import circumstances, table
from manifed.durable import write_atomically
from tests.algorithms.growing_engines import largest_gap

BOUND = 1e-12
CASES = (
    ("inline", 6, "output, mixed"),
    ("inline", 30, "gradient"),
    ("ray", 6, "output, mixed"),
    ("ray", 30, "gradient"),
    ("deployment", 4, "output, mixed"),
)


def main():
    """Exit code 1 when a gap is larger than the bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for growing_engines.md")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = []
    worst = 0.0
    for engine, nodes, case in CASES:
        began = time.perf_counter(), _cpu()
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            gap = largest_gap(engine, nodes, case, Path(folder), patch, args.rounds)
        worst = max(worst, gap)
        seconds = time.perf_counter() - began[0], _cpu() - began[1]
        rows.append([engine, str(nodes), case, f"{gap:.1e}", *(f"{one:.0f}" for one in seconds)])
        print(*rows[-1], flush=True)
    page = [
        "# Growing samples on every engine",
        "",
        circumstances(),
        "",
        f"Largest entry of the difference to the plain loop after {args.rounds} rounds, and",
        "seconds of wall and CPU time (of this process and those that it waited for).",
        f"Bound: {BOUND:g}.",
        "`python -m tests.robustness.growing_engines --out tests/robustness/results`",
        "",
        table(["engine", "nodes", "case", "largest difference", "s", "CPU s"], rows),
    ]
    if args.out is not None:
        write_atomically(args.out / "growing_engines.md", ("\n".join(page) + "\n").encode())
    return int(not worst <= BOUND)


def _cpu():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    sys.exit(main())

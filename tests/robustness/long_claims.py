"""The claims that take minutes to measure, with their verdicts.

python -m tests.robustness.long_claims [NAME ...] [--out tests/robustness/results]

The gate measures all others (tests/golden, tests/federation/test_projected_claims.py). Without
names all claims are measured; with names the rows of the others stay. Each row carries the hash of
the source of its check, and tests compare it and the verdict with the table in the results.
"""

import argparse
import sys
import time
from pathlib import Path

from benchmarks.common.stopwatch import circumstances, table
from reproduction.checks_000 import CHECKS as PRIRFED
from reproduction.checks_001 import CHECKS as PROJECTED
from reproduction.checks_002 import CHECKS as GROWING
from reproduction.checks_003 import CHECKS as RSVRG
from reproduction.checks_004 import CHECKS as DECOR
from reproduction.judged import source_of

CLAIMS = {
    **{name: PRIRFED[name] for name in ("7", "8", "14")},
    **{name: PROJECTED[name] for name in ("C5", "C6", "C8", "CLIENT", "PARTIAL")},
    "002-18": GROWING["002-18"], "H14": RSVRG["H14"], "004-H25": DECOR["004-H25"],
}  # fmt: skip
RESULTS = Path(__file__).with_name("results")
HEAD = ["check", "claim", "verdict", "seeds", "CPU seconds", "source"]


def archived(folder=RESULTS):
    """The rows of the table in a folder, by the name of their check."""
    page = folder / "long_claims.md"
    lines = page.read_text(encoding="utf-8").splitlines() if page.is_file() else []
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    return {row[0]: row for row in rows}


def measured(name):
    """The row of one claim."""
    began = time.process_time()
    found = CLAIMS[name]()
    seconds = f"{time.process_time() - began:.0f}"
    return [
        name,
        found.claim,
        found.verdict,
        str(list(found.seeds)),
        seconds,
        source_of(CLAIMS[name]),
    ]


def main(arguments=None):
    """0 when no claim has another verdict than before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *CLAIMS], help="these claims alone")
    parser.add_argument("--out", type=Path, help="folder for long_claims.md")
    given = parser.parse_args(arguments)
    before = archived(given.out or RESULTS)
    head = circumstances().replace(f"{Path.cwd()}/", "")
    rows = {name: row for name, row in before.items() if given.names and name in CLAIMS}
    for name in given.names or CLAIMS:
        rows[name] = measured(name)
        ordered = [rows[one] for one in CLAIMS if one in rows]
        page = f"# Claims that take minutes\n\n{head}\n\n{table(HEAD, ordered)}\n"
        if given.out is not None:
            (given.out / "long_claims.md").write_text(page, encoding="utf-8")
    print(page)
    return int(any(row[2] != before.get(name, row)[2] for name, row in rows.items()))


if __name__ == "__main__":
    sys.exit(main())

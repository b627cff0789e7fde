"""The claims that take minutes to measure, with their verdicts.

python -m tests.robustness.long_claims [--out tests/robustness/results]

The gate measures all others (tests/golden, tests/federation/test_projected_claims.py). A test
compares this table with the names below.
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

import reproduction
from benchmarks.common.stopwatch import circumstances, table
from reproduction.checks_000 import CHECKS as PRIRFED
from reproduction.checks_001 import CHECKS as PROJECTED

CLAIMS = {"14": PRIRFED["14"], "CLIENT": PROJECTED["CLIENT"]}
RESULTS = Path(__file__).with_name("results")


def measured_sha256():
    """The SHA-256 of the source of the checks: another one makes the table stale."""
    folder = Path(reproduction.__file__).parent
    files = (folder / "checks_000" / "bounds.py", folder / "checks_001" / "beyond.py")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def main(arguments=None):
    """0 when every claim holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for long_claims.md")
    given = parser.parse_args(arguments)
    circumstance = circumstances().replace(f"{Path.cwd()}/", "")
    head = f"# Claims that take minutes\n\n{circumstance}\n\nSource {measured_sha256()}.\n"
    rows = []
    for name, check in CLAIMS.items():
        began = time.process_time()
        found = check()
        seconds = f"{time.process_time() - began:.0f}"
        rows.append([name, found.claim, found.verdict, str(list(found.seeds)), seconds])
    page = f"{head}\n{table(['check', 'claim', 'verdict', 'seeds', 'CPU seconds'], rows)}\n"
    if given.out is not None:
        (given.out / "long_claims.md").write_text(page, encoding="utf-8")
    print(page)
    return int(any(row[2] != "reproduced" for row in rows))


if __name__ == "__main__":
    sys.exit(main())

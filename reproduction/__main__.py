"""The claims of the papers as numerical checks: what reproduces, in which regime, and what not.

    python -m reproduction 4 C3 H10 [--json]     # checks by name
    python -m reproduction 000 [--json]          # all checks of a paper: 000 to 004

000 is PriRFed (checks 1 to 16), 001 projected federated learning (C3 to C13, EQUAL, STEP, PAIR,
PARTIAL, EXAMPLE, CLIENT), 002 growing samples (002-1 to 002-21, 002-B1, 002-B2), 003 DP-RSVRG (H1
to H22), 004 DECOR (004-H1 to 004-H25). Verdicts are computed from the numbers printed beside them;
docs/experiments.md explains each. Checks 11 and 12 use MNIST and the mammals' embedding where
MANIFED_DATA names a folder that has them, and their stand-ins elsewhere; 004-H17 takes a9a from
there, and 004-H20 needs MNIST. With --json standard output is one JSON document. One thread.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from manifed.runs.run_folder import jsonable
from reproduction import checks_000, checks_001, checks_002, checks_003, checks_004
from reproduction.findings import Finding, text_of

PAPERS: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    "000": checks_000.CHECKS,
    "001": checks_001.CHECKS,
    "002": checks_002.CHECKS,
    "003": checks_003.CHECKS,
    "004": checks_004.CHECKS,
}


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 for bad arguments; a contradicted claim is a finding and no failure."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checks = {name: check for paper in PAPERS.values() for name, check in paper.items()}
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*PAPERS, *checks])
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document alone; words go to standard error",
    )
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    findings: list[dict[str, Any]] = []
    for name in (check for asked in given.names for check in PAPERS.get(asked, [asked])):
        began = time.process_time()
        found = checks[name]()
        seconds = time.process_time() - began
        findings.append(asdict(found) | {"cpu_seconds": seconds})
        words = sys.stderr if given.json else sys.stdout
        words.write(text_of(found, seconds))
        words.flush()
    if given.json:
        sys.stdout.write(json.dumps(jsonable({"checks": findings})) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

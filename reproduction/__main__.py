"""Make the figures of the papers and check their claims.

    python -m reproduction 000-1 [--quick]       # run what is missing of a figure, and draw it
    python -m reproduction 003-3c --only tree    # run the curves with "tree" in their name
    python -m reproduction quickstart --epsilon 4    # run private curves at another epsilon
    python -m reproduction --list [000-1]        # list figures, their titles and what they take
    python -m reproduction 4 C3 H10 [--json]     # check claims by name
    python -m reproduction 000 [--json]          # check all claims of a paper: 000 to 004
    python -m reproduction 004-H18 --seeds 10    # judge a claim over seeds 0 to 9
    python -m reproduction --all --seeds 0-9 --archive docs/experiments/judged.json

Checks: 000 is PriRFed (1 to 20), 001 projected federated learning (C3 to C13, STEP, PAIR, PARTIAL,
EXAMPLE, CLIENT), 002 growing samples (002-1 to 002-21, 002-B1), 003 DP-RSVRG (H1
to H23), 004 DECOR (004-H1 to 004-H29). 002-1 to 002-6 are checks and figures: `figure:002-1` is the
figure. Verdicts are computed from the printed numbers; docs/experiments/judged.md has them. Checks
11 and 12 use MNIST and the mammals' embedding below MANIFED_DATA, or stand-ins; 004-H17 reads a9a
from there, and 004-H20 needs MNIST. Checks use one thread. Finished runs are skipped, and so are
checks that an archive has of the same source and as many seeds; rerun the command to resume.
`python -m reproduction.judged docs/experiments` writes the pages of an archive.
"""

import argparse
import contextlib
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from manifed.errors import ConfigError, one_line
from manifed.runs.folder import jsonable
from reproduction import checks_000, checks_001, checks_002, checks_003, checks_004, judged
from reproduction.figure_files import FIGURES
from reproduction.findings import Finding, text_of

PAPERS: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    "000": checks_000.CHECKS,
    "001": checks_001.CHECKS,
    "002": checks_002.CHECKS,
    "003": checks_003.CHECKS,
    "004": checks_004.CHECKS,
}


def main(argv: Sequence[str] | None = None) -> int:
    """0, 1 for a run that failed, or 2 for bad arguments; a contradicted claim is no failure."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="names of figures, checks or papers"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document to standard output"
    )
    parser.add_argument(
        "--list", action="store_true", help="list figures, titles and what they take"
    )
    parser.add_argument(
        "--all", action="store_true", help="make all figures; with --archive, check all claims"
    )
    parser.add_argument("--quick", action="store_true", help="run a few rounds of one seed")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="parallel runs"
    )
    parser.add_argument(
        "--seeds",
        type=counted,
        help="run so many seeds from 0 on, also as 0-9 (default: those of the figure or check)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="run only curves with this name, a part of it, or a pattern; repeatable",
    )
    parser.add_argument(
        "--epsilon",
        type=positive,
        help="privacy target of the private curves, in place of the figure's own",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=VALUE",
        help="override one value of the configs; repeatable",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="folder for runs and figures"
    )
    parser.add_argument(
        "--archive", type=Path, help="file that checks are written into, one by one"
    )
    given = parser.parse_args(argv)
    known = [path.stem.replace("_", "-") for path in sorted(FIGURES.glob("*.toml"))]
    checks = {name: check for paper in PAPERS.values() for name, check in paper.items()}
    claims = [name for name in given.names if name in checks or name in PAPERS]
    figures = [name.removeprefix("figure:") for name in given.names if name not in claims]
    if given.all and given.archive and not given.names:
        claims = [*PAPERS]
    elif (given.all or given.list) and not given.names:
        figures = known
    if not figures and not claims:
        parser.error("expected figures as 000-1, checks as 4, papers as 000, --all or --list")
    if claims and given.epsilon is not None:
        parser.error("--epsilon changes the runs of figures; a check runs as it is recorded")
    document = {}
    failed = []
    with contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext():
        try:
            if figures:
                failed = _figures(figures, given, document)
        except (ConfigError, OSError) as error:
            sys.stderr.write(f"error: {one_line(str(error), 400)}\n")
            return 2
        if claims:
            torch.set_num_threads(1)
            document["checks"] = [
                _found(check, checks[check], given.seeds, given.archive)
                for name in claims
                for check in PAPERS.get(name, [name])
            ]
    if given.json:
        sys.stdout.write(json.dumps(jsonable(document)) + "\n")
    if failed:
        sys.stderr.write(f"{len(failed)} runs failed; rerun the command to repeat them\n")
    return 1 if failed else 0


def counted(text: str) -> int:
    """A number of seeds of the command line, 10 or 0-9."""
    last = text.removeprefix("0-")
    count = int(last) + (last != text) if last.isdecimal() else 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected a number as 10, or 0-9, got {text!r}")
    return count


def positive(text: str) -> float:
    """A positive number of the command line."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return number


def _figures(
    names: Sequence[str], given: argparse.Namespace, document: dict[str, Any]
) -> list[str]:
    from reproduction.figures import Asked, listed, reproduce

    if given.list:
        document["figures"] = listed(names)
        for one in document["figures"]:
            takes = {
                "data": ", ".join(data.rpartition(":")[2] for data in one["data"]),
                "checks": " ".join(one["checks"]),
            }
            more = "".join(f"; {what}: {names}" for what, names in takes.items() if names)
            print(f"{one['figure']:22}{one['title']}")
            print(f"{'':22}{one['runs']} runs, {one['rounds']} rounds{more}")
        return []
    asked = Asked(
        given.out, given.seeds, tuple(given.only), tuple(given.set), given.quick, given.epsilon
    )
    drawn, failed = reproduce(names, asked, max(1, given.jobs))
    document["figures"] = {name: [str(path) for path in paths] for name, paths in drawn.items()}
    document["failed"] = failed
    return failed


def _found(
    name: str, check: Callable[..., Finding], seeds: int | None, archive: Path | None
) -> dict[str, Any]:
    """What a check found, taken from an archive that has it of the same source."""
    drawn = range(seeds or 0) if "seeds" in inspect.signature(check).parameters else ()
    source = judged.source_of(check)
    known = judged.archived(archive).get(name, {})
    if known.get("source") == source and len(known["seeds"]) >= len(drawn):
        sys.stdout.write(f"check {name}: {known['verdict'].upper()} (archived {known['date']})\n")
        return known
    began = time.process_time()
    found = check(seeds=drawn) if drawn else check()
    seconds = time.process_time() - began
    sys.stdout.write(text_of(name, found, seconds))
    sys.stdout.flush()
    document = {
        "check": name,
        "claim": found.claim,
        "verdict": found.verdict,
        "numbers": found.numbers,
        "seeds": found.seeds,
        "remark": found.remark,
        "cpu_seconds": seconds,
        "parts": {part.claim: part.numbers for part in found.parts},
        "source": source,
    }
    if archive:
        judged.archive(archive, document)
    return document


if __name__ == "__main__":
    sys.exit(main())

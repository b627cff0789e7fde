"""Plant every fault of catalogue.toml, one at a time, and see that the tests named beside it fail.

    python tests/mutants/sweep.py [NAME ...] [--workers 2] [--json]

A fault is a text replaced by another in one file of a copy of this checkout. It is caught when at
least one of its tests fails there; a run that ends otherwise (no test found, a syntax error, out of
time) is not. The same tests must pass on an unchanged copy first, or nothing is proved.
"""

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.toml")
SECONDS = 180.0
"""What one run of a fault's tests may take."""
AT_ONCE = 6
"""Files and tests of one run on the unchanged copy: they share what they import."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}


@dataclass(frozen=True)
class Fault:
    """One planted fault and the tests that must see it."""

    name: str
    where: str
    """Sensitivity, clipping, noise, sampling, composition, calibration, ledger, ..."""
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def places(self, tree: Path) -> int:
        """How often ``before`` stands in the file: once, or the catalogue is stale."""
        path = tree / self.file
        return path.read_text(encoding="utf-8").count(self.before) if path.is_file() else 0


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a fault."""

    fault: Fault
    is_caught: bool
    seconds: float
    said: str


def catalogue(path: Path = CATALOGUE) -> tuple[Fault, ...]:
    """All faults, in order."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(Fault(**(row | {"tests": tuple(row["tests"])})) for row in table["fault"])


def copy_tree(source: Path, target: Path) -> None:
    """The files of a checkout that git knows or would know."""
    listed = subprocess.run(
        ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def run(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """The exit code of these tests in a copy, and their last line."""
    paths = os.pathsep.join([str(tree), str(tree / "extras")])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=os.environ | ENVIRONMENT | {"PYTHONPATH": paths},
            timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return PASSED, f"no end within {SECONDS:g} s"
    lines = done.stdout.splitlines()
    said = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, (said or lines or ["it said nothing"])[-1]


def judge(fault: Fault, number: int, trees: "queue.SimpleQueue[Path]") -> Outcome:
    """Plant one fault in a copy, run its tests there, and put the sound text back."""
    began, tree = time.monotonic(), trees.get()
    path = tree / fault.file
    sound = path.read_text(encoding="utf-8")
    try:
        path.write_text(sound.replace(fault.before, fault.after), encoding="utf-8")
        os.utime(path, (number, number))  # a time of its own, so that no other's bytecode fits
        code, said = run(tree, fault.tests)
    finally:
        shutil.copy2(ROOT / fault.file, path)
        trees.put(tree)
    return Outcome(fault, code == FAILED, time.monotonic() - began, said)


def unsound(tests: Sequence[str], trees: "queue.SimpleQueue[Path]") -> str | None:
    """What the tests say that do not pass without a fault; None where they do."""
    tree = trees.get()
    code, said = run(tree, tests)
    trees.put(tree)
    return None if code == PASSED else f"exit code {code}: {said}"


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every fault was caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    faults = [f for f in catalogue() if not given.names or f.name in given.names]
    if unknown := set(given.names) - {f.name for f in faults}:
        print(f"error: expected names out of {CATALOGUE.name}, got {sorted(unknown)}")
        return 2
    stale = [f"{f.name} ({f.file}: {n} places)" for f in faults if (n := f.places(ROOT)) != 1]
    if stale:
        print(f"error: expected every text to change exactly once, got {'; '.join(stale)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="manifed-faults-") as name:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for i in range(given.workers):
            copy_tree(ROOT, Path(name) / str(i))
            trees.put(Path(name) / str(i))
        with ThreadPoolExecutor(given.workers) as pool:
            tests = sorted({test for fault in faults for test in fault.tests})
            parts = [tests[i : i + AT_ONCE] for i in range(0, len(tests), AT_ONCE)]
            for said in pool.map(lambda part: unsound(part, trees), parts):
                if said is not None:
                    print(f"error: the tests must pass without a fault first, got {said}")
                    return 2
            outcomes: list[Outcome] = []
            numbers = range(1, len(faults) + 1)
            for outcome in pool.map(lambda f, n: judge(f, n, trees), faults, numbers):
                outcomes.append(outcome)
                verdict = "caught" if outcome.is_caught else "MISSED"
                fault = outcome.fault
                print(f"{verdict}  {outcome.seconds:6.1f} s  {fault.where:12s} {fault.name}")
                if not outcome.is_caught:
                    print(f"        {outcome.said}")
                sys.stdout.flush()
    caught = sum(outcome.is_caught for outcome in outcomes)
    if given.json:
        missed = [outcome.fault.name for outcome in outcomes if not outcome.is_caught]
        print(json.dumps({"faults": len(faults), "caught": caught, "missed": missed}))
    print(f"caught {caught} of {len(faults)}")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())

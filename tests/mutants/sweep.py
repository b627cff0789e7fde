"""Plant every fault of catalogue.toml, one at a time, and see that the tests named beside it fail.

    python tests/mutants/sweep.py [NAME ...] [--workers 2] [--json]

A fault is a text replaced by another in one file of a copy of this checkout. It is caught when at
least one of its tests fails there; a run that ends otherwise (no test found, a syntax error, out of
time) is not. The same tests must pass on the unchanged copy first, or nothing is proved.
"""

import argparse
import json
import os
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
TESTS_FAILED = 1
"""pytest's exit code for tests that ran and failed."""


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

    def plant(self, tree: Path) -> None:
        """Change the one file of ``tree``."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        path.unlink()  # the copy shares its files with the other copies
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")


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


def run_tests(tree: Path, tests: Sequence[str], *more: str) -> tuple[int, str]:
    """pytest's exit code and its last line; 124 when it ran out of time."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    environment |= {"PYTHONPATH": str(tree)}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, *tests]
    try:
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, timeout=SECONDS, cwd=tree,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"no end within {SECONDS:g} s"
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, (said or done.stdout.splitlines() or [done.stderr[-200:]])[-1]


def judge(fault: Fault, sound: Path) -> Outcome:
    """Plant one fault in a copy of its own and run its tests there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="manifed-fault-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(sound, tree, copy_function=os.link)
        fault.plant(tree)
        code, said = run_tests(tree, fault.tests, "-x")
    return Outcome(fault, code == TESTS_FAILED, time.monotonic() - began, said)


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
    with tempfile.TemporaryDirectory(prefix="manifed-sound-") as folder:
        sound = Path(folder)
        copy_tree(ROOT, sound)
        stale = [f"{f.name} ({f.file}: {n} places)" for f in faults if (n := f.places(sound)) != 1]
        if stale:
            print(f"error: expected every text to change exactly once, got {'; '.join(stale)}")
            return 2
        tests = sorted({test for fault in faults for test in fault.tests})
        code, said = run_tests(sound, tests, "-n", str(given.workers))
        if code != 0:
            print(f"error: the tests must pass without a fault first, got {said}")
            return 2
        with ThreadPoolExecutor(given.workers) as pool:
            outcomes: list[Outcome] = []
            for outcome in pool.map(lambda fault: judge(fault, sound), faults):
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

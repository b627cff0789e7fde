"""Plant every fault of catalogue.toml, one at a time, and see that the tests named beside it fail.

    python tests/mutants/sweep.py [NAME ...] [--workers 2] [--json] [--proved] [--new] [--record]

A fault is a text replaced by another in one file of a copy of this checkout. It is caught when at
least one of its tests fails there; a run that ends otherwise (no test found, a syntax error, out of
time) is not. The same tests must pass on an unchanged copy first, or nothing is proved.

caught.json holds the hash of each fault that was caught, of the file that it changes and of its
tests' files. With ``--new`` what that table holds is left out, but for a sixth of all faults each
week of the year; ``--record`` writes it.

Every run is a fresh child of one server process that has imported what is not ours (torch takes
longer than most of the tests) and nothing of the checkout; the runs on the unchanged copy too.
"""

import argparse
import datetime
import gc
import hashlib
import json
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.toml")
CAUGHT = Path(__file__).with_name("caught.json")
SECONDS = 180.0
"""What one run of a fault's tests may take."""
AT_ONCE = 4
"""Files and tests of one run on the unchanged copy: they share what they import."""
VERDICT = 100
"""Added to pytest's exit codes, so that no process that ends otherwise gives one."""
PASSED = VERDICT
FAILED = VERDICT + 1
NOT_OURS = (
    "pytest", "numpy", "scipy.linalg", "scipy.optimize", "scipy.special",
    "scipy.stats", "torch", "torch._dynamo.compiled_autograd", "geoopt", "pydantic",
    "safetensors.torch", "networkx", "sklearn",
    "dp_accounting", "cryptography.x509", "typer", "rich.progress", "flwr.serverapp",
    "flwr.clientapp", "matplotlib.figure", "hypothesis", "hypothesis.stateful",
    "hypothesis.internal.conjecture.engine",
    *(f"_pytest.{name}" for name in (
        "cacheprovider", "capture", "debugging", "doctest", "faulthandler", "fixtures", "junitxml",
        "legacypath", "logging", "mark", "monkeypatch", "pastebin", "pytester", "python",
        "reports", "runner", "setuponly", "setupplan", "skipping", "stepwise", "subtests",
        "terminal", "threadexception", "tmpdir", "unittest", "unraisableexception", "warnings",
    )),
)  # fmt: skip
"""What the server process imports once."""
OURS = {"app", "benchmarks", "clients", "extras", "manifed", "manifed_extras", "reproduction",
        "strategies", "tests"}  # fmt: skip
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

    def places(self, tree):
        """How often ``before`` stands in the file: once, or the catalogue is stale."""
        path = tree / self.file
        return path.read_text(encoding="utf-8").count(self.before) if path.is_file() else 0

    def digest(self):
        """The beginning of the SHA-256 of the fault, of the file it changes and of its tests."""
        files = [self.file, *(test.split("::")[0] for test in self.tests)]
        read = [(ROOT / file).read_bytes() for file in files]
        entry = repr((self.before, self.after, self.file, self.tests)).encode()
        return hashlib.sha256(b"".join([entry, *read])).hexdigest()[:16]

    def plant(self, tree, number):
        """Change the one file of ``tree``; its time is its own, so no other's bytecode fits it."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        path.unlink()  # the copy shares its files with the other copies
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")
        os.utime(path, (number, number))


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a fault."""

    fault: Fault
    is_caught: bool
    seconds: float
    said: str


def catalogue(path=CATALOGUE):
    """All faults, in order."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(Fault(**(row | {"tests": tuple(row["tests"])})) for row in table["fault"])


def recorded():
    """The hash of each fault when it was caught, by name."""
    return json.loads(CAUGHT.read_text(encoding="utf-8")) if CAUGHT.is_file() else {}


def is_due(number, fault, known):
    """Whether a fault is planted: it is not among the ``known``, or this is its week of six."""
    week = datetime.datetime.now(datetime.UTC).isocalendar().week
    return number % 6 == week % 6 or known.get(fault.name) != fault.digest()


def copy_tree(source, target):
    """The files of a checkout that git knows or would know."""
    listed = subprocess.run(
        ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


@dataclass(frozen=True)
class Benches:
    """The places where trees are tested: as many runs at a time as there are benches.

    A tree stays on its path, so that what no fault changed is compiled once; after every run it
    gets back what differs from the sound one.
    """

    folder: Path
    sound: Path
    free: queue.SimpleQueue[Path] = field(default_factory=queue.SimpleQueue)

    @contextmanager
    def tree(self):
        """A copy of the sound tree; it shares its files, so that a change replaces one."""
        bench = self.free.get()
        if not bench.exists():
            shutil.copytree(self.sound, bench / "tree", copy_function=os.link)
        try:
            yield bench / "tree"
        finally:
            self._mend(bench)
            self.free.put(bench)

    def _mend(self, bench):
        shutil.rmtree(bench / "scratch", ignore_errors=True)
        (bench / "log").unlink(missing_ok=True)
        of = [_files(top) for top in (self.sound, bench / "tree")]
        for name in {name for name, _ in of[0].items() ^ of[1].items()}:
            (bench / "tree" / name).unlink(missing_ok=True)
            if name in of[0]:
                os.link(self.sound / name, bench / "tree" / name)

    def run(self, tree, tests):
        """The exit code (pytest's and ``VERDICT``, or what it ended with) and the last line."""
        log = tree.parent / "log"
        context = multiprocessing.get_context("forkserver")
        process = context.Process(
            target=run_in, args=(tree, self.folder / "bytecode", log, tests), daemon=False
        )
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
            return 0, f"no end within {SECONDS:g} s"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return process.exitcode or 0, (said or lines or ["it said nothing"])[-1]


def _files(top):
    """The number of each file below a folder, by name: copies that share a file have its number."""
    found = {}
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = os.lstat(path).st_ino
    return found


def run_in(tree, bytecode, log, tests):
    """In a process of its own, which has imported nothing of the checkout: pytest in ``tree``."""
    if ours := {name.split(".")[0] for name in sys.modules} & OURS:
        sys.exit(f"error: expected a process without the checkout's modules, got {sorted(ours)}")
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(bytecode)}
    sys.pycache_prefix = str(bytecode)
    gc.freeze()  # what the server imported is not looked through again, nor copied for that
    os.chdir(tree)
    sys.path[:] = [
        str(tree),
        str(tree / "extras"),
        *(p for p in sys.path if p != str(CATALOGUE.parent)),
    ]
    import pytest

    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = ["-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
    scratch = f"--basetemp={log.with_name('scratch')}"  # gone with the bench
    sys.exit(VERDICT + pytest.main(["-q", "-x", *plugins, scratch, *tests]))


def judge(fault, number, benches):
    """Plant one fault in a copy of its own and run its tests there."""
    began = time.monotonic()
    with benches.tree() as tree:
        fault.plant(tree, number)
        code, said = benches.run(tree, fault.tests)
    return Outcome(fault, code == FAILED, time.monotonic() - began, said)


def pass_unchanged(tests, benches):
    """None, or what the tests say that do not pass without a fault."""
    with benches.tree() as tree:
        code, said = benches.run(tree, tests)
    return None if code == PASSED else f"exit code {code}: {said}"


def main(argv=None):
    """0 when every fault was caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--proved", action="store_true", help="the same tests have just passed on this checkout"
    )
    parser.add_argument("--new", action="store_true", help="not those that caught.json holds")
    parser.add_argument("--record", action="store_true", help="write caught.json")
    given = parser.parse_args(argv)
    faults = [f for f in catalogue() if not given.names or f.name in given.names]
    if given.new:
        known = recorded()
        faults = [fault for number, fault in enumerate(faults) if is_due(number, fault, known)]
    if unknown := set(given.names) - {f.name for f in faults}:
        print(f"error: expected names out of {CATALOGUE.name}, got {sorted(unknown)}")
        return 2
    os.environ |= ENVIRONMENT
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(NOT_OURS))
    with tempfile.TemporaryDirectory(prefix="manifed-faults-") as name:
        benches = Benches(Path(name), Path(name) / "sound")
        copy_tree(ROOT, benches.sound)
        stale = [
            f"{f.name} ({f.file}: {n} places)"
            for f in faults
            if (n := f.places(benches.sound)) != 1
        ]
        if stale:
            print(f"error: expected every text to change exactly once, got {'; '.join(stale)}")
            return 2
        for i in range(given.workers):
            benches.free.put(Path(name) / f"bench-{i}")
        with ThreadPoolExecutor(given.workers) as pool:
            tests = [] if given.proved else sorted({test for f in faults for test in f.tests})
            parts = [tests[i : i + AT_ONCE] for i in range(0, len(tests), AT_ONCE)]
            for said in pool.map(lambda part: pass_unchanged(part, benches), parts):
                if said is not None:
                    print(f"error: the tests must pass without a fault first, got {said}")
                    return 2
            outcomes = []
            numbers = range(1, len(faults) + 1)
            for outcome in pool.map(lambda f, n: judge(f, n, benches), faults, numbers):
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
    if given.record:
        names = {fault.name for fault in catalogue()}
        table = {name: digest for name, digest in recorded().items() if name in names}
        table |= {one.fault.name: one.fault.digest() for one in outcomes if one.is_caught}
        CAUGHT.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(f"caught {caught} of {len(faults)}")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())

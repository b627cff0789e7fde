"""What it costs a private round that no record's bits depend on the rows beside it.

    python benchmarks/isolation.py [--before CHECKOUT] [--only TEXT] [--json]
    python benchmarks/isolation.py --before CHECKOUT --out benchmarks/results/isolation.md

Private rounds of this checkout over those of 079a114, the commit before isolation (--before names
a checkout of it; without it one is unpacked). Each side is a process with the modules of its own
checkout. They take turns of equally many rounds on one core, with the same seeds and so batches.
Processor time on one thread, with noise and ledger; medians of the turns, and their ratio.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np

from benchmarks.common.stopwatch import circumstances, table

Table = dict[str, Any]
Work = Callable[[], object]
Ask = Callable[[object], float]
Case = tuple[str, str]  # its name, and its batch size

ROOT = Path(__file__).resolve().parents[1]
BEFORE, BOUND, TURN = "079a114", 1.15, 0.05
SIDE = "--side"  # the argument of a process that is one of the two sides
THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
NOISE = {"l2_norm_clip": 1.0, "noise": {"kind": "multiplier", "noise_multiplier": 5.0}}


# -- cases -----------------------------------------------------------------------------------
def experiments() -> dict[Case, Table]:
    """What the cohort engine runs; a batch of 0 is a full one."""
    found: dict[Case, Table] = {}

    def add(
        name: str, problem: Table, data: Table, clients: int, rows: int,
        batches: tuple[int, ...] = (0,), training: str = "rsgd", level: str = "example-level",
        steps: int = 10,
    ) -> None:  # fmt: skip
        for batch in batches:
            told = str(batch) if batch else f"{rows}, full"
            size = {"kind": "poisson", "batch_size": batch} if batch else {"kind": "full"}
            found[f"{name}, {clients} clients x {rows} rows", told] = {
                "name": "isolation", "problem": problem, "data": data,
                "federation": {"num_clients": clients, "num_rounds": 1_000_000},
                "training": {
                    "kind": training, "step_size": 0.05, "minibatch": size,
                    "inner_steps" if training == "rsvrg" else "local_steps": steps,
                },
                "privacy": {"kind": level, "delta": 1e-5, **NOISE},
                "evaluation": {"is_enabled": False}, "engine": {"execution": "cohort"},
                "output": {"plots": False, "plain": True, "quiet": True, "checkpoint_every": 1000},
            }  # fmt: skip

    squares, digits = {"kind": "least-squares"}, {"kind": "digits"}
    for d, n, batches in ((10, 1000, (0, 8)), (10, 10, (0,)), (200, 1000, (0,)), (200, 10, (0,))):
        rows = {"kind": "synthetic-least-squares", "dimension": d, "num_clients": n}
        add(f"least squares d = {d}", squares, rows, n, 20, batches)
    rows = {"kind": "synthetic-least-squares", "num_clients": 100}
    add("client level, least squares d = 10", squares, rows, 100, 20, level="client-level")
    rows = {"kind": "synthetic-logistic", "num_examples": 60_000}
    add("logistic d = 30", {"kind": "logistic"}, rows, 100, 600, (0, 64))
    for problem in ({"kind": "principal-eigenvector"}, {"kind": "kpca", "num_components": 5}):
        for training in ("rsgd", "rsvrg"):
            name = f"digits, {problem['kind']}, {training}"
            add(name, problem, digits, 10, 179, (0, 32), training=training)
    labelled, mlp = digits | {"has_labels": True}, {"kind": "mlp", "hidden": 64, "num_classes": 10}
    add("digits, built-in MLP 64-64-10", mlp, labelled, 10, 179, (64,))
    add("digits, built-in MLP 64-64-10", mlp, labelled, 100, 17, (8,))
    cnn = {"kind": "module", "model": "benchmarks.modules:cnn"}
    add("digits, CNN of modules.py, 3 steps", cnn, labelled, 10, 179, (64,), steps=3)
    matrices = {"kind": "spd-lognormal", "num_examples": 2000}
    add("SPD mean 10 x 10", {"kind": "frechet-mean"}, matrices, 100, 20, (0, 8))
    return found


NETWORKS = {
    (f"digits, {of} of modules.py, 1 client x 1797 rows, {kind}", str(batch)): (of, kind, batch)
    for of in ("MLP", "CNN")
    for kind in ("float32", "float64")
    for batch in (16, 64, 256)
}
"""One client update of a torch module, as benchmarks/modules.py times it."""


def dense_logistic(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Thirty normal columns and labels of ±1, in the place of a9a's 123 binary columns."""
    features = generator.normal(size=(count, 30)) / 30**0.5
    return features, np.where(generator.random(count) < 0.5, 1, -1)


# -- one side --------------------------------------------------------------------------------
def work_of(case: Case, folder: Path, held: contextlib.ExitStack) -> Work:
    """The next private round of a case, by the modules of this side."""
    if case not in NETWORKS:
        from benchmarks.engines import stepper
        from manifed.experiment.load import parse

        with patch("manifed.problems.synthetic.one_hot_logistic", dense_logistic):
            return stepper(parse(experiments()[case]), folder, held)
    from benchmarks import modules
    from manifed.problems.module_spec import made

    network, dtype, batch = NETWORKS[case]
    model = made(modules.cnn if network == "CNN" else lambda: modules.mlp(64, 64), 0)
    held.enter_context(patch.object(modules, "BATCH", batch))
    return modules.ours(model, modules.digits(), modules.TYPES[dtype], 10)


def serve() -> None:
    """Do what each line of the input says: make a case ready, or run so many rounds of it."""
    import torch

    import manifed

    if not Path(str(manifed.__file__)).is_relative_to(os.environ["PYTHONPATH"]):
        raise SystemExit(f"Expected manifed of {os.environ['PYTHONPATH']}, got {manifed.__file__}.")
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    work: Work | None = None
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as held:
        for number, line in enumerate(sys.stdin):
            asked = json.loads(line)
            if isinstance(asked, list):
                held.close()
                (folder := Path(root, str(number))).mkdir()
                work, asked = work_of((asked[0], asked[1]), folder, held), 3
            assert work is not None
            began = time.process_time()
            for _ in range(asked):
                work()
            print(json.dumps((time.process_time() - began) / asked), file=answers, flush=True)


# -- both sides ------------------------------------------------------------------------------
@contextlib.contextmanager
def side(checkout: Path) -> Generator[Ask, None, None]:
    """Asks a process with the modules of a checkout, and gives its seconds of a round."""
    environment = {**os.environ, **THREADS, "PYTHONPATH": str(checkout.resolve())}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), SIDE],
        env=environment, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        given, answers = cast(Any, process.stdin), cast(Any, process.stdout)

        def ask(what: object) -> float:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(what), file=given, flush=True)
            if not (line := answers.readline()):
                raise SystemExit(f"{checkout}: its process ended at {what}; why stands above.")
            return float(json.loads(line))

        yield ask


def race(asks: list[Ask], case: Case, runs: int) -> tuple[float, float]:
    """Median seconds of a round before and after."""
    for ask in asks:
        ask(case)  # and its first rounds, which also load libraries and try models out
    rounds = max(1, int(TURN / max(ask(3) for ask in asks)))
    turns = [[ask(rounds) for ask in asks] for _ in range(runs)]
    before, after = (statistics.median(seconds) for seconds in zip(*turns, strict=True))
    return before, after


def main() -> None:
    """Print the table; with --json the ratios as the last line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help=f"a checkout of commit {BEFORE}")
    parser.add_argument("--only", default="", help="the cases whose name has this text")
    parser.add_argument("--runs", type=int, default=31, help="turns of each side")
    parser.add_argument("--out", type=Path, help="the file that the table is written to")
    parser.add_argument("--json", action="store_true")
    given, found = parser.parse_args(), {}
    if hasattr(os, "sched_setaffinity"):  # where one core is busier, both sides are on it
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with contextlib.ExitStack() as held:
        before = given.before or Path(held.enter_context(tempfile.TemporaryDirectory()))
        if given.before is None:
            unpack = f"git -C '{ROOT}' archive {BEFORE} | tar -x -C '{before}'"
            if subprocess.run(["bash", "-o", "pipefail", "-c", unpack], check=False).returncode:
                parser.error(f"--before: expected a checkout, for this clone has no {BEFORE}")
        asks = [held.enter_context(side(checkout)) for checkout in (before, ROOT)]
        for case in [c for c in (*experiments(), *NETWORKS) if given.only in c[0]]:
            found[case] = race(asks, case, given.runs)
            print(f"{found[case][1] / found[case][0]:.2f} {case}", file=sys.stderr, flush=True)
    rows = [
        [*case, f"{first * 1e3:.3g}", f"{second * 1e3:.3g}", f"{second / first:.2f}"]
        for case, (first, second) in found.items()
    ]
    page = (
        f"# What isolation costs a private round\n\n{circumstances()}\n\nProcessor time of a round "
        f"on one thread, medians of {given.runs} turns of each side. Before: commit {BEFORE}. A "
        "batch is what a local step of one client takes (Poisson: expects). Ten local steps a "
        "round, where nothing else is said.\n\n"
        f"{table(['case', 'batch', 'before ms', 'after ms', 'ratio'], rows)}\n\n"
        f"{sum(b > BOUND * a for a, b in found.values())} of {len(rows)} are above {BOUND}.\n"
    )
    print(page)
    if given.out is not None:
        given.out.write_text(page, encoding="utf-8")
    if given.json:
        print(json.dumps({", batch ".join(row[:2]): float(row[-1]) for row in rows}))


if __name__ == "__main__":
    serve() if SIDE in sys.argv[1:] else main()

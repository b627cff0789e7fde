"""400 crashed runs: at every call that changes files, gone on with, and compared with the truth.

python -m tests.robustness.kills [--out tests/robustness/results] [--trials 400]

A run is killed (SIGKILL) before, half-way through or after each of its writes, renames, fsyncs,
truncations, links and unlinks, or finds the disk full there; trials beyond that crash twice, also
while the run is being gone on with. Each is gone on with as a user would (`--resume`, or the
command again where nothing had begun). An anomaly is any of: a continuation that fails, a round
with no row or two, a file that does not belong there, an update released that the ledger does not
count, a final model that differs by one bit from an uninterrupted run of the same attempts, or
more rounds paid again than the checkpoints allow.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.common.stopwatch import circumstances, table
from tests.robustness.crash_points import Case, Trial, attempt, crashes_of, points, warm_up

PROJECT = Path(__file__).resolve().parents[2]
SMALL = (
    "federation.num_clients=3",
    "federation.num_rounds=3",
    "federation.cohort={kind='fixed-size',cohort_size=2}",
    "evaluation.is_enabled=false",
)
CASES = (
    Case(
        "example-level privacy, checkpoint every round",
        (*SMALL, "output.checkpoint_every=1", "privacy.delta=1e-5",
         "privacy.noise={kind='multiplier',noise_multiplier=5.0}"),
        most_redone=1,
    ),
    Case(
        "no privacy, checkpoint every second round",
        (*SMALL, "output.checkpoint_every=2", "privacy={kind='none'}"),
        most_redone=0,
    ),
)  # fmt: skip


_EARLY = 30
"""The second crash of a pair is among the first calls, which a resumed part makes too."""


def trials_of(names, count):
    """``count`` trials as (case, crashes): every single crash first, then seeded pairs."""
    single = [(i, (crash,)) for i, calls in enumerate(names) for crash in crashes_of(calls)]
    draw = random.Random(0)
    if len(single) > count:
        return sorted(draw.sample(single, count), key=single.index)
    pairs = []
    for _ in range(count - len(single)):
        i = draw.randrange(len(names))
        first = draw.choice(list(crashes_of(names[i])))
        again = draw.choice(list(crashes_of(names[i][:_EARLY])))
        pairs.append((i, (first, again)))
    return single + pairs


def report(trials, names, head):
    """The page: one row for each case, way and call."""
    counts = Counter()
    wrong = Counter()
    for case, trial in trials:
        mode = trial.crashes[0].mode if len(trial.crashes) == 1 else "two crashes"
        at = trial.at[0] if len(trial.crashes) == 1 and trial.at else "any"
        counts[case, mode, at] += 1
        wrong[case, mode, at] += bool(trial.findings)
    rows = [[*key, str(n), str(wrong[key])] for key, n in sorted(counts.items())]
    bad = [f"- {case}, {trial.crashes}: {'; '.join(trial.findings)}"
           for case, trial in trials if trial.findings]  # fmt: skip
    return "\n".join([
        head,
        f"{len(trials)} runs, {sum(len(t.at) for _, t in trials)} crashes in them, "
        f"{' and '.join(str(len(calls)) for calls in names)} crash points; "
        f"**{len(bad)} anomalies**.\n",
        table(["case", "crash", "at", "runs", "anomalies"], rows),
        "",
        *bad,
    ]).rstrip() + "\n"  # fmt: skip


def main(arguments=None):
    """0 when no run showed an anomaly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for kills.md")
    parser.add_argument("--trials", type=int, default=400)
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    done = list[tuple[str, Trial]]()
    circumstance = circumstances().replace(f"{PROJECT}/", "")
    with tempfile.TemporaryDirectory(prefix="manifed-kills-") as root:
        for i, case in enumerate(CASES):
            warm_up(case, Path(root) / f"warm-{i}")
        names = [points(case, Path(root) / f"points-{i}") for i, case in enumerate(CASES)]
        for number, (i, crashes) in enumerate(trials_of(names, given.trials)):
            trial = attempt(CASES[i], Path(root) / f"trial-{number}", crashes)
            done.append((CASES[i].name, trial))
    head = f"# Crashed runs\n\n{circumstance}\n\n{time.perf_counter() - began:.0f} s.\n"
    page = report(done, names, head)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "kills.md").write_text(page, encoding="utf-8")
    print(page)
    return int(any(trial.findings for _, trial in done))


if __name__ == "__main__":
    sys.exit(main())

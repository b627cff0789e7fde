"""The command ``manifed sweep``: a config over some values and seeds, a run folder and a row each.

OUT/step_size=0.1-seed-0/   a run folder (runs/folder.py)
OUT/sweep.csv               one row a run, written when the last one ended
OUT/*.png                   one curve a setting, named by what was set

A finished run of the same resolved config is kept, an unfinished one is resumed, and a folder of
another config is refused before any run: whoever is interrupted goes on by the same command.
"""

import csv
import hashlib
import io
import math
import os
import re
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import chain, product
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from manifed.cli.launch import Request, RunEnded, check_parts, launch, outcome, unexpected
from manifed.cli.options import fail, print_json
from manifed.durable import write_atomically
from manifed.errors import ConfigError, one_line
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment, sha256
from manifed.runs.evidence import evidence_of, experiment_in, refused
from manifed.runs.folder import RunFolder, is_fresh, with_label
from manifed.runs.interrupt import Ended, ending_signals
from manifed.runs.places import check_new, real
from manifed.runs.report import Curve, Run, read, write_figures
from manifed.runs.statement import label_in_manifest

MEASURES = ("relative_cost_gap", "held_out_accuracy", "held_out_loss", "accuracy", "cost")
"""What a table compares unless it is told, the first that all runs have measured."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep, with what is set in its setting alone, as written."""

    directory: Path
    request: Request
    config: Experiment
    setting: dict[str, str]

    @property
    def is_finished(self) -> bool:
        """Whether its folder holds the whole run."""
        folder = RunFolder(self.directory)
        return folder.manifest_path.is_file() and "final" in folder.manifest()

    @property
    def label(self) -> str:
        """``step_size=0.1, clip=2``: what a legend and a table call the setting."""
        words = [name + "=" + value.strip('"') for name, value in self.setting.items()]
        return ", ".join(words) or self.config.name


def sweep(
    path: Path,
    sets: Sequence[str],
    seeds: str,
    jobs: int,
    out: Path | None,
    measure: str | None,
    *,
    as_json: bool,
) -> None:
    """The command, whose options `manifed.cli.commands.sweep` explains."""
    folder = real("--out", out or Path("runs") / f"sweep-{path.stem}")
    trials = trials_of(path, sets, seeds_of(seeds), folder)
    for trial in {trial.label: trial for trial in trials}.values():
        check_parts(trial.config)
    check_new("--out", folder)
    again = f"the same command goes on: {shlex.join(['manifed', *sys.argv[1:]])}"
    failed = list[Trial]()
    try:
        for k, (trial, error) in enumerate(run_all(trials, jobs), start=1):
            failed += [trial] if error else []
            state = f"FAILED: {error}" if error else "done"
            sys.stderr.write(f"{k}/{len(trials)} {trial.directory.name}: {state}\n")
    except Ended as end:
        fail(f"interrupted; {again}", end.code)
    except BrokenProcessPool:
        fail(f"a process died with its run; {again}", 1)
    if len(failed) == len(trials):
        fail(f"all {len(trials)} runs failed; their folders are in {folder}", 1)
    runs = [(trial, read(trial.directory)) for trial in trials if trial not in failed]
    groups: dict[str, list[Run]] = {}
    for trial, run in runs:
        groups.setdefault(trial.label, []).append(run)
    column, rows = rows_of(groups, measure)
    cells = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    widths = [max(map(len, one)) for one in zip(rows[0], *cells, strict=True)]
    lines = [column, *("  ".join(map(str.ljust, one, widths)) for one in [rows[0], *cells])]
    if any(trial.config.privacy.kind != "none" for trial in trials):
        lines.append(
            "privacy: each run's statement prices that run alone. The search is not accounted: to "
            f"choose among these {len(trials)} runs on private data, or to show them, costs more "
            "than one of them. Search on public data."
        )
    curves = [Curve(label, group) for label, group in groups.items()]
    lines += map(str, [write_csv(runs, folder), *write_figures(curves, folder)])
    sys.stdout.write("\n".join(lines) + "\n")
    if as_json:
        print_json(
            {
                "label": " / ".join(sorted({row["privacy"] for row in rows})),
                "measure": column,
                "rows": rows,
                "failed": [trial.directory.name for trial in failed],
                "directory": folder,
            }
        )
    if failed:
        fail(f"{len(failed)} of {len(trials)} runs failed; {again}", 1)


def values_of(override: str) -> list[str]:
    """The overrides that ``A.B=1,2`` stands for; commas in brackets and quotes part nothing.

    >>> values_of("training.step_size=0.1,0.5")
    ['training.step_size=0.1', 'training.step_size=0.5']

    Raises:
        ConfigError: no ``=``, an empty value, or a value twice.
    """
    key, separator, text = override.partition("=")
    outside = r',(?![^\[{]*[\]}])(?=(?:[^"]*"[^"]*")*[^"]*$)'  # of brackets and of quotes
    found = [part.strip() for part in re.split(outside, text)]
    if not (separator and all(found)) or len(set(found)) < len(found):
        raise ConfigError(f"--set: expected A.B=VALUE[,OTHER VALUE...], got {override!r}")
    return [f"{key.strip()}={part}" for part in found]


def seeds_of(text: str) -> list[int]:
    """The seeds of ``0-4`` or ``1,7,9-11``, in order.

    Raises:
        ConfigError: anything else, a seed twice, or more than 10 000.
    """
    parts = [re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part) for part in text.split(",")]
    ends = [(int(one[1]), int(one[2] or one[1])) if one else (1, 0) for one in parts]
    if all(0 <= last - first < 10_000 for first, last in ends):
        found = [seed for first, last in ends for seed in range(first, last + 1)]
        if len(set(found)) == len(found):
            return found
    raise ConfigError(
        f"--seeds: expected seeds like 0-4 or 1,7,9-11, every seed once, got {text!r}"
    )


def trials_of(path: Path, sets: Sequence[str], seeds: Sequence[int], out: Path) -> list[Trial]:
    """All runs of a sweep, settings outside and seeds inside, each checked; nothing is written.

    Raises:
        ConfigError: a setting that is no config, more than 10 000 runs, one key twice, or a folder
            under ``out`` that holds another run.
    """
    grid = {values[0].partition("=")[0]: values for values in map(values_of, sets)}
    if len(grid) < len(sets):
        raise ConfigError("--set: expected every key once, its values parted by commas")
    if "federation.seed" in grid:
        raise ConfigError("--set: federation.seed is swept by --seeds 0-4")
    if math.prod(map(len, grid.values())) * len(seeds) > 10_000:
        raise ConfigError("--set: expected at most 10000 runs, got more")
    differing = [key for key, values in grid.items() if len(values) > 1]
    shorts = [key.rpartition(".")[2] for key in differing]
    names = shorts if len({*shorts}) == len(shorts) else differing
    found: list[Trial] = []
    for chosen in product(*grid.values()):
        given = dict(one.split("=", 1) for one in chosen)
        setting = {name: given[key] for name, key in zip(names, differing, strict=True)}
        text = ",".join(map("=".join, setting.items()))
        folder = re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", text)
        if folder != text or len(folder) > 80:
            folder = f"{folder[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        for seed in seeds:
            directory = out / f"{folder}-seed-{seed}".lstrip("-")
            overrides = ("output.plots=false", *chosen, f"federation.seed={seed}")
            config = load(path, overrides)
            _check_folder(directory, config)
            request = Request(str(path), overrides, out=directory, plain=True)
            if RunFolder(directory).experiment_path.is_file():
                request = Request(str(path), resume=directory, plain=True)
            found.append(Trial(directory, request, config, setting))
    return found


def _check_folder(directory: Path, config: Experiment) -> None:
    """Refuse a folder that is neither new nor of this very run."""
    remedy = "move it away, or name another place with --out"
    if RunFolder(directory).experiment_path.is_file():
        found = evidence_of(directory, load(experiment_in(directory)))
        if sha256(found.config) != sha256(config):
            others = f"one of another config; {remedy}"
            raise refused(directory, "expected a run of this config", others)
    elif not is_fresh(directory):
        raise refused(directory, "expected a new folder", f"one that is no run's; {remedy}")


def rows_of(
    groups: Mapping[str, Sequence[Run]], named: str | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """The column that is compared, and a row a setting: its last values over the seeds, best first.

    Raises:
        ConfigError: a run has not measured the column that was named, or they have none in common.
    """
    runs = [run for group in groups.values() for run in group]
    known = [name for name in runs[0].columns if all(run.last(name) is not None for run in runs)]
    measure = named or next((name for name in MEASURES if name in known), None)
    if measure not in known:
        raise ConfigError(
            f"--measure: expected a measured column ({', '.join(known)}), got {measure!r}"
        )
    rows = list[dict[str, Any]]()
    for label, group in groups.items():
        values = [run.last(measure) or 0.0 for run in group]
        spent = [run.final["epsilon"] for run in group]
        words = {label_in_manifest(run.manifest, run.final["epsilon"]) for run in group}
        rows.append(
            {
                "label": label,
                "mean": statistics.fmean(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else math.nan,
                "privacy": " / ".join(sorted(words)),
                "epsilon": max((e for e in spent if isinstance(e, int | float)), default=None),
                "runs": len(values),
            }
        )
    return measure, sorted(rows, key=lambda r: r["mean"], reverse=measure.endswith("accuracy"))


def write_csv(runs: Sequence[tuple[Trial, Run]], out: Path) -> Path:
    """``sweep.csv``: what was set, the seed, the folder and the last value of every column."""
    table = list[dict[str, Any]]()
    for trial, run in runs:
        told = {"seed": trial.config.federation.seed, "folder": trial.directory.name}
        row = trial.setting | told | {name: run.last(name) for name in run.columns}
        table.append(with_label(row, label_in_manifest(run.manifest, run.final["epsilon"])))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(chain(*table))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_atomically(out / "sweep.csv", text.getvalue().encode())
    return out / "sweep.csv"


def run_all(trials: Sequence[Trial], jobs: int) -> Iterator[tuple[Trial, str | None]]:
    """Run what is not finished, in ``jobs`` processes; each trial, with its error if it failed.

    When all this is interrupted the processes are ended, each after it has written what it has.

    Raises:
        BrokenProcessPool: a process died. Runs that had begun come last the next time.
    """
    waiting = [trial for trial in trials if not trial.is_finished]
    yield from ((trial, None) for trial in trials if trial not in waiting)
    waiting.sort(key=lambda trial: trial.directory.exists())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    with ProcessPoolExecutor(jobs, get_context("spawn"), os.setsid) as pool:
        playing = {pool.submit(play, trial.request): trial for trial in waiting}
        try:
            for future in as_completed(playing):
                yield playing[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            ending = active_children()
            for process in ending:
                process.terminate()
            for process in ending:
                process.join()
            raise


def play(request: Request) -> str | None:
    """Run a request in a process of its own; the line of the error if it failed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        with ending_signals():
            launch(replace(request, began=time.perf_counter()))
    except (Ended, RunEnded) as ended:
        if ended.code > 128:  # a signal: whoever sent it waits for this process
            os._exit(ended.code)  # SystemExit would have the pool give it the next run
        return one_line(str(ended), 400)
    except Exception as error:
        known = outcome(error)
        return one_line(unexpected(error) if known is None else known[0], 400)
    return None

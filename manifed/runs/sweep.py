"""A sweep: one config, several values of some keys, several seeds; one run folder for each.

    OUT/step_size=0.1-seed-0/   a run folder (runs/run_folder.py)
    OUT/sweep.csv               one row a run, written when the last one ended
    OUT/*.png                   one curve a setting, named by what was set

A sweep that was interrupted goes on by the same command: a finished run of the same resolved config
is kept, an unfinished one is resumed, and a folder of another config is refused before any run.
Every run is a process of its own, so that one that dies takes no other with it.
"""

import csv
import hashlib
import io
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from manifed.durable import make_folder, write_atomically
from manifed.errors import ConfigError, one_line
from manifed.experiment.load import load, sha256
from manifed.experiment.schema import Experiment
from manifed.runs.report.runs import Curve, Run, read
from manifed.runs.resume import refused, saved_config
from manifed.runs.run_folder import RunFolder, is_fresh

MOST_RUNS = 10_000
_LONGEST = 80
"""Characters of a folder's name that are the setting; a longer one is cut and given a hash."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+-]+")
_SEEDS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_OPEN, _CLOSE = "[{", "]}"

MEASURES = ("relative_cost_gap", "held_out_accuracy", "held_out_loss", "accuracy", "cost")
"""What a table compares unless it is told, the first that all runs have measured."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    setting: tuple[tuple[str, str], ...]
    """Key and value of what differs between settings, as written."""
    overrides: tuple[str, ...]
    """Everything that is put over the config's file, the seed too."""
    seed: int
    directory: Path
    config: Experiment

    @property
    def is_finished(self) -> bool:
        """Whether its folder holds the whole run."""
        folder = RunFolder(self.directory)
        return folder.manifest_path.is_file() and "final" in folder.manifest()


def values_of(override: str) -> list[str]:
    """The overrides that ``A.B=1,2`` stands for; commas in brackets and quotes part nothing.

    >>> values_of("training.step_size=0.1,0.5")
    ['training.step_size=0.1', 'training.step_size=0.5']

    Raises:
        ConfigError: no ``=``, an empty value, or a value twice.
    """
    key, separator, text = override.partition("=")
    if not separator:
        raise ConfigError(f"--set: expected A.B=VALUE[,VALUE...], got {override!r}")
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "," and not depth:
            parts.append("")
            continue
        depth += (not quote) * ((letter in _OPEN) - (letter in _CLOSE))
        parts[-1] += letter
    found = [part.strip() for part in parts]
    if not all(found) or len(set(found)) < len(found):
        raise ConfigError(f"--set: expected different values of {key}, got {text!r}")
    return [f"{key.strip()}={part}" for part in found]


def seeds_of(text: str) -> list[int]:
    """The seeds of ``0-4`` or ``1,7,9-11``, in order.

    Raises:
        ConfigError: anything else, a seed twice, or more than `MOST_RUNS`.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _SEEDS.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < MOST_RUNS:
            raise ConfigError(f"--seeds: expected seeds like 0-4 or 1,7,9-11, got {text!r}")
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise ConfigError(f"--seeds: expected every seed once, got {text!r}")
    return found


def trials_of(path: Path, sets: Sequence[str], seeds: Sequence[int], out: Path) -> list[Trial]:
    """All runs of a sweep, settings outside and seeds inside, each checked; nothing is written.

    Raises:
        ConfigError: a setting that is no config, more than `MOST_RUNS` runs, one key twice, or a
            folder under ``out`` that holds another run.
    """
    grid = [values_of(override) for override in sets]
    if math.prod(map(len, grid)) * len(seeds) > MOST_RUNS:
        raise ConfigError(f"--set: expected at most {MOST_RUNS} runs, got more")
    keys = [values[0].partition("=")[0] for values in grid]
    if len(set(keys)) < len(keys):
        raise ConfigError("--set: expected every key once, its values parted by commas")
    if "federation.seed" in keys:
        raise ConfigError("--set: federation.seed is swept by --seeds 0-4")
    differing = [key for key, values in zip(keys, grid, strict=True) if len(values) > 1]
    shorts = [key.rpartition(".")[2] for key in differing]
    names = {
        key: short if shorts.count(short) == 1 else key
        for key, short in zip(differing, shorts, strict=True)
    }
    found = []
    for chosen in product(*grid):
        parts = [one.partition("=") for one in chosen]
        setting = tuple((names[key], value) for key, _, value in parts if key in names)
        for seed in seeds:
            overrides = ("output.plots=false", *chosen, f"federation.seed={seed}")
            directory = out / f"{_folder_name(setting)}-seed-{seed}".lstrip("-")
            config = load(path, overrides)
            if config.output.directory is not None:
                raise ConfigError("output.directory: a sweep names its runs' folders; leave it out")
            found.append(Trial(setting, overrides, seed, directory, config))
    for trial in found:
        _check_folder(trial)
    return found


def label_of(setting: Sequence[tuple[str, str]], fallback: str) -> str:
    """``step_size=0.1, clip=2``: what a legend and a table call a setting."""
    return ", ".join(name + "=" + value.strip('"') for name, value in setting) or fallback


def _folder_name(setting: Sequence[tuple[str, str]]) -> str:
    text = ",".join(f"{name}={value}" for name, value in setting)
    safe = _UNSAFE.sub("_", text)
    if safe == text and len(safe) <= _LONGEST:
        return safe
    return f"{safe[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _check_folder(trial: Trial) -> None:
    """Refuse a folder that is neither new nor of this very trial."""
    if RunFolder(trial.directory).experiment_path.is_file():
        if sha256(saved_config(trial.directory)) != sha256(trial.config):
            raise refused(trial.directory, "expected a run of this config", "one of another config")
    elif not is_fresh(trial.directory):
        raise refused(trial.directory, "expected a new folder", "one that is no run's")


# -- running -----------------------------------------------------------------------------------
def run_all(
    path: Path, trials: Sequence[Trial], jobs: int, on_end: Callable[[Trial, str | None], None]
) -> list[Trial]:
    """Run what is not finished, ``jobs`` processes beside each other; the trials that failed.

    ``on_end`` hears of each trial, with the line of its error if it failed. When the sweep is
    interrupted its processes are ended too, each after it has written what it has.
    """
    failed: list[Trial] = []
    processes: set[subprocess.Popen[str]] = set()
    stopping = threading.Event()
    for folder in {trial.directory.parent for trial in trials}:
        make_folder(folder)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {
            pool.submit(_run, path, trial, jobs, processes, stopping): trial for trial in trials
        }
        try:
            for future in as_completed(waiting):
                trial, error = waiting[future], future.result()
                failed += [trial] if error else []
                on_end(trial, error)
        except BaseException:
            stopping.set()
            for process in tuple(processes):
                process.terminate()
            raise
    return failed


def _run(
    path: Path,
    trial: Trial,
    jobs: int,
    processes: set[subprocess.Popen[str]],
    stopping: threading.Event,
) -> str | None:
    """Run one trial in a process; the last line it wrote if it failed."""
    if stopping.is_set() or trial.is_finished:
        return None
    sets = [part for override in trial.overrides for part in ("--set", override)]
    where = [str(path), *sets, "--out", str(trial.directory)]
    if RunFolder(trial.directory).experiment_path.is_file():
        where = ["--resume", str(trial.directory)]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    process = subprocess.Popen(
        [sys.executable, "-m", "manifed", "run", *where, "--plain"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
        env={"OMP_NUM_THREADS": threads, **os.environ},
    )
    processes.add(process)
    if stopping.is_set():
        process.terminate()
    try:
        _, said = process.communicate()
    finally:
        processes.discard(process)
    if process.returncode == 0:
        return None
    last = next(reversed(said.strip().splitlines()), f"exit code {process.returncode}")
    return one_line(last, 400).removeprefix("error: ")


# -- what came of it ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    """One setting's runs: the last measured value of the measure over the seeds."""

    label: str
    runs: int
    mean: float
    deviation: float
    """The standard deviation over seeds, n - 1 below; NaN for one run."""
    least: float
    greatest: float
    epsilon: float | None
    """The largest of the runs."""


def curves(trials: Sequence[Trial]) -> list[Curve]:
    """The finished runs by setting, named by what was set."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for trial in trials:
        if trial.is_finished:
            groups.setdefault(trial.setting, []).append(read(trial.directory))
    return [Curve(label_of(setting, runs[0].name), runs) for setting, runs in groups.items()]


def measure_of(found: Sequence[Curve], named: str | None) -> str:
    """The column that the table compares.

    Raises:
        ConfigError: a run has not measured the one that was named, or there is none.
    """
    everywhere = set.intersection(
        *(
            {name for name in run.columns if run.last(name) is not None}
            for curve in found
            for run in curve.runs
        )
    )
    if named is not None and named not in everywhere:
        known = ", ".join(sorted(everywhere))
        raise ConfigError(f"--measure: expected a measured column ({known}), got {named!r}")
    chosen = named or next((name for name in MEASURES if name in everywhere), None)
    if chosen is None:
        raise ConfigError("--measure: expected a measured column, but the runs have none in common")
    return chosen


def rows_of(found: Sequence[Curve], measure: str) -> list[Row]:
    """The table, best mean first: least, or greatest of an accuracy."""
    rows = []
    for curve in found:
        values = np.array([run.last(measure) for run in curve.runs], dtype=np.float64)
        spent = [run.final["epsilon"] for run in curve.runs]
        epsilon = [float(one) for one in spent if isinstance(one, int | float)]
        rows.append(
            Row(
                curve.label,
                len(values),
                float(values.mean()),
                float(values.std(ddof=1)) if len(values) > 1 else math.nan,
                float(values.min()),
                float(values.max()),
                max(epsilon, default=None),
            )
        )
    sign = -1.0 if measure.endswith("accuracy") else 1.0
    return sorted(rows, key=lambda row: sign * row.mean if row.mean == row.mean else math.inf)


def write_csv(trials: Sequence[Trial], out: Path) -> Path:
    """``sweep.csv``: what was set, the seed, the folder and the last value of every column."""
    finished = [(trial, read(trial.directory)) for trial in trials if trial.is_finished]
    columns = list(dict.fromkeys(name for _, run in finished for name in run.columns))
    keys = list(dict.fromkeys(name for trial, _ in finished for name, _ in trial.setting))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, "seed", "folder", *columns])
    for trial, run in finished:
        setting, last = dict(trial.setting), [run.last(name) for name in columns]
        cells = ["" if value is None else repr(value) for value in last]
        writer.writerow([*(setting[key] for key in keys), trial.seed, trial.directory.name, *cells])
    write_atomically(out / "sweep.csv", text.getvalue().encode())
    return out / "sweep.csv"

"""A sweep: one config, several values of some keys, several seeds; one run folder for each.

    OUT/step_size=0.1-seed-0/   a run folder (runs/run_folder.py)
    OUT/sweep.csv               one row a run, written when the last one ended
    OUT/*.png                   one curve a setting, named by what was set

A sweep that was interrupted goes on by the same command: a finished run of the same resolved config
is kept, an unfinished one is resumed, and a folder of another config is refused before any run
(`manifed.runs.pool`).
"""

import csv
import hashlib
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from manifed.durable import write_atomically
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.runs.pool import Task, check_folder
from manifed.runs.report.runs import Curve, Run, read
from manifed.runs.run_folder import LABEL
from manifed.runs.statement import label_in_manifest

MOST_RUNS = 10_000
_LONGEST = 80
"""Characters of a folder's name that are the setting; a longer one is cut and given a hash."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+-]+")
_SEEDS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_OPEN, _CLOSE = "[{", "]}"

MEASURES = ("relative_cost_gap", "held_out_accuracy", "held_out_loss", "accuracy", "cost")
"""What a table compares unless it is told, the first that all runs have measured."""


@dataclass(frozen=True)
class Trial(Task):
    """One run of a sweep."""

    setting: tuple[tuple[str, str], ...]
    """Key and value of what differs between settings, as written."""
    seed: int


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
            found.append(Trial(str(path), overrides, directory, config, setting, seed))
    for trial in found:
        check_folder(trial)
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
    privacy: str
    """The word before epsilon (manifed/privacy/label.py), of all runs; each word once."""
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
                " / ".join(
                    sorted(
                        {
                            label_in_manifest(run.manifest, run.final["epsilon"])
                            for run in curve.runs
                        }
                    )
                ),
                max(epsilon, default=None),
            )
        )
    sign = -1.0 if measure.endswith("accuracy") else 1.0
    return sorted(rows, key=lambda row: sign * row.mean if row.mean == row.mean else math.inf)


def write_csv(trials: Sequence[Trial], out: Path) -> Path:
    """``sweep.csv``: what was set, the seed, the folder and the last value of every column."""
    finished = [(trial, read(trial.directory)) for trial in trials if trial.is_finished]
    columns = list(dict.fromkeys(name for _, run in finished for name in run.columns))
    place = columns.index("epsilon") if "epsilon" in columns else len(columns)
    keys = list(dict.fromkeys(name for trial, _ in finished for name, _ in trial.setting))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, "seed", "folder", *columns[:place], LABEL, *columns[place:]])
    for trial, run in finished:
        setting, last = dict(trial.setting), [run.last(name) for name in columns]
        cells = ["" if value is None else repr(value) for value in last]
        cells[place:place] = [label_in_manifest(run.manifest, run.final["epsilon"])]
        writer.writerow([*(setting[key] for key in keys), trial.seed, trial.directory.name, *cells])
    write_atomically(out / "sweep.csv", text.getvalue().encode())
    return out / "sweep.csv"

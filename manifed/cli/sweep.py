"""The command ``manifed sweep``: runs a config over several values and seeds.

A run is OUT/step_size=0.1-seed-0/, named by what was set (runs/folder.py), and ``manifed report
OUT/*`` draws a curve per setting. A finished run of the same resolved config is kept, an unfinished
one is resumed, and a folder of another config is refused before any run. Rerun the command after an
interruption.
"""

import hashlib
import math
import os
import re
import shlex
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, product
from multiprocessing import active_children, get_context
from pathlib import Path

from typer import echo

from manifed.cli.launch import Request, check_parts, launch
from manifed.cli.options import answer, outcome
from manifed.durable import write_atomically
from manifed.errors import ConfigError, RunEnded, one_line
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment, sha256
from manifed.fields import Document
from manifed.runs.evidence import evidence_of, refused, saved_config
from manifed.runs.export import viewed
from manifed.runs.folder import RunFolder, is_fresh
from manifed.runs.interrupt import Ended
from manifed.runs.places import check_file, check_new, real
from manifed.runs.report import Run, names_of, pdf_of, read

_SEED = "federation.seed"


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a sweep."""

    directory: Path
    request: Request
    config: Experiment
    setting: Mapping[str, str]
    """What is set in it and not in every run, as written."""

    @property
    def label(self) -> str:
        """The setting as a legend and a table name it: ``step_size=0.1, clip=2``."""
        words = [name + "=" + value.strip('"') for name, value in self.setting.items()]
        return ", ".join(words) or self.config.name


def sweep(
    path: Path,
    sets: Sequence[str],
    seeds: str,
    jobs: int,
    out: Path | None,
    labels: Sequence[str],
    pdf: Path | None,
) -> None:
    """Runs a sweep; `manifed.cli.main.sweep` explains the options."""
    folder = real("--out", out or Path("runs") / f"sweep-{path.stem}")
    trials = trials_of(path, sets, seeds, folder)
    settings = {trial.label: trial for trial in trials}
    names = names_of(settings, labels)
    for trial in settings.values():
        check_parts(trial.config)
    check_new("--out", folder)
    if pdf:
        check_file("--pdf", pdf)
    again = f"rerun to resume: {shlex.join(['manifed', *sys.argv[1:]])}"
    groups = dict[str, list[Run]]()
    failed = list[str]()
    try:
        for k, (trial, error) in enumerate(run_all(trials, jobs), start=1):
            name = trial.directory.name
            failed += [name] if error else []
            echo(f"{k}/{len(trials)} {name}: {f'FAILED: {error}' if error else 'done'}", err=True)
    except Ended as end:
        raise RunEnded(f"interrupted; {again}", end.code) from None
    except BrokenProcessPool:
        raise RunEnded(f"a process died with its run; {again}", 1) from None
    for trial in trials:
        if trial.directory.name not in failed:
            groups.setdefault(names[trial.label], []).append(read(trial.directory))
    if groups:
        if pdf:
            shown = {label: [*map(viewed, runs)] for label, runs in groups.items()}
            pdf.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(pdf, pdf_of(shown))
        column, rows = rows_of(groups)
        note = (
            f"The search is not accounted: to choose among {len(trials)} runs on private data, or "
            "to show them, costs more than the one that a statement prices. Search on public data."
        )
        answer(
            {"measure": column, "rows": rows, "failed": failed, "directory": folder},
            *([note] if any(trial.config.privacy.kind != "none" for trial in trials) else []),
            f"compared: {column}; curves: manifed report {shlex.quote(str(folder))}/*",
            *([f"figures: {pdf}"] if pdf else []),
            rows=rows,
            label=" / ".join(sorted({row["privacy"] for row in rows})),
        )
    if failed:
        raise RunEnded(f"{len(failed)} of {len(trials)} runs failed; {again}", 1)


def _seeds_of(text: str) -> list[int]:
    """The seeds of ``0-4`` or ``1,7,9-11``, in order.

    Raises:
        ConfigError: anything else, a seed twice, or more than 10 000.
    """
    found = list[int]()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,18})(-(\d{1,18}))?\s*", part)
        first, last = (int(ends[1]), int(ends[3] or ends[1])) if ends else (1, 0)
        found += range(first, min(last + 1, first + 10_001))
        if first > last or len({*found}) < len(found) or len(found) > 10_000:
            raise ConfigError(
                f"--seeds: expected seeds like 0-4 or 1,7,9-11, every seed once, got {text!r}"
            )
    return found


def trials_of(path: Path, sets: Sequence[str], seeds: str, out: Path) -> list[Trial]:
    """Lists and checks all runs of a sweep, settings outside and seeds inside; writes nothing.

    Raises:
        ConfigError: a setting that is no config, one key, value or seed twice, or a folder under
            ``out`` that holds another run.
    """
    grid = dict[str, list[str]]()
    for override in sets:
        key, _, text = override.partition("=")
        # commas outside brackets and quotes
        values = [
            value.strip()
            for value in re.split(r',(?![^\[{]*[\]}])(?=(?:[^"]*"[^"]*")*[^"]*$)', text)
        ]
        if not all(values) or len({*values}) < len(values) or key.strip() in (*grid, _SEED):
            raise ConfigError(
                "--set: expected A.B=VALUE[,OTHER VALUE...], every key once, and no "
                f"{_SEED}, which is swept by --seeds 0-4, got {override!r}"
            )
        grid[key.strip()] = values
    differing = {key: key.rpartition(".")[2] for key, values in grid.items() if len(values) > 1}
    is_short = len({*differing.values()}) == len(differing)
    found = list[Trial]()
    for *chosen, seed in product(*grid.values(), map(str, _seeds_of(seeds))):
        given = dict(zip(grid, chosen, strict=True))
        setting = {short if is_short else k: given[k] for k, short in differing.items()}
        text = ",".join(map("=".join, setting.items()))
        name = re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", text)
        if name != text or len(name) > 80:
            name = f"{name[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        directory = out / f"{name}-seed-{seed}".lstrip("-")
        sets = (*map("=".join, given.items()), f"{_SEED}={seed}")
        config = load(path, sets)
        request = Request(str(path), sets, out=directory)
        other = None if is_fresh(directory) else "one that is no run's"
        if RunFolder(directory).experiment_path.is_file():
            request = Request(str(path), resume=directory)
            evidence_of(directory, begun := saved_config(directory))
            other = None if sha256(begun) == sha256(config) else "one of another config"
        if other is not None:
            raise refused(
                directory,
                "expected a new folder, or a run of this config",
                f"{other}; move it away, or name another place with --out",
            )
        found.append(Trial(directory, request, config, setting))
    return found


def rows_of(groups: Mapping[str, Sequence[Run]]) -> tuple[str, list[Document]]:
    """Returns the compared column and a row for each setting, averaged over seeds, best first.

    It is the first of a few that all runs have measured; a release may have nothing but its price.
    """
    runs = [*chain(*groups.values())]
    usual = (
        "relative_cost_gap", "held_out_accuracy", "held_out_loss", "accuracy", "cost", "epsilon",
        "round",
    )  # fmt: skip
    measure = next(name for name in usual if all(run.last(name) is not None for run in runs))
    rows = list[Document]()
    for label, group in groups.items():
        values = [run.last(measure) or 0.0 for run in group]
        spent = [epsilon for run in group if (epsilon := run.last("epsilon")) is not None]
        rows.append(
            {
                "label": label,
                "mean": statistics.fmean(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else math.nan,
                "privacy": " / ".join(sorted({run.label for run in group})),
                "epsilon": max(spent, default=None),
                "runs": len(values),
            }
        )
    return measure, sorted(rows, key=lambda r: r["mean"], reverse=measure.endswith("accuracy"))


def run_all(trials: Sequence[Trial], jobs: int) -> Iterator[tuple[Trial, str | None]]:
    """Runs all unfinished trials in ``jobs`` processes; yields each, with its error if any.

    When all this is interrupted the processes are ended, each after it has written what it has.

    Raises:
        BrokenProcessPool: a process died. Runs that had begun come last the next time.
    """
    waiting = [trial for trial in trials if not RunFolder(trial.directory).is_finished]
    yield from ((trial, None) for trial in trials if trial not in waiting)
    waiting.sort(key=lambda trial: trial.directory.exists())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    with ProcessPoolExecutor(jobs, get_context("spawn"), _silenced) as pool:
        playing = {pool.submit(_play, trial.request): trial for trial in waiting}
        try:
            for future in as_completed(playing):
                yield playing[future], future.result()
        except BaseException:
            for process in active_children():
                process.terminate()
            raise


def _silenced() -> None:
    """Take this process out of its terminal: Ctrl-C is the sweep's, and words are nobody's."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _play(request: Request) -> str | None:
    """Run a request in a process of its own; the line of the error if it failed."""
    try:
        launch(request)
    except Exception as error:
        line, code = outcome(error)
        if code > 128:  # a signal: whoever sent it waits for this process
            os._exit(code)  # SystemExit would have the pool give it the next run
        return one_line(line, 400)
    return None

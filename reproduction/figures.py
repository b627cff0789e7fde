"""The runs of papers' figures, those that are missing beside each other, and their pictures.

A folder OUT/FIGURE holds a run folder for each curve and seed, and the picture. A run that is
there is not made again; one that was interrupted begins anew, but for a release, which goes on.
"""

import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path

from manifed.cli.launch import Request
from manifed.durable import held
from manifed.errors import ConfigError, RunEnded, one_line
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment, sha256
from manifed.problems.real import DataMissing, Mnist
from manifed.problems.shards import data_folder, dataset
from manifed.runs.folder import RunFolder
from manifed.runs.report import read
from reproduction import decor_curves, decor_figure_1, time_varying_figures
from reproduction.figure_files import FigureOf, figure_named
from reproduction.pictures import draw_disk, draw_panels
from reproduction.trials import run_silently

DOWNLOADED = frozenset(
    {"mnist", "a9a", *(f"reproduction.mammals:Wordnet{name}" for name in ("Mammals", "Embedding"))}
)
"""Kinds of data of the figures that no library ships: they are looked for in the data folder."""
QUICK = 5
SHORT = 50
"""Rounds of a quick look, and the most local steps in one."""


@dataclass(frozen=True)
class Asked:
    """What was asked of every figure."""

    out: Path = Path("runs")
    seeds: int | None = None
    """Seeds 0 to SEEDS - 1; None: as many as the file says."""
    only: tuple[str, ...] = ()
    """Shell patterns of curves; none: all."""
    sets: tuple[str, ...] = ()
    is_quick: bool = False


@dataclass(frozen=True)
class FigureRun:
    """One curve at one seed, at one budget where they are on the axis."""

    source: Path
    overrides: tuple[str, ...]
    directory: Path
    config: Experiment
    curve: str
    budget: float | None = None

    @property
    def is_release(self) -> bool:
        """Whether noise of the operating system protects somebody: nothing of it is removed."""
        privacy = self.config.privacy
        return privacy.kind != "none" and privacy.noise_source == "os"

    @property
    def is_finished(self) -> bool:
        """Whether its folder holds the whole run."""
        folder = RunFolder(self.directory)
        if not folder.manifest_path.is_file() or "final" not in (found := folder.manifest()):
            return False
        rounds = found["final"]["rounds"]
        return self.is_release or rounds >= self.config.federation.num_rounds

    def check(self) -> None:
        """Refuse a folder of another run.

        Raises:
            ConfigError: naming the folder.
        """
        path = RunFolder(self.directory).experiment_path
        if path.is_file() and sha256(load(path)) != sha256(self.config):
            raise ConfigError(
                f"{self.directory}: expected a run of this config, got one of another config; "
                "move it away, or name another place with --out"
            )

    def play(self) -> str | None:
        """Make the run; the line of its error if it failed."""
        request = Request(str(self.source), self.overrides, out=self.directory, plain=True)
        try:
            if RunFolder(self.directory).experiment_path.is_file():
                if self.is_release:
                    request = Request(str(self.source), resume=self.directory, plain=True)
                else:  # what was charged and lost stays charged, so it would end too early
                    with held(self.directory):
                        shutil.rmtree(self.directory)
            run_silently(request)
        except BlockingIOError:
            return "another process holds its folder"
        except (RunEnded, OSError, ValueError, RuntimeError) as error:
            return one_line(str(error), 400)
        return None


def runs_wanted(figure: FigureOf, asked: Asked) -> list[FigureRun]:
    """Every run of a figure, checked; nothing is written.

    Raises:
        ConfigError: a pattern or an override that fits no curve, or a folder of another run.
    """
    file = figure.file
    of = figure if file.runs_of is None else figure_named(file.runs_of)
    home = asked.out / "quick" if asked.is_quick else asked.out
    patterns = asked.only or ("*",)
    names = [name for name in of.choices if any(fnmatchcase(name, one) for one in patterns)]
    if of.choices and not names:
        raise ConfigError(f"--only: expected a pattern of curves, got {', '.join(asked.only)!r}")
    budgets = [*file.budgets] or [None]
    if asked.is_quick:
        budgets = list(dict.fromkeys((budgets[0], budgets[-1])))
    found = []
    for budget in budgets:
        folder = home / of.figure / ("" if budget is None else f"epsilon-{budget:g}")
        for name in names:
            source = of.source(name)
            overrides = tuple(asked.sets)
            config = load(source, overrides)
            if asked.is_quick:
                overrides = (*overrides, *_shorter(config))
                config = load(source, overrides)
            if budget is not None:
                own, masks = decor_figure_1.noise_of(config, name.rpartition("_")[2], budget)
                noise = f"privacy.noise_stddev={own!r}", f"privacy.mask_stddev={masks!r}"
                overrides = (*overrides, *noise)
            for seed in range(asked.seeds or (1 if asked.is_quick else file.seeds)):
                whole = (*overrides, f"federation.seed={seed}")
                place = folder / f"{name}-seed-{seed}"
                run = FigureRun(source, whole, place, load(source, whole), name, budget)
                run.check()
                found.append(run)
    return found


def _shorter(config: Experiment) -> tuple[str, ...]:
    """The overrides of a quick look."""
    rounds = min(QUICK, config.federation.num_rounds)
    training = config.training.model_dump()
    steps = ("local_steps", "inner_steps")
    shorter = [f"training.{k}={SHORT}" for k in steps if (training.get(k) or 0) > SHORT]
    return (f"federation.num_rounds={rounds}", "evaluation.every=1", *shorter)


def missing_data(figure: FigureOf, runs: Sequence[FigureRun]) -> dict[str, str]:
    """Curves, or a computed figure, whose data are not below MANIFED_DATA, and what is missing."""
    read = {run.curve: run.config.data for run in runs if run.config.data.kind in DOWNLOADED}
    if "mnist" in figure.file.data:
        read[figure.figure] = Mnist()
    found = {}
    for name, data in read.items():
        try:
            dataset(data, 0, data_folder())
        except DataMissing as error:
            found[name] = str(error)
    return found


def reproduce(
    names: Sequence[str], asked: Asked, jobs: int
) -> tuple[dict[str, list[Path]], list[str]]:
    """Run what is missing of figures and draw them: the files of each, and what failed."""
    figures = [figure_named(name) for name in names]
    wanted = {figure.figure: runs_wanted(figure, asked) for figure in figures}
    left_out = {f.figure: missing_data(f, wanted[f.figure]) for f in figures}
    for name, runs in wanted.items():
        wanted[name] = [run for run in runs if run.curve not in left_out[name]]
        for curve, why in left_out[name].items():
            sys.stderr.write(f"left out: {curve}: {why}\n")
    runs = {run.directory: run for several in wanted.values() for run in several}
    waiting = [run for run in runs.values() if not run.is_finished]
    failed = []
    if waiting:
        kept = len(runs) - len(waiting)
        told = f"{len(waiting)} runs, {jobs} beside each other; {kept} are here already\n"
        sys.stderr.write(told)
    with ProcessPoolExecutor(jobs, mp_context=get_context("forkserver")) as pool:
        playing = {pool.submit(run.play): run.directory.name for run in waiting}
        for k, done in enumerate(as_completed(playing), start=1):
            error = done.result()
            sys.stderr.write(f"{k}/{len(waiting)} {playing[done]}: {error or 'done'}\n")
            failed += [playing[done]] if error else []
    drawn = {}
    home = asked.out / "quick" if asked.is_quick else asked.out
    for figure in figures:
        file = figure.file
        name = figure.figure
        if name not in left_out[name]:
            drawn[name] = _draw(figure, wanted[name], home / name, is_quick=asked.is_quick)
        sys.stdout.write(f"\n{name}: {file.title}\n  {file.shows}\n")
        if file.checks:
            sys.stdout.write(f"  judged by: python -m reproduction {' '.join(file.checks)}\n")
        for path in drawn.get(name) or ["  not drawn: no data, or no finished run"]:
            sys.stdout.write(f"{path}\n")
    return drawn, failed


def _draw(
    figure: FigureOf, runs: Sequence[FigureRun], folder: Path, *, is_quick: bool
) -> list[Path]:
    """The picture of a figure, from the runs of it that are finished."""
    file = figure.file
    name = figure.figure
    if file.drawing == "computed":
        maker = decor_curves if name in decor_curves.FIGURES else time_varying_figures
        return maker.draw(name, folder, is_quick)
    by_curve = {}
    by_budget = {}
    for run in runs:
        if run.is_finished:
            found = read(run.directory)
            by_curve.setdefault(run.curve, []).append(found)
            if run.budget is not None:
                row = by_budget.setdefault(run.curve.rpartition("_")[2], {})
                row.setdefault(run.budget, []).append(found)
    if file.drawing == "panels":
        return draw_panels(figure, by_curve, folder, is_quick=is_quick)
    if not runs or not all(run.is_finished for run in runs):
        return []
    if file.drawing == "disk":
        of = figure_named(file.runs_of or name)
        labels = {curve: label for _, panel in of.panels for curve, label in panel.items()}
        return draw_disk(by_curve, labels, folder / f"figure-{name}", is_quick=is_quick)
    return decor_figure_1.draw(name, by_budget, file.labels, folder, is_quick=is_quick)


def listed(names: Sequence[str]) -> list[dict[str, object]]:
    """What each figure takes: runs, rounds, data that are downloaded, and its checks."""
    found = []
    for name in names:
        figure = figure_named(name)
        of = figure if figure.file.runs_of is None else figure_named(figure.file.runs_of)
        configs = [load(of.source(curve)) for curve in of.choices]
        times = figure.file.seeds * max(1, len(figure.file.budgets))
        data = {*figure.file.data, *(config.data.kind for config in configs)}
        found.append(
            {
                "figure": figure.figure,
                "title": figure.file.title,
                "runs": times * len(configs),
                "rounds": times * sum(config.federation.num_rounds for config in configs),
                "data": sorted(data & DOWNLOADED),
                "checks": list(figure.file.checks),
            }
        )
    return found

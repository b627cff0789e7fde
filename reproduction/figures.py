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
from reproduction.figure_files import FigureFile, FigureOf, figure_named
from reproduction.judged import ARCHIVE, archived
from reproduction.pictures import QUICK_LOOK, draw_disk, draw_panels
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
    """Names of curves, parts of names, or shell patterns; none: all."""
    sets: tuple[str, ...] = ()
    is_quick: bool = False
    epsilon: float | None = None
    """The privacy target in place of the figure's own."""

    @property
    def home(self) -> Path:
        """Where its figures lie: runs of another kind lie apart."""
        found = self.out / "quick" if self.is_quick else self.out
        return found if self.epsilon is None else found / f"epsilon-{self.epsilon:g}"

    @property
    def note(self) -> str:
        """What the picture says of runs that are not the figure's own."""
        other = f"epsilon = {self.epsilon:g} in place of the figure's" if self.epsilon else ""
        return "\n".join(filter(None, (QUICK_LOOK if self.is_quick else "", other)))

    def changes(self, seeds: int) -> str:
        """The options by which runs differ from a figure of so many seeds; "": they do not."""
        given = {
            "--quick": self.is_quick,
            f"--seeds {self.seeds}": self.seeds not in (None, seeds),
            f"--epsilon {self.epsilon or 0:g}": self.epsilon is not None,
            **{f"--only {name}": True for name in self.only},
            **{f"--set {text}": True for text in self.sets},
        }
        return " ".join(option for option, is_given in given.items() if is_given)


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
        ConfigError: a name, an epsilon or an override that fits no curve, or a folder of another
            run.
    """
    file = figure.file
    of = figure if file.runs_of is None else figure_named(file.runs_of)
    names = named_by(asked.only, of)
    budgets = [*file.budgets] or [None]
    targets = {}
    if asked.epsilon is not None:
        budgets = [asked.epsilon] if file.budgets else budgets
        targets = {} if file.budgets else targets_of(of, names, asked)
    if asked.is_quick:
        budgets = list(dict.fromkeys((budgets[0], budgets[-1])))
    found = []
    for budget in budgets:
        folder = asked.home / of.figure / ("" if budget is None else f"epsilon-{budget:g}")
        for name in names:
            source = of.source(name)
            target = [f"{targets[name]}={asked.epsilon!r}"] if name in targets else []
            overrides = (*asked.sets, *target)
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


def named_by(words: Sequence[str], figure: FigureOf) -> list[str]:
    """The curves of a figure that a word names: by the whole name, a part of it, or a pattern.

    Raises:
        ConfigError: a word that names none.
    """
    known = list(figure.choices)
    found = set[str]() if words else set(known)
    for word in words:
        hits = {name for name in known if word in name or fnmatchcase(name, word)}
        if not hits:
            more = f" and {len(known) - 8} more" if len(known) > 8 else ""
            raise ConfigError(
                f"--only: expected a part of a curve's name, got {word!r}; figure {figure.figure} "
                f"has {', '.join(known[:8]) or 'no curves that run'}{more}"
            )
        found |= {word} if word in known else hits
    return [name for name in known if name in found]


def targets_of(figure: FigureOf, names: Sequence[str], asked: Asked) -> dict[str, str]:
    """The key of the epsilon that a curve's config states, by curve.

    Raises:
        ConfigError: no curve states one, or they state several.
    """
    found = {}
    stated = set()
    others = []
    for name in names:
        privacy = load(figure.source(name), asked.sets).privacy
        noise = getattr(privacy, "noise", None)
        key = {"target": "epsilon", "published": "local_epsilon"}.get(getattr(noise, "kind", ""))
        if key:
            is_short = "epsilon" in figure.table(name)["privacy"]
            found[name] = "privacy.epsilon" if is_short else f"privacy.noise.{key}"
            stated.add(getattr(noise, key))
        elif privacy.kind != "none":
            others.append(name)
    if len(stated) != 1:
        told = ", ".join(f"{epsilon:g}" for epsilon in sorted(stated)) or "none"
        raise ConfigError(
            f"--epsilon: expected curves that state one epsilon, got {told}; figure "
            f"{figure.figure}: choose curves with --only"
        )
    if others:
        sys.stderr.write(
            f"--epsilon does not change curves whose noise is a number: {', '.join(others)}\n"
        )
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
    for figure in figures:
        file = figure.file
        name = figure.figure
        if name not in left_out[name]:
            drawn[name] = _draw(figure, wanted[name], asked)
        sys.stdout.write(f"\n{name}: {file.title}\n  claim: {file.shows}\n")
        sys.stdout.writelines(f"  {line}\n" for line in judged(file, asked))
        for path in drawn.get(name) or ["  not drawn: no data, or no finished run"]:
            sys.stdout.write(f"{path}\n")
    return drawn, failed


def judged(file: FigureFile, asked: Asked) -> list[str]:
    """What is recorded of a figure's checks, and whether these runs are the recorded figure's."""
    if not file.checks:
        return []
    known = archived(ARCHIVE)
    changes = asked.changes(file.seeds)
    told = [
        f"check {name}, recorded {known[name]['date']}: {known[name]['verdict']}"
        for name in file.checks
        if name in known
    ]
    other = f"recorded verdicts do not judge these runs, which differ: {changes}"
    again = f"judge again: python -m reproduction {' '.join(file.checks)}"
    return [*told, *([other] if changes and told else []), again]


def _draw(figure: FigureOf, runs: Sequence[FigureRun], asked: Asked) -> list[Path]:
    """The picture of a figure, from the runs of it that are finished."""
    file = figure.file
    name = figure.figure
    folder = asked.home / name
    if file.drawing == "computed":
        maker = decor_curves if name in decor_curves.FIGURES else time_varying_figures
        return maker.draw(name, folder, asked.is_quick)
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
        return draw_panels(figure, by_curve, folder, note=asked.note)
    if not runs or not all(run.is_finished for run in runs):
        return []
    if file.drawing == "disk":
        of = figure_named(file.runs_of or name)
        labels = {curve: label for _, panel in of.panels for curve, label in panel.items()}
        return draw_disk(by_curve, labels, folder / f"figure-{name}", note=asked.note)
    return decor_figure_1.draw(name, by_budget, file.labels, folder, note=asked.note)


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

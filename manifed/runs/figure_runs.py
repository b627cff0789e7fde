"""The runs of a figure file: which there are, which are missing, and how long they take."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifed.errors import ConfigError
from manifed.experiment.figure_files import FigureOf
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment
from manifed.problems.federation import data_folder, dataset
from manifed.problems.readers import DOWNLOADED, DataMissing
from manifed.runs.places import check_new
from manifed.runs.pool import Task, check_folder
from manifed.runs.report.runs import Run, read
from manifed.runs.resume import held_or_refused
from manifed.runs.run_folder import RunFolder

QUICK, SHORT = 5, 50
"""Rounds of a quick look, and the most local steps in one."""
_STEPS = ("local_steps", "inner_steps")
"""Settings of `training` that a round lasts as many steps as."""


@dataclass(frozen=True)
class FigureTask(Task):
    """One curve at one seed."""

    curve: str
    seed: int

    @property
    def is_finished(self) -> bool:
        """Whether its folder holds the whole run; a seeded private one has all its rounds."""
        if not super().is_finished or not self._is_seeded:
            return super().is_finished
        rounds: int = RunFolder(self.directory).manifest()["final"]["rounds"]
        return rounds >= self.config.federation.num_rounds

    @property
    def starts_anew(self) -> bool:
        """Whether it has begun, and cannot be gone on with to the same curve.

        A round that was charged and then lost is paid for: a private run that is resumed ends
        before its last round, or spends more. With noise from the seed nothing was released, and
        the same run can be made from its beginning.
        """
        has_begun = RunFolder(self.directory).experiment_path.is_file()
        return self._is_seeded and has_begun and not self.is_finished

    def clear(self) -> None:
        """Remove what `starts_anew`, and never a release; an interrupted removal starts anew too.

        Raises:
            ConfigError: another process runs it.
        """
        with held_or_refused(self.directory):
            if not self.starts_anew:  # whoever held it may have finished it
                return
            for path in self.directory.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path != RunFolder(self.directory).experiment_path:
                    path.unlink()
            shutil.rmtree(self.directory)

    @property
    def _is_seeded(self) -> bool:
        privacy = self.config.privacy
        return privacy.kind != "none" and privacy.noise_source == "seed"


def tasks_of(
    figure: FigureOf,
    curves: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    sets: Sequence[str] = (),
    *,
    is_quick: bool = False,
    checks: bool = True,
) -> list[FigureTask]:
    """Curves outside and seeds inside, each checked; nothing is written.

    Args:
        figure: the file that has the curves.
        curves: their names.
        seeds: of each of them.
        out: the folder of the runs' folders.
        sets: overrides of every curve.
        is_quick: a few rounds of each.
        checks: whether a folder that holds another run is refused.

    Raises:
        ConfigError: an override that fits no curve, or a folder that holds another run, is in use
            or cannot be made.
    """
    if any(one.partition("=")[0].strip() == "federation.seed" for one in sets):
        raise ConfigError("--set: federation.seed is set by --seeds")
    found: list[FigureTask] = []
    for curve in curves:
        source, quick = figure.source(curve), ()
        if is_quick:
            quick = _quick(load(source, sets))
        for seed in seeds:
            overrides = ("output.plots=false", *quick, *sets, f"federation.seed={seed}")
            config = load(source, overrides)
            folder = out / f"{curve}-seed-{seed}"
            found.append(FigureTask(source, overrides, folder, config, curve, seed))
    for task in found if checks else ():
        check_folder(task)
        if task.starts_anew:
            with held_or_refused(task.directory):
                pass
    if checks:
        check_new("--out", out)
    return found


def _quick(config: Experiment) -> tuple[str, ...]:
    """The overrides of a quick look."""
    rounds = min(QUICK, config.federation.num_rounds)
    training = config.training.model_dump()
    steps = [key for key in _STEPS if (training.get(key) or 0) > SHORT]
    shorter = [f"training.{key}={SHORT}" for key in steps]
    return (f"federation.num_rounds={rounds}", "evaluation.every=1", *shorter)


def runs_of(tasks: Sequence[FigureTask]) -> dict[str, list[Run]]:
    """The finished runs by curve."""
    found: dict[str, list[Run]] = {}
    for task in tasks:
        if task.is_finished:
            found.setdefault(task.curve, []).append(read(task.directory))
    return found


def without_data(tasks: Sequence[FigureTask]) -> dict[str, str]:
    """The curves whose data are not in the data folder, and what is missing."""
    told: dict[str, str | None] = {}
    found: dict[str, str] = {}
    for task in tasks:
        kind = task.config.data.kind
        if kind in DOWNLOADED and kind not in told:
            told[kind] = _missing(task)
        if (missing := told.get(kind)) is not None:
            found[task.curve] = missing
    return found


def _missing(task: FigureTask) -> str | None:
    try:
        dataset(task.config.data, 0, data_folder())
    except DataMissing as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Duration:
    """What all runs of a figure take, one after another."""

    seconds: float
    is_measured: bool
    """False where some runs are missing and their rounds are taken to cost what others' did."""


def duration_of(tasks: Sequence[FigureTask], quick: Sequence[FigureTask]) -> Duration | None:
    """From the folders of finished runs, else from quick looks; None before either.

    A quick look has fewer rounds and may have fewer steps in each: its rounds count for more.
    """
    wanted = {task.curve: _steps(task.config.training.model_dump()) for task in tasks}
    prices: dict[str, tuple[float, float]] = {}
    for task in (*quick, *tasks):  # a whole run says more than a quick one
        if task.is_finished:
            manifest = RunFolder(task.directory).manifest()
            final, parts = manifest["final"], manifest.get("seconds_by_part") or {}
            around = sum(parts.get(part, 0.0) for part in ("before", "after"))
            longer = wanted[task.curve] / _steps(manifest["config"].get("training") or {})
            whole = final["seconds"] - around
            stepping = parts.get("rounds", whole)  # an evaluation is as long after fewer steps
            a_round = (whole - stepping + longer * stepping) / max(1, final["rounds"])
            prices[task.curve] = around, a_round
    if not prices:
        return None
    usual = tuple(sum(column) / len(prices) for column in zip(*prices.values(), strict=True))
    seconds = 0.0
    for task in tasks:
        around, a_round = prices.get(task.curve, usual)
        seconds += around + a_round * task.config.federation.num_rounds
    return Duration(seconds, all(task.is_finished for task in tasks))


def _steps(training: Mapping[str, Any]) -> int:
    """Steps of a client in a round, as far as a quick look cuts them."""
    return math.prod(training.get(key) or 1 for key in _STEPS)


def verdicts_of(figure: FigureOf) -> list[str]:
    """What the figure's report page says of its checks, a line each: "check 4: in a regime".

    Nothing is measured here: the page holds what `python -m reproduction` printed. It lies in the
    folder that holds configs/figures/.
    """
    page = figure.path.resolve().parent / ".." / ".." / (figure.file.report or "")
    if not page.is_file():
        return []
    rows = [
        [cell.strip().replace("\0", "|") for cell in line.strip().strip("|").split("|")]
        for line in page.read_text(encoding="utf-8").replace("\\|", "\0").splitlines()
        if line.startswith("|")
    ]
    told = {cells[0]: cells for cells in reversed(rows) if len(cells) >= 4}
    found: list[str] = []
    for check in figure.file.checks:
        cells = told.get(check) or told.get(check.partition("-")[2] or check)
        verdict = f"see {figure.file.report}" if cells is None else f"{cells[2]} ({cells[1]})"
        found.append(f"check {check}: {verdict}")
    return found

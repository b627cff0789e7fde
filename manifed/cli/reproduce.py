"""The command ``manifed reproduce``: the runs of figures of papers, and the figures.

Figures are files, configs/figures/*.toml of a clone, or a path. What is drawn as panels needs the
library alone; budgets, disks and what no run makes are drawn by the clone's folder reproduction/.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manifed.cli.options import DataDir, Sets, fail, go_on, use_data_dir
from manifed.runs.document import Json, print_json
from manifed.runs.interrupt import Ended

if TYPE_CHECKING:
    from manifed.experiment.figure_files import FigureOf
    from manifed.runs.figure_runs import FigureTask


@dataclass(frozen=True)
class Asked:
    """What the command was given, of every figure."""

    seeds: int | None
    only: tuple[str, ...]
    sets: tuple[str, ...]
    budgets: tuple[float, ...]
    out: Path
    is_quick: bool


@dataclass(frozen=True)
class Plan:
    """The runs of one figure, and where its picture goes."""

    figure: "FigureOf"
    tasks: "list[FigureTask]"
    folder: Path
    missing: dict[str, str]
    """Curves whose data are not here, or a computed figure's name, and what is missing."""


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIGURE...", help="As 000-1, or the path of a figure file."),
    ] = None,
    is_listed: Annotated[bool, typer.Option("--list", help="Say what each figure takes.")] = False,
    is_all: Annotated[bool, typer.Option("--all", help="Every figure there is.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds of one seed.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=256, help="Runs beside each other (default: cores).")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Seeds 0 to SEEDS-1 (default: the file's).")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only the curves of this pattern; repeatable.")
    ] = None,
    epsilons: Annotated[
        list[float] | None, typer.Option("--epsilon", help="Only this budget; repeatable.")
    ] = None,
    sets: Sets = None,
    out: Annotated[Path, typer.Option("--out", help="Each figure gets a folder in it.")] = Path(
        "runs"
    ),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run what is missing of figures of the papers, and draw them; on again if interrupted."""
    use_data_dir(data_dir)
    from manifed.cli.launch import guarded
    from manifed.runs.places import real

    asked = Asked(seeds, tuple(only or ()), tuple(sets or ()), tuple(epsilons or ()),
                  real("--out", out), quick)  # fmt: skip
    named = list(figures or ())
    if (bool(named) == is_all) if not is_listed else is_all and bool(named):
        fail("reproduce: expected figures as 000-1, or --all, or --list")
    found = guarded(lambda: [_find(name) for name in named] or _all(), fail)
    guarded(lambda: _check(asked, found), fail)
    if is_listed:
        guarded(lambda: _list(found, asked, as_json=as_json), fail)
        return
    plans = guarded(lambda: [_plan(figure, asked) for figure in found], fail)

    def made() -> tuple[list[str], list[list[Path]]]:
        try:
            return _run(plans, jobs or _cores()), [_draw(plan, is_quick=quick) for plan in plans]
        except Ended as end:
            fail(go_on(), end.code)

    failed, drawn = guarded(made, fail)
    if as_json:
        print_json(
            {
                "figures": {p.figure.figure: list(map(str, d))
                            for p, d in zip(plans, drawn, strict=True)},
                "failed": failed,
            }
        )  # fmt: skip
    if failed:
        fail(f"{len(failed)} runs failed; the same command runs them again", 1)


def _check(asked: Asked, figures: "Sequence[FigureOf]") -> None:
    """Refuse budgets that are none, and those that no figure of these has."""
    from manifed.errors import ConfigError
    from manifed.experiment.figure_files import check_budgets

    check_budgets("--epsilon", asked.budgets)
    if asked.budgets and not any(figure.file.budgets for figure in figures):
        raise ConfigError("--epsilon: expected a figure with budgets on its axis, got none")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- which figures -------------------------------------------------------------------------------
def _folder() -> Path:
    from manifed.errors import ConfigError
    from manifed.flower.run_config import APP_FOLDER

    folder = APP_FOLDER / "configs" / "figures"
    if not folder.is_dir():
        raise ConfigError(
            "reproduce: the papers' figures are files of a clone, configs/figures/, which the "
            "installed library does not hold; run it there, or give the path of a figure file"
        )
    return folder


def _all() -> "list[FigureOf]":
    from manifed.experiment.figure_files import read_figure

    return [read_figure(path) for path in sorted(_folder().glob("*.toml"))]


def _find(name: str) -> "FigureOf":
    from manifed.errors import ConfigError
    from manifed.experiment.figure_files import read_figure
    from manifed.experiment.paths import nearest

    if name.endswith(".toml"):
        return read_figure(Path(name))
    path = _folder() / f"{name.replace('-', '_')}.toml"
    if not path.is_file():
        known = [other.stem.replace("_", "-") for other in sorted(_folder().glob("*.toml"))]
        meant = nearest(name, known)
        hint = f"did you mean {meant!r}?" if meant else "--list shows them"
        raise ConfigError(f"reproduce: expected a figure, got {name!r}; {hint}")
    return read_figure(path)


# -- runs ----------------------------------------------------------------------------------------
def _plan(figure: "FigureOf", asked: Asked) -> Plan:
    from manifed.cli.application import reproduction
    from manifed.experiment.figure_files import selected
    from manifed.runs.figure_runs import tasks_of, without_data

    file = figure.file
    home = asked.out / "quick" if asked.is_quick else asked.out
    of = _with_curves(figure)
    curves = selected(list(of.choices), asked.only)
    seeds = range(asked.seeds or (1 if asked.is_quick else file.seeds))
    if file.drawing != "panels":
        reproduction().check(figure, of)
    tasks: list[FigureTask] = []
    for budget in _budgets(figure, asked) or (None,):
        folder, sets = home / of.figure, asked.sets
        if budget is not None:
            folder /= f"epsilon-{budget:g}"
        for curve in curves:
            if budget is not None:
                sets = (*asked.sets, *_noise(figure, curve, budget, asked))
            tasks += tasks_of(of, [curve], seeds, folder, sets, is_quick=asked.is_quick)
    missing = without_data(tasks)
    if file.data and (what := reproduction().missing(figure)) is not None:
        missing[figure.figure] = what
    kept = [task for task in tasks if task.curve not in missing]
    return Plan(figure, kept, home / figure.figure, missing)


def _with_curves(figure: "FigureOf") -> "FigureOf":
    """The figure whose curves are drawn: itself, or the one it names, beside it where a file."""
    from manifed.errors import ConfigError

    named = figure.file.runs_of
    if named is None:
        return figure
    of = _find(str(figure.path.parent / named) if named.endswith(".toml") else named)
    if not of.choices:
        raise ConfigError(f"{figure.path}: runs_of: expected a figure with curves, got {named!r}")
    return of


def _budgets(figure: "FigureOf", asked: Asked) -> tuple[float, ...]:
    budgets = tuple(figure.file.budgets)
    if asked.budgets and budgets:
        return asked.budgets
    return (
        tuple(dict.fromkeys((budgets[0], budgets[-1]))) if asked.is_quick and budgets else budgets
    )


def _noise(figure: "FigureOf", curve: str, budget: float, asked: Asked) -> tuple[str, ...]:
    """What the accountant of the clone puts over a curve's noise for one budget."""
    from manifed.cli.application import reproduction
    from manifed.runs.figure_runs import tasks_of

    (task,) = tasks_of(figure, [curve], [0], Path("nowhere"), asked.sets, is_quick=asked.is_quick,
                       checks=False)  # fmt: skip
    found: tuple[str, ...] = reproduction().noise_for(task.config, curve, budget)
    return found


def _run(plans: Sequence[Plan], jobs: int) -> list[str]:
    """Run what is missing of all figures, and say what is done of all; who failed."""
    from manifed.runs.pool import run_all
    from manifed.runs.progress import over_runs

    for plan in plans:
        for curve, missing in plan.missing.items():
            sys.stderr.write(f"left out: {curve}: {missing}\n")
    tasks = list(
        {t.directory: t for plan in plans for t in plan.tasks if not t.is_finished}.values()
    )
    kept = sum(len(plan.tasks) for plan in plans) - len(tasks)
    if tasks:
        sys.stderr.write(f"{len(tasks)} runs, {jobs} beside each other; {kept} are here already\n")
    for task in tasks:
        if task.starts_anew:  # `tasks_of` has seen that it is a run of this very config
            task.clear()
    with over_runs(len(tasks)) as show:
        failed = run_all(tasks, jobs, lambda task, error: show(task.directory.name, error))
    return [task.directory.name for task in failed]


# -- pictures ------------------------------------------------------------------------------------
def _draw(plan: Plan, *, is_quick: bool) -> list[Path]:
    from manifed.cli.application import reproduction
    from manifed.runs.figure_runs import runs_of, verdicts_of
    from manifed.runs.report.panels import draw_panels

    figure, drawn = plan.figure, list[Path]()
    file = figure.file
    if file.data and figure.figure in plan.missing:
        pass  # said already
    elif file.drawing == "computed":
        drawn = reproduction().draw_computed(figure, plan.folder, is_quick=is_quick)
    elif file.drawing == "panels":
        drawn = draw_panels(figure, runs_of(plan.tasks), plan.folder, is_quick=is_quick)
    elif plan.tasks and all(task.is_finished for task in plan.tasks):
        drawn = reproduction().draw_runs(figure, plan.tasks, plan.folder, is_quick=is_quick)
    sys.stdout.write(f"\n{figure.figure}: {file.title}\n  {file.shows}\n")
    for line in verdicts_of(figure):
        sys.stdout.write(f"  {line}\n")
    sys.stdout.write(
        "".join(f"{path}\n" for path in drawn) or "  not drawn: no data, or no finished run\n"
    )
    return drawn


def _list(figures: "Sequence[FigureOf]", asked: Asked, *, as_json: bool) -> None:
    from dataclasses import replace

    from manifed.problems.readers import DOWNLOADED
    from manifed.runs.figure_runs import duration_of
    from manifed.runs.progress import duration

    told = list[dict[str, object]]()
    for figure in figures:
        tasks = _listed(figure, asked)
        spent = duration_of(tasks, _listed(figure, replace(asked, is_quick=True)))
        kinds = {*figure.file.data, *(task.config.data.kind for task in tasks)}
        told.append(
            {
                "figure": figure.figure,
                "title": figure.file.title,
                "runs": len(tasks),
                "rounds": sum(task.config.federation.num_rounds for task in tasks),
                "data": sorted(kinds & DOWNLOADED),
                "checks": list(figure.file.checks),
                "duration": None if spent is None else asdict(spent),
            }
        )
        took = "not measured: --quick tells" if spent is None else duration(spent.seconds)
        if spent is not None:
            took += " measured" if spent.is_measured else " estimated"
        needs = ", ".join(sorted(kinds & DOWNLOADED)) or "-"
        sys.stdout.write(
            f"{figure.figure:22}{len(tasks):>5} runs{told[-1]['rounds']:>8} rounds  "
            f"data: {needs:18} checks: {len(figure.file.checks)}  {took}\n"
        )
    sys.stdout.write(
        "Times are those of one run after another: measured in the run folders, or estimated from "
        "the rounds that were run.\n"
    )
    if as_json:
        print_json({"figures": told})


def _listed(figure: "FigureOf", asked: Asked) -> "list[FigureTask]":
    """The runs of a figure for a list: budgets as folders, their noise not looked for."""
    from manifed.experiment.figure_files import selected
    from manifed.runs.figure_runs import tasks_of

    of = _with_curves(figure)
    curves = selected(list(of.choices), asked.only)
    home = (asked.out / "quick" if asked.is_quick else asked.out) / of.figure
    seeds = range(asked.seeds or (1 if asked.is_quick else figure.file.seeds))
    folders = [home / f"epsilon-{b:g}" for b in _budgets(figure, asked)] or [home]
    return [
        task
        for folder in folders
        for task in tasks_of(of, curves, seeds, folder, asked.sets, checks=False,
                             is_quick=asked.is_quick)
    ]  # fmt: skip

"""The command ``manifed sweep``: one config over several values and seeds."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manifed.cli.options import ConfigPath, DataDir, fail, go_on, use_data_dir
from manifed.runs.document import Json, print_json
from manifed.runs.interrupt import Ended

if TYPE_CHECKING:
    from manifed.runs.sweep import Row, Trial

NOT_ACCOUNTED = (
    "privacy: each run's statement prices that run alone. The search is not accounted: to choose "
    "among these {runs} runs on private data, or to show them, costs more than one of them. Search "
    "on public data, or pay for the search: --private."
)


def sweep(
    config: ConfigPath,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=V[,V...]", help="One value, or several; repeatable."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of each setting: 0-4, or 1,7.")] = "0",
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Runs beside each other.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Where the runs go.")] = None,
    measure: Annotated[
        str | None, typer.Option(help="The measured column that the table compares.")
    ] = None,
    private: Annotated[
        float | None,
        typer.Option(
            "--private",
            min=1,
            max=1e4,
            metavar="MEAN",
            help="Publish the best of a random number of runs, MEAN on average, and its price.",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a config over several values and seeds; a table, curves, and on again if interrupted."""
    use_data_dir(data_dir)
    if private is not None:
        _search(config, tuple(sets or ()), seeds, jobs, out, measure, private, as_json=as_json)
        return
    from manifed.cli.launch import check_parts, guarded
    from manifed.experiment.figure_files import split
    from manifed.flower.run_config import find
    from manifed.runs.places import check_new, real
    from manifed.runs.pool import run_all
    from manifed.runs.sweep import seeds_of, trials_of

    def planned() -> tuple[Path, "list[Trial]"]:
        path = find(config)
        folder = real("--out", out or Path("runs") / f"sweep-{split(path)[1] or path.stem}")
        trials = trials_of(path, tuple(sets or ()), seeds_of(seeds), folder)
        for trial in {trial.setting: trial for trial in trials}.values():
            check_parts(trial.config)
        check_new("--out", folder)
        return folder, trials

    folder, trials = guarded(planned, fail)
    done: list[str] = []

    def show(trial: "Trial", error: str | None) -> None:
        done.append(trial.directory.name)
        state = "done" if error is None else f"FAILED: {error}"
        sys.stderr.write(f"{len(done)}/{len(trials)} {done[-1]}: {state}\n")

    try:
        failed = run_all(trials, jobs, show)
    except Ended as end:
        fail(go_on(), end.code)
    if len(failed) == len(trials):
        fail(f"all {len(trials)} runs failed; their folders are in {folder}", 1)
    column, rows, written = guarded(lambda: _results(trials, folder, measure), fail)
    _print(column, rows)
    if any(trial.config.privacy.kind != "none" for trial in trials):
        sys.stdout.write(NOT_ACCOUNTED.format(runs=len(trials)) + "\n")
    sys.stdout.write("\n".join(map(str, written)) + "\n")
    if as_json:
        print_json(
            {
                "label": " / ".join(sorted({row.privacy for row in rows})),
                "measure": column,
                "rows": [asdict(row) for row in rows],
                "failed": [trial.directory.name for trial in failed],
                "directory": str(folder),
            }
        )
    if failed:
        fail(f"{len(failed)} of {len(trials)} runs failed; the same command runs them again", 1)


def _search(
    config: str,
    sets: tuple[str, ...],
    seeds: str,
    jobs: int,
    out: Path | None,
    measure: str | None,
    mean: float,
    *,
    as_json: bool,
) -> None:
    """The best of a random number of runs."""
    from manifed.cli.launch import check_parts, guarded
    from manifed.errors import ConfigError
    from manifed.experiment.figure_files import split
    from manifed.experiment.privacy import plan_label
    from manifed.experiment.search_price import law_of, to_public
    from manifed.flower.run_config import find
    from manifed.runs.places import check_new, real
    from manifed.runs.search import Found, Sought, conduct, sought, text_of
    from manifed.runs.sweep import seeds_of

    def planned() -> Sought:
        path, (seed, *others) = find(config), seeds_of(seeds)
        if others:
            raise ConfigError(f"--seeds: expected one seed beside --private, got {seeds!r}")
        folder = real("--out", out or Path("runs") / f"search-{split(path)[1] or path.stem}")
        asked = sought(path, sets, seed, law_of(mean, "--private"), measure, folder)
        for setting in asked.settings:
            check_parts(setting.config)
        check_new("--out", folder)
        price = to_public(asked.config, asked.law)
        label = plan_label(asked.config)
        sys.stderr.write(f"{label}: what will be published costs epsilon {price:.4g}\n")
        return asked

    asked = guarded(planned, fail)

    def made() -> Found:
        try:
            return conduct(asked, jobs, lambda: sys.stderr.write("a run has ended\n"))
        except Ended as end:
            fail(go_on(), end.code)

    found = guarded(made, fail)
    sys.stdout.write(f"{text_of(found)}\npublished: {found.directory}\n")
    if as_json:
        print_json(found.statement | {"directory": str(found.directory)})


def _results(
    trials: "list[Trial]", folder: Path, measure: str | None
) -> "tuple[str, list[Row], list[Path]]":
    from manifed.runs.report.figures import draw_curves
    from manifed.runs.sweep import curves, measure_of, rows_of, write_csv

    found = curves(trials)
    column = measure_of(found, measure)
    return column, rows_of(found, column), [write_csv(trials, folder), *draw_curves(found, folder)]


def _print(measure: str, rows: "list[Row]") -> None:
    width = max(len(row.label) for row in rows)
    words = max(len(row.privacy) for row in rows)
    sys.stdout.write(
        f"{measure}\n{'':{width}}  {'mean':>11s}  {'deviation':>11s}  {'least':>11s}  "
        f"{'greatest':>11s}  {'label':{words}}  {'epsilon':>9s}  runs\n"
    )
    for row in rows:
        deviation = "-" if row.runs < 2 else f"{row.deviation:.4g}"
        epsilon = "-" if row.epsilon is None else f"{row.epsilon:.4g}"
        sys.stdout.write(
            f"{row.label:{width}}  {row.mean:>11.4g}  {deviation:>11s}  {row.least:>11.4g}  "
            f"{row.greatest:>11.4g}  {row.privacy:{words}}  {epsilon:>9s}  {row.runs}\n"
        )

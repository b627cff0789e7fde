"""The command ``manifed`` and the face of ``simulation.py``: parse, run, report, exit code.

Bad input ends in one clear line on standard error and exit code 2. Heavy imports happen after the
arguments are read, so ``--help`` is quick.
"""

import gc
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer
from typer import Argument, Exit, Option, Typer, core, echo

from manifed.cli import privacy
from manifed.cli.options import (
    DEBUG,
    QUICKSTART,
    Command,
    ConfigPath,
    DataDir,
    Sets,
    answer,
    outcome,
    print_json,
    print_table,
)
from manifed.errors import ConfigError, RunEnded, one_line
from manifed.runs.interrupt import Ended, ending_signals

if TYPE_CHECKING:
    from manifed.runs.folder import RunFolder

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

_GARBAGE_EVERY = 50_000
"""Objects between two looks for garbage. Python's 700 look again and again through the thousands
that modules make and keep: up to a fifth of the time that a command takes to start."""

app = Typer(
    name="manifed",
    help="Federated learning on Riemannian manifolds with differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click suggests already
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
    pretty_exceptions_enable=False,
)


@app.command(cls=Command)
def run(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    engine: Annotated[str | None, Option(help="inline, ray or deployment.")] = None,
    out: Annotated[Path | None, Option(help="The run folder to make.")] = None,
    resume: Annotated[Path | None, Option(help="Go on with the run in this folder.")] = None,
    is_status: Annotated[
        bool, Option("--status", help="Say where the run of --resume is; do not go on.")
    ] = False,
    ledger_head: Annotated[
        str | None,
        Option("--ledger-head", help="The head that an earlier part of a resumed run printed."),
    ] = None,
    insecure: Annotated[
        bool, Option("--insecure", help="A deployment without TLS and node authentication.")
    ] = False,
    credentials: Annotated[
        Path | None,
        Option(help="Keys and certificates of a deployment, made if the folder has none."),
    ] = None,
    data_dir: DataDir = None,
    plain: Annotated[bool, Option("--plain", help="No progress bar.")] = False,
) -> None:
    """Run one experiment and leave a run folder, or go on with the run of one."""
    if is_status:
        from manifed.runs.status import status_of, text_of

        if resume is None:
            raise ConfigError("--status: expected --resume RUN_DIR beside it")
        found = status_of(resume)
        echo(text_of(found))
        print_json(found)
        return
    from manifed.cli.launch import Request, finished, launch
    from manifed.experiment.load import load
    from manifed.runs.manifest import process_began

    folder: RunFolder | None = None
    try:
        folder = launch(
            Request(config, tuple(sets or ()), engine, out, resume, plain, ledger_head, insecure,
                    credentials),
            process_began(),
        )  # fmt: skip
        _tell(folder)
        if load(str(folder.experiment_path)).output.plots:
            from manifed.runs.report import draw_finished

            draw_finished(folder)
    except Ended as ended:
        if folder is None:
            raise
        raise RunEnded(f"interrupted; {finished(folder)}", ended.code) from None


def _tell(folder: "RunFolder") -> None:
    """What a finished run came to, on the screen before a figure is drawn."""
    from manifed.runs.folder import printable
    from manifed.runs.statement import statement_of

    manifest = folder.manifest()
    lines = [f"stopped: {manifest['stopped']}"] if manifest.get("stopped") else []
    lines += [json.dumps(manifest["final"]), f"run folder: {printable(folder.directory)}"]
    lines += [statement_of(manifest["privacy"])]
    lines += [f"ledger head: {manifest['ledger_head']}"] if manifest.get("ledger_head") else []
    lines += [f"seconds: {manifest['final']['seconds']:.1f} from start to end"]
    echo("\n".join(lines))
    print_json({"directory": str(folder.directory), **manifest["final"]})


@app.command(cls=Command)
def plan(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    out: Annotated[
        Path | None, Option(help="Where the config of the best method is written.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Predict what each method makes of the budget, best first; nothing is run or spent."""
    from manifed.experiment.load import parse, save, table_of
    from manifed.experiment.planner import planned, with_option
    from manifed.plan import plan_label

    table = table_of(config, tuple(sets or ()))
    found = planned(table, parse)
    made = [with_option(table, option) for option in found]
    rows = [
        {
            "method": option.name,
            "predicted_gap": option.gap,
            "num_rounds": option.num_rounds,
            "step_size": getattr(option.training, "step_size", None),
            "noise_multiplier": option.noise_multiplier,
            "numbers_up": option.numbers_up,
        }
        for option in found
    ]
    kind = table["problem"]["kind"]
    lines = [
        f"nothing is predicted for problem.kind = {kind!r}: the safe default (docs/choosing.md)"
        if found[0].gap is None
        else "gap: (f(x) - f*) / |f*|, a mean over runs, for a guessed problem (docs/choosing.md)"
    ]
    best = parse(made[0])
    if out is not None:
        save(best, out)
        lines.append(f"config: {out}")
    methods = [
        row
        | {name: one.get(name) for name in ("training", "strategy")}
        | {"l2_norm_clip": option.clip}
        for row, one, option in zip(rows, made, found, strict=True)
    ]
    answer({"methods": methods}, *lines, rows=rows, label=plan_label(best.setting))


@app.command(cls=Command)
def audit(
    config: ConfigPath = QUICKSTART,
    trials: Annotated[int, Option(min=40, help="Runs on each dataset.")] = 20000,
    sets: Sets = None,
    data_dir: DataDir = None,
) -> None:
    """Attack the mechanism: the epsilon that an attack proves, beside the one that is claimed."""
    from manifed.audit.bound import find_strongest
    from manifed.audit.of_config import attacks_of
    from manifed.cli.launch import checked_config
    from manifed.plan import plan_label

    experiment = checked_config(config, sets)
    best, found = find_strongest(attacks_of(experiment, trials))
    attacks = [finding.plain() for finding in found]
    lines = [f"{finding.line()}\n  {finding.audited.how}" for finding in found]
    answer(best.plain() | {"attacks": attacks}, *lines, label=plan_label(experiment.setting))
    if any(finding.verdict.is_violated for finding in found):
        raise Exit(1)


@app.command(cls=Command)
def sweep(
    config: ConfigPath,
    sets: Annotated[
        list[str] | None,
        Option("--set", metavar="A.B=V[,V...]", help="One value, or several; repeatable."),
    ] = None,
    seeds: Annotated[str, Option(help="Seeds of each setting: 0-4, or 1,7.")] = "0",
    jobs: Annotated[int, Option(min=1, max=256, help="Runs beside each other.")] = 1,
    out: Annotated[Path | None, Option(help="Where the runs go.")] = None,
    measure: Annotated[
        str | None, Option(help="The measured column that the table compares.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run a config over several values and seeds; a table, curves, and on again if interrupted."""
    from manifed.cli import sweep as of_runs
    from manifed.flower.run_config import find

    of_runs.sweep(find(config), sets or (), seeds, jobs, out, measure)


@app.command(cls=Command)
def report(
    folders: Annotated[
        list[Path],
        Argument(
            metavar="RUN...", help="Run folders; of several, those that are none are skipped."
        ),
    ],
    out: Annotated[
        Path | None,
        Option(help="The folder for page and figures (one run: its own; several: ./report)."),
    ] = None,
    is_server_view: Annotated[
        bool,
        Option(
            "--server-view",
            help="Show what only the server may see; it voids the secrecy of the sample.",
        ),
    ] = False,
) -> None:
    """Write one page (report.html) and figures of runs, and print their table."""
    from manifed.durable import write_atomically
    from manifed.runs.export import viewed
    from manifed.runs.places import check_file, check_new
    from manifed.runs.report import curves_of, page_of, read, rows_of, write_figures

    kept: list[Path] = []
    for folder in folders:
        if not folder.exists():
            raise ConfigError(f"Expected a run folder, got {folder}, which is not there")
        if len(folders) == 1 or (folder / "manifest.json").is_file():
            kept.append(folder)
        else:
            echo(f"skipped: {one_line(str(folder), 300)} holds no manifest.json", err=True)
    runs = [viewed(read(one), is_server_view=is_server_view) for one in kept or folders]
    home = out or (folders[0] if len(folders) == 1 else Path("report"))
    page = home / "report.html"
    check_new("--out", home)
    content = page_of(runs, is_server_view=is_server_view).encode()
    home.mkdir(parents=True, exist_ok=True)
    check_file("--out", page)
    write_atomically(page, content)
    paths = [page, *write_figures(curves_of(runs), home)]
    print_table([row for _, row in rows_of(runs)])
    told = [(run.manifest.get("privacy") or {}).get("doubts", ()) for run in runs]
    notes = dict.fromkeys(f"note: {doubt}" for some in told for doubt in some)
    echo("\n".join([*notes, *map(str, paths)]))
    print_json({"files": paths, "is_server_view": is_server_view})


@app.command(cls=Command)
def export(
    directory: Annotated[Path, Argument(help="The folder of a finished run.")],
    out: Annotated[Path, Option(help="The folder to make.")],
) -> None:
    """Write what may be published of a run: no cohorts, no traffic, no checksum of the data."""
    from manifed.runs.export import export as write
    from manifed.runs.folder import RunFolder, json_object
    from manifed.runs.statement import label_in_manifest

    paths = write(directory, out)
    manifest = json_object(RunFolder(out).manifest_path)
    doubts = (manifest["privacy"] or {}).get("doubts", [])
    document = {"doubts": doubts, "files": [path.name for path in paths]}
    notes = (f"note: {doubt}" for doubt in doubts)
    answer(document, *notes, *map(str, paths), label=label_in_manifest(manifest))


_REHEARSAL = (
    "REHEARSAL: this site answers with noise that anybody can subtract. It protects nobody; use "
    "made-up data only."
)


@app.command(cls=Command)
def site(
    ledger: Annotated[
        Path, Option(help="The folder that names the data set and keeps its ledger.")
    ],
    partition: Annotated[int, Option(min=0, help="Which client of a federation this is.")],
    max_epsilon: Annotated[float, Option(help="What all answers together may cost.")],
    delta: Annotated[float, Option(help="At which delta.")],
    socket: Annotated[Path, Option(help="Where the SuperNode's user finds this process.")],
    data: Annotated[
        Path | None, Option(help="The site's own file; else the data set of the experiment.")
    ] = None,
    config: Annotated[
        list[Path] | None, Option(help="An experiment to answer: the site's own copy.")
    ] = None,
    allow_config: Annotated[
        list[str] | None, Option(help="Hash of an experiment to answer (config_sha256).")
    ] = None,
    num_examples: Annotated[
        int | None, Option(min=1, help="N_i, public, where the experiment names none.")
    ] = None,
    allow_user: Annotated[
        list[str] | None,
        Option(help="A user who may connect, beside this process's own (the SuperNode's)."),
    ] = None,
    socket_group: Annotated[
        str | None, Option(help="The group that the socket is given to.")
    ] = None,
    accept_changed_data: Annotated[
        bool, Option(help="The file changed and is the same people's.")
    ] = False,
    ledger_head: Annotated[
        list[str] | None, Option(help="A head that was printed earlier: detects a rollback.")
    ] = None,
    rehearsal: Annotated[
        bool, Option(help="Take seeded noise too, which protects nobody.")
    ] = False,
) -> None:
    """Own one file, its budget and its noise; answer a SuperNode over a Unix socket."""
    from manifed.site import process
    from manifed.site.site import Wanted

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if rehearsal:
        process.say(_REHEARSAL)
    os.umask(0o077)
    wanted = Wanted(
        folder=ledger,
        partition=partition,
        max_epsilon=max_epsilon,
        delta=delta,
        socket=socket,
        data=data,
        configs=tuple(config or ()),
        hashes=tuple(allow_config or ()),
        num_examples=num_examples,
        users=tuple(allow_user or ()),
        group=socket_group,
        is_changed_data_accepted=accept_changed_data,
        heads=tuple(ledger_head or ()),
        is_rehearsal=rehearsal,
    )
    try:
        process.run(wanted, print_json)
    except Ended:  # how a service is stopped
        raise Exit(0) from None


_prices = Typer(help="Price privacy without running anything.", no_args_is_help=True)
for _command in (
    privacy.compare, privacy.statement, privacy.ledger, privacy.reconcile, privacy.calibrate,
    privacy.curve, privacy.secldp, privacy.series,
):  # fmt: skip
    _prices.command(cls=Command)(_command)
app.add_typer(_prices, name="privacy")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point of ``manifed``."""
    group = click.version_option(package_name="manifed", message="%(prog)s %(version)s")(
        typer.main.get_group(app)
    )
    call(group, sys.argv[1:] if argv is None else argv, "manifed")


def simulation(argv: Sequence[str]) -> NoReturn:
    """The entry point of ``python simulation.py``: the command ``run`` alone."""
    call(typer.main.get_group(app).commands["run"], argv, "python simulation.py")


def call_alone(function: Callable[..., None], argv: Sequence[str], name: str) -> NoReturn:
    """Run a program of one command and exit, as `call` does."""
    alone = Typer(add_completion=False)
    alone.command()(function)
    call(typer.main.get_command(alone), argv, name)


def call(command: click.Command, argv: Sequence[str], name: str) -> NoReturn:
    """Run a command and exit; whatever it raises ends in one line (`outcome`).

    SIGTERM and SIGHUP end it as Ctrl-C does, from here on. An error that nothing foresaw is a
    traceback under MANIFED_DEBUG.
    """
    gc.set_threshold(_GARBAGE_EVERY)
    core.HAS_RICH = False  # frames take longer to import than all else that help needs
    code: Any = 1
    try:
        with ending_signals():
            code = command(args=list(argv), prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_text:
        help_text.show()
        code = 2
    except Ended as ended:
        code = ended.code
        echo(f"error: interrupted; start again: {name} {shlex.join(argv)}", err=True)
    except BrokenPipeError:  # who reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if os.environ.get(DEBUG) and not hasattr(error, "exit_code"):
            raise
        line, code = outcome(error)
        echo(f"error: {line}", err=True)
    gc.freeze()  # or the interpreter's end looks through all modules once more, half a second long
    sys.exit(code if isinstance(code, int) else 0)

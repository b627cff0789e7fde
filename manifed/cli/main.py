"""The command ``manifed`` and ``simulation.py``: options, commands and exit codes.

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
from typing import Annotated, Any, NoReturn

import click
import typer
from typer import Argument, Exit, Option, Typer, core, echo

from manifed.cli import privacy
from manifed.cli.options import (
    QUICKSTART,
    Command,
    ConfigPath,
    DataDir,
    Labels,
    Pdf,
    Sets,
    answer,
    outcome,
    print_json,
    print_table,
)
from manifed.errors import ConfigError, RunEnded, one_line
from manifed.runs.interrupt import Ended, ending_signals

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


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
    engine: Annotated[str | None, Option(help="Engine: inline, ray or deployment.")] = None,
    out: Annotated[Path | None, Option(help="Run folder to create.")] = None,
    resume: Annotated[Path | None, Option(help="Resume the run in this folder.")] = None,
    is_status: Annotated[
        bool, Option("--status", help="Print the progress of the run of --resume and exit.")
    ] = False,
    ledger_head: Annotated[
        str | None,
        Option(
            "--ledger-head",
            help="Ledger head that an earlier part of the run printed; it is checked.",
        ),
    ] = None,
    insecure: Annotated[
        bool, Option("--insecure", help="Run a deployment without TLS and node authentication.")
    ] = False,
    credentials: Annotated[
        Path | None,
        Option(help="Folder of keys and certificates of a deployment; missing ones are created."),
    ] = None,
    data_dir: DataDir = None,
    plain: Annotated[
        bool, Option("--plain", help="Print plain lines instead of a progress bar.")
    ] = False,
) -> None:
    """Run one experiment, or resume a run.

    The run writes a folder. --resume continues the run of a folder.
    """
    if is_status:
        from manifed.runs.status import status_of, text_of

        if resume is None:
            raise ConfigError("--status: expected --resume RUN_DIR beside it")
        found = status_of(resume)
        echo(text_of(found))
        print_json(found)
        return
    from manifed.cli.launch import Request, launch
    from manifed.runs.folder import printable
    from manifed.runs.statement import statement_of

    folder = launch(
        Request(config, sets or (), engine, out, resume, plain, ledger_head, insecure, credentials)
    )
    try:
        manifest = folder.manifest()
        final = manifest["final"]
        if stopped := manifest["stopped"]:
            echo(f"stopped: {stopped}")
        echo(
            f"{json.dumps(final)}\nrun folder: {printable(folder.directory)}\n"
            f"{statement_of(manifest['privacy'])}\nledger head: {manifest['ledger_head']}\n"
            f"seconds: {final['seconds']:.1f} from start to end"
        )
        print_json({"directory": folder.directory, **final})
    except Ended as ended:
        where = printable(folder.directory)
        raise RunEnded(f"interrupted; the run is finished and whole: {where}", ended.code) from None


@app.command(cls=Command)
def plan(
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    out: Annotated[Path | None, Option(help="File for the config of the best method.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Choose the method for a budget.

    The one to take is listed first. Nothing is run, and no budget is spent.
    """
    from manifed.experiment.load import parse, save, table_of
    from manifed.experiment.planner import planned, trusts, with_option

    table = table_of(config, sets or ())
    found = planned(table, parse)
    made = [with_option(table, option) for option in found]
    rows = [
        {
            "method": option.name,
            "relative_noise": option.relative_noise,
            "l2_norm_clip": option.clip,
            "num_rounds": option.num_rounds,
            "step_size": getattr(option.training, "step_size", None),
            "noise_multiplier": option.noise_multiplier,
            "numbers_up": option.numbers_up,
        }
        for option in found
    ]
    lines = [
        "relative noise: length of the noise of a mean that takes the whole budget, over its clip; "
        "what a run will reach is not predicted (docs/choosing.md)"
    ]
    best = parse(made[0])
    if out:
        save(best, out)
        lines.append(f"config: {out}")
    methods = [
        {**row, "training": one.get("training"), "strategy": one.get("strategy"),
         "adaptive": one["privacy"].get("adaptive")}
        for row, one in zip(rows, made, strict=True)
    ]  # fmt: skip
    each = trusts(table, parse)
    answer({"methods": methods, "trusts": each}, *lines, rows=rows, label=best.setting.plan_label)
    echo("what another trust would give; it is another promise, and no plan changes it:")
    print_table(each)


@app.command(cls=Command)
def audit(
    config: ConfigPath = QUICKSTART,
    trials: Annotated[int, Option(min=40, help="Simulated runs per dataset.")] = 20000,
    sets: Sets = None,
    data_dir: DataDir = None,
) -> None:
    """Attack the mechanism of a config.

    It prints the epsilon that the attack proves beside the claimed one.
    """
    from manifed.audit.bound import find_all
    from manifed.audit.of_config import attacks_of
    from manifed.cli.launch import checked_config

    experiment = checked_config(config, sets)
    found = list(find_all(attacks_of(experiment, trials)))
    best = max(found, key=lambda verdict: verdict.power)
    answer(
        best.plain() | {"attacks": [verdict.plain() for verdict in found]},
        *[f"{verdict.line()}\n  {verdict.attack}" for verdict in found],
        label=experiment.setting.plan_label,
    )
    if any(verdict.is_violated for verdict in found):
        raise Exit(1)


@app.command(cls=Command)
def sweep(
    config: ConfigPath,
    sets: Annotated[
        list[str] | None,
        Option("--set", metavar="A.B=V[,V...]", help="One or several values of a key. Repeatable."),
    ] = None,
    seeds: Annotated[str, Option(help="Seeds of each setting, for example 0-4 or 1,7.")] = "0",
    jobs: Annotated[int, Option(min=1, max=256, help="Parallel runs.")] = 1,
    out: Annotated[Path | None, Option(help="Folder for the runs.")] = None,
    labels: Labels = None,
    pdf: Pdf = None,
    data_dir: DataDir = None,
) -> None:
    """Run a config over several values and seeds.

    It prints a table of all settings. Finished runs are skipped; rerun the command to resume.
    """
    from manifed.cli import sweep as of_runs
    from manifed.flower.run_config import find

    of_runs.sweep(find(config), sets or (), seeds, jobs, out, labels or (), pdf)


@app.command(cls=Command)
def report(
    folders: Annotated[
        list[Path],
        Argument(metavar="RUN...", help="Run folders. Among several, other folders are skipped."),
    ],
    out: Annotated[
        Path | None,
        Option(help="Folder for the page (default: the run folder, or ./report for several)."),
    ] = None,
    is_server_view: Annotated[
        bool,
        Option(
            "--server-view",
            help="Show what only the server may see. Do not publish it.",
        ),
    ] = False,
    labels: Labels = None,
    pdf: Pdf = None,
) -> None:
    """Write a page (report.html) about runs.

    The page shows their curves. A table is printed as well. Runs that differ in their seed only
    are one curve.
    """
    from manifed.durable import write_atomically
    from manifed.runs.export import viewed
    from manifed.runs.places import check_file, check_new
    from manifed.runs.report import curves_of, page_of, pdf_of, read, relabelled, rows_of

    is_one = len(folders) == 1
    kept = list[Path]()
    for folder in folders:
        if not folder.exists():
            raise ConfigError(f"Expected a run folder, got {folder}, which does not exist")
        if is_one or (folder / "manifest.json").is_file():
            kept.append(folder)
        else:
            echo(f"skipped: {one_line(str(folder), 300)} holds no manifest.json", err=True)
    runs = [viewed(read(one), is_server_view=is_server_view) for one in kept or folders]
    runs = relabelled(runs, labels or ())
    home = out or (folders[0] if is_one else Path("report"))
    page = home / "report.html"
    check_new("--out", home)
    files = {page: page_of(runs, is_server_view=is_server_view).encode()}
    if pdf:
        check_file("--pdf", pdf)
        title = "SERVER VIEW, NOT FOR PUBLICATION" if is_server_view else ""
        files[pdf] = pdf_of(curves_of(runs), title=title)
    home.mkdir(parents=True, exist_ok=True)
    check_file("--out", page)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    print_table([row for _, row in rows_of(runs)])
    notes = dict.fromkeys(
        f"note: {doubt}" for run in runs for doubt in run.manifest["privacy"].get("doubts", ())
    )
    echo("\n".join([*notes, *map(str, files)]))
    print_json({"files": list(files), "is_server_view": is_server_view})


@app.command(cls=Command)
def export(
    directory: Annotated[Path, Argument(help="Folder of a finished run.")],
    out: Annotated[Path, Option(help="Folder to create.")],
) -> None:
    """Copy the publishable part of a run.

    It leaves out cohorts, traffic and the checksum of the data.
    """
    from manifed.runs.export import export as write
    from manifed.runs.folder import RunFolder, json_object
    from manifed.runs.statement import label_in

    paths = write(directory, out)
    privacy = json_object(RunFolder(out).manifest_path)["privacy"]
    doubts = privacy.get("doubts", [])
    answer(
        {"doubts": doubts, "files": [path.name for path in paths]},
        *(f"note: {doubt}" for doubt in doubts),
        *map(str, paths),
        label=label_in(privacy),
    )


@app.command(cls=Command)
def predict(
    directory: Annotated[Path, Argument(help="Folder of a finished run, or of its export.")],
    file: Annotated[Path, Argument(help="File with the columns that the run was trained on.")],
    out: Annotated[Path | None, Option(help="csv file to write (default: print it).")] = None,
    judge: Annotated[
        bool, Option("--judge", help="Read the labels too, and print accuracy or rmse.")
    ] = False,
    rebuild: Annotated[
        bool, Option("--rebuild", help="Rebuild rows from their principal components.")
    ] = False,
) -> None:
    """Predict each row of a file.

    The file is read as in training. A prediction costs no privacy.
    """
    from manifed.durable import write_atomically
    from manifed.runs.places import check_file
    from manifed.runs.predict import predicted

    if out is not None:
        check_file("--out", out)
    found = predicted(directory, file, is_judged=judge, is_rebuilt=rebuild)
    said = [f"{name}: {value:.4g}" for name, value in found.quality.items()]
    if out is None:
        echo(found.csv, nl=False)
        echo("\n".join(said), err=True, nl=bool(said))
        print_json({"label": found.label, **found.quality, **found.columns})
        return
    write_atomically(out, found.csv.encode())
    count = len(found.columns["row"])
    answer({"rows": count, **found.quality}, *said, f"{out}: {count} rows", label=found.label)


@app.command(cls=Command)
def intervals(
    directory: Annotated[Path, Argument(help="Folder of a finished run of moments.")],
    statistic: Annotated[str, Option(help="A statistic of the rows of all sites.")] = "mean",
    level: Annotated[float, Option(help="Share of the intervals that hold the value.")] = 0.95,
) -> None:
    """Print a statistic of all rows with its intervals.

    It is read from the released moments, which costs no privacy.
    """
    from manifed.intervals import of_run
    from manifed.runs.statement import label_in

    moments = of_run(directory)
    rows = moments.interval(statistic, level).rows(moments.columns)
    answer({"rows": rows}, rows=rows, label=label_in(moments.statement))


@app.command(cls=Command)
def site(
    ledger: Annotated[Path, Option(help="Folder of the ledger of this data set.")],
    partition: Annotated[int, Option(min=0, help="Number of this client in the federation.")],
    max_epsilon: Annotated[float, Option(help="Largest epsilon of all answers together.")],
    delta: Annotated[float, Option(help="Delta of --max-epsilon.")],
    socket: Annotated[Path, Option(help="Unix socket to create for the SuperNode.")],
    data: Annotated[
        Path | None, Option(help="Data file of the site (default: the data set of the experiment).")
    ] = None,
    config: Annotated[
        list[Path] | None,
        Option(help="Config of an experiment to answer (a local copy). Repeatable."),
    ] = None,
    allow_config: Annotated[
        list[str] | None,
        Option(help="Hash (config_sha256) of an experiment to answer. Repeatable."),
    ] = None,
    num_examples: Annotated[
        int | None, Option(min=1, help="Public N_i, if the experiment states none.")
    ] = None,
    allow_user: Annotated[
        list[str] | None,
        Option(help="Another user who may connect: that of the SuperNode. Repeatable."),
    ] = None,
    socket_group: Annotated[str | None, Option(help="Group of the socket.")] = None,
    accept_changed_data: Annotated[
        bool, Option(help="Accept a changed data file of the same people.")
    ] = False,
    ledger_head: Annotated[
        list[str] | None,
        Option(help="Ledger head that was printed earlier; it detects a rollback. Repeatable."),
    ] = None,
    rehearsal: Annotated[
        bool, Option(help="Also answer with seeded noise, which protects nobody.")
    ] = False,
    is_dry: Annotated[
        bool,
        Option("--check", help="Read --data as --config says, print which rows count, and exit."),
    ] = False,
) -> None:
    """Run the process of a site, which guards one data file.

    It enforces the budget, adds the noise, and answers a SuperNode over a Unix socket.
    """
    from manifed.site import process
    from manifed.site.site import Wanted

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if rehearsal:
        process.say(
            "REHEARSAL: this site answers with noise that anybody can subtract. It protects "
            "nobody; use made-up data only."
        )
    if is_dry:
        raise Exit(2 if process.check(data, config or ()) else 0)
    os.umask(0o077)
    try:
        process.run(
            Wanted(
                ledger,
                partition,
                max_epsilon,
                delta,
                socket,
                data,
                configs=config or (),
                hashes=allow_config or (),
                num_examples=num_examples,
                users=allow_user or (),
                group=socket_group,
                is_changed_data_accepted=accept_changed_data,
                heads=ledger_head or (),
                is_rehearsal=rehearsal,
            ),
            print_json,
        )
    except Ended:  # how a service is stopped
        raise Exit(0) from None


_prices = Typer(help="Compute and check privacy prices without a run.", no_args_is_help=True)
for _command in (
    privacy.app, privacy.statement, privacy.ledger, privacy.reconcile,
    privacy.calibrate, privacy.curve, privacy.secldp, privacy.secure_sum,
):  # fmt: skip
    _prices.command(cls=Command)(_command)
app.add_typer(_prices, name="privacy")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point of the command ``manifed``."""
    call(
        click.version_option(package_name="manifed", message="%(prog)s %(version)s")(
            typer.main.get_group(app)
        ),
        sys.argv[1:] if argv is None else argv,
        "manifed",
    )


def simulation(argv: Sequence[str]) -> NoReturn:
    """The entry point of ``python simulation.py``, which has the command ``run`` alone."""
    call(typer.main.get_group(app).commands["run"], argv, "python simulation.py")


def call_alone(function: Callable[..., None], argv: Sequence[str], name: str) -> NoReturn:
    """Runs a program that has one command, and exits as `call` does."""
    alone = Typer(add_completion=False)
    alone.command()(function)
    call(typer.main.get_command(alone), argv, name)


def call(command: click.Command, argv: Sequence[str], name: str) -> NoReturn:
    """Runs a command and exits; an error ends in one line (`outcome`).

    SIGTERM and SIGHUP end it as Ctrl-C does, from here on. An error that nothing foresaw is a
    traceback under MANIFED_DEBUG.
    """
    # between two looks for garbage; Python's 700 look again and again through the thousands of
    # objects that modules make and keep: up to a fifth of the time that a command takes to start
    gc.set_threshold(50_000)
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
        if os.environ.get("MANIFED_DEBUG") and not hasattr(error, "exit_code"):
            raise
        line, code = outcome(error)
        echo(f"error: {line}", err=True)
    gc.freeze()  # or the interpreter's end looks through all modules once more, half a second long
    sys.exit(code if isinstance(code, int) else 0)

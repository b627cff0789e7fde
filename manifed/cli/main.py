"""The command ``manifed`` and the face of ``simulation.py``: parse, run, report, exit code.

Bad input ends in one clear line on standard error and exit code 2. Heavy imports happen after the
arguments are read, so ``--help`` is quick.
"""

import gc
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer
from typer import Option, Typer, core, echo

from manifed.cli import commands, privacy
from manifed.cli.options import (
    DEBUG,
    QUICKSTART,
    Command,
    ConfigPath,
    DataDir,
    Sets,
    outcome,
    print_json,
)
from manifed.errors import ConfigError, RunEnded
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


for _command in (
    commands.audit, commands.export, commands.plan, commands.report, commands.site, commands.sweep,
):  # fmt: skip
    app.command(cls=Command)(_command)
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

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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import core

from manifed.cli.options import QUICKSTART, ConfigPath, DataDir, Sets, fail, use_data_dir
from manifed.runs.document import Json, print_json
from manifed.runs.interrupt import Ended, ending_signals

if TYPE_CHECKING:
    from manifed.runs.run_folder import RunFolder

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

GARBAGE_EVERY = 50_000
"""Objects between two looks for garbage. Python's 700 look again and again through the thousands
that modules make and keep: up to a fifth of the time that a command takes to start."""

app = typer.Typer(
    name="manifed",
    help="Federated learning on Riemannian manifolds with differential privacy.",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests already
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
    pretty_exceptions_enable=False,
)


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        sys.stdout.write(f"manifed {version('manifed')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="Print it and exit."),
    ] = False,
) -> None:
    """Federated learning on Riemannian manifolds with differential privacy."""


@app.command()
def run(
    context: typer.Context,
    config: ConfigPath = QUICKSTART,
    sets: Sets = None,
    engine: Annotated[str | None, typer.Option(help="inline, ray or deployment.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder to make.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this folder.")
    ] = None,
    ledger_head: Annotated[
        str | None,
        typer.Option(
            "--ledger-head", help="The head that an earlier part of a resumed run printed."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="A deployment without TLS and node authentication.")
    ] = False,
    credentials: Annotated[
        Path | None,
        typer.Option(help="Keys and certificates of a deployment, made if the folder has none."),
    ] = None,
    data_dir: DataDir = None,
    plain: Annotated[bool, typer.Option("--plain", help="No progress bar.")] = False,
    as_json: Json = False,
) -> None:
    """Run one experiment and leave a run folder."""
    use_data_dir(data_dir)
    gc.disable()  # until `launch` has imported what it needs: all of that stays
    folder: RunFolder | None = None
    try:
        from manifed.cli.launch import Request, launch_or_exit
        from manifed.runs.manifest import process_began

        request = Request(
            config, tuple(sets or ()), engine, out, resume, plain, ledger_head, insecure,
            credentials, process_began(),
        )  # fmt: skip
        folder = launch_or_exit(request, fail, context.obj)
        _tell(folder, as_json=as_json)
        _draw(folder)
    except Ended as ended:
        if folder is None:
            raise
        from manifed.cli.launch import finished

        fail(f"interrupted; {finished(folder)}", ended.code)
    finally:
        gc.enable()


def _draw(folder: "RunFolder") -> None:
    from manifed.runs.report.apart import NotDrawn, draw_figures

    try:
        draw_figures(folder)
    except NotDrawn as reason:
        fail(str(reason), reason.code)


def _tell(folder: "RunFolder", *, as_json: bool) -> None:
    """What a finished run came to, on the screen before a figure is drawn."""
    from manifed.runs.run_folder import printable
    from manifed.runs.statement import statement_of

    manifest = folder.manifest()
    if manifest.get("stopped"):
        sys.stdout.write(f"stopped: {manifest['stopped']}\n")
    sys.stdout.write(
        f"{json.dumps(manifest['final'])}\nrun folder: {printable(folder.directory)}\n"
    )
    sys.stdout.write(statement_of(manifest["privacy"]) + "\n")
    if manifest.get("ledger_head"):
        sys.stdout.write(f"ledger head: {manifest['ledger_head']}\n")
    whole, parts = manifest["final"]["seconds"], manifest["seconds_by_part"]
    told = ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts.items())
    sys.stdout.write(f"seconds: {whole:.1f} from start to end ({told})\n")
    if as_json:
        print_json({"directory": str(folder.directory), **manifest["final"]})
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point of ``manifed``."""
    from manifed.cli import commands

    commands.register(app)
    _call(app, argv, "manifed")


def simulation(argv: Sequence[str], strategy: Callable[[Any], Any] | None = None) -> NoReturn:
    """The entry point of ``python simulation.py``: the command ``run`` alone.

    ``strategy`` makes the Flower strategy of a run; left out, the library's own.
    """
    _call(_run_alone(), argv, "simulation.py", strategy)


@cache
def _run_alone() -> typer.Typer:
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command()(run)
    return alone


_command_of = cache(typer.main.get_command)
"""The commands and options of a program, read off its functions once."""


def _call(
    program: typer.Typer,
    argv: Sequence[str] | None,
    name: str,
    strategy: Callable[[Any], Any] | None = None,
) -> NoReturn:
    """Run and exit; a word that is no argument ends in one line too, not in a frame of several.

    SIGTERM and SIGHUP end it as Ctrl-C does, from here on. An error that nothing foresaw is one
    line with its type and text; under MANIFED_DEBUG it is a traceback.
    """
    import click

    gc.set_threshold(GARBAGE_EVERY)
    core.HAS_RICH = False  # frames take longer to import than all else that help needs
    code: Any = 1
    try:
        with ending_signals():
            code = _command_of(program)(
                args=list(argv) if argv is not None else None,
                prog_name=name,
                obj=strategy,
                standalone_mode=False,
            )
    except click.exceptions.NoArgsIsHelpError as help_text:
        help_text.show()
        code = 2
    except click.ClickException as error:
        sys.stderr.write(f"error: {' '.join(error.format_message().split())}\n")
        code = 2
    except Ended as ended:
        sys.stderr.write(f"error: {_again(name, argv)}\n")
        code = ended.code
    except click.Abort:
        sys.stderr.write(f"error: {_again(name, argv)}\n")
        code = 130
    except Exception as error:
        if os.environ.get("MANIFED_DEBUG"):
            raise
        code = _unexpected(error)
    gc.freeze()  # or the interpreter's end looks through all modules once more, half a second long
    sys.exit(code if isinstance(code, int) else 0)


def _again(name: str, argv: Sequence[str] | None) -> str:
    """What whoever interrupts a command that kept nothing is told: the command itself."""
    program = "python simulation.py" if name == "simulation.py" else name
    words = shlex.join(sys.argv[1:] if argv is None else argv)
    return f"interrupted; start again: {program} {words}"


def _unexpected(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):  # who reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    from manifed.cli.launch import unexpected

    sys.stderr.write(f"error: {unexpected(error)}\n")
    return 1

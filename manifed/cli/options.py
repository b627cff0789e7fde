"""The options that commands share, what they print as JSON, and how they fail."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TextIO, TypeVar

import click
import typer

P = ParamSpec("P")
R = TypeVar("R")
QUICKSTART = "configs/quickstart.toml"
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=VALUE", help="Override one value of the config; repeatable."
    ),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of data sets (default: $MANIFED_DATA).")
]
ConfigPath = Annotated[str, typer.Argument(help="A TOML file; see configs/.")]


def _alone(context: typer.Context, is_asked: bool) -> bool:
    """Under ``--json`` standard output is the document's; every word goes to standard error."""
    if is_asked and "manifed.document" not in context.meta:
        context.meta["manifed.document"] = sys.stdout
        context.with_resource(redirect_stdout(sys.stderr))
    return is_asked


Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document alone; words go to standard error.",
        callback=_alone,
    ),
]


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON document, on one line, to the output that `Json` kept for it."""
    from manifed.runs.folder import jsonable

    context = click.get_current_context(silent=True)
    kept: TextIO | None = None if context is None else context.meta.get("manifed.document")
    out = kept or sys.stdout
    out.write(json.dumps(jsonable(value)) + "\n")
    out.flush()


def fail(message: str, code: int = 2) -> NoReturn:
    """End with one line on standard error."""
    sys.stderr.write(f"error: {message}\n")
    raise typer.Exit(code)


def told(command: Callable[P, R]) -> Callable[P, R]:
    """The command, in which every failure that is foreseen ends with one line and an exit code."""

    @wraps(command)
    def run(*words: P.args, **options: P.kwargs) -> R:
        try:
            return command(*words, **options)
        except click.exceptions.Exit:
            raise
        except Exception as error:
            from manifed.cli.launch import outcome

            known = outcome(error)
            if known is None:
                raise
        return fail(*known)

    return run


def use_data_dir(folder: Path | None) -> None:
    """Name the data folder for this process and those it starts."""
    if folder is not None:
        if not folder.is_dir():
            fail(f"--data-dir: expected a folder, got {str(folder)!r}, which is none")
        os.environ["MANIFED_DATA"] = str(folder.resolve())

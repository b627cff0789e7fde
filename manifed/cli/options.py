"""The options that every command shares, and how a command fails."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

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


def fail(message: str, code: int = 2) -> NoReturn:
    """End with one line on standard error."""
    sys.stderr.write(f"error: {message}\n")
    raise typer.Exit(code)


def use_data_dir(folder: Path | None) -> None:
    """Name the data folder for this process and those it starts."""
    if folder is not None:
        if not folder.is_dir():
            fail(f"--data-dir: expected a folder, got {str(folder)!r}, which is none")
        os.environ["MANIFED_DATA"] = str(folder.resolve())


def go_on() -> str:
    """What whoever interrupts is told: the command that goes on where this one stopped."""
    return f"interrupted; go on where it stopped: {shlex.join(['manifed', *sys.argv[1:]])}"

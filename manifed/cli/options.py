"""The options that every command shares, and how a command fails."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

QUICKSTART = "configs/quickstart.toml"
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=VALUE", help="Override one value of the config; repeatable."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
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


def print_json(value: dict[str, Any]) -> None:
    """The last line printed: one JSON object."""
    from manifed.runs.run_folder import jsonable

    sys.stdout.write(json.dumps(jsonable(value)) + "\n")

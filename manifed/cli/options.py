"""Options, output and error handling that the commands share."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import click
from typer import Argument, Option, echo
from typer.core import TyperCommand

from manifed.errors import described, one_line, raised_at

QUICKSTART = "configs/quickstart.toml"
_DOCUMENT = "manifed.document"
Sets = Annotated[
    list[str] | None,
    Option("--set", metavar="A.B=VALUE", help="Override one value of the config. Repeatable."),
]
Labels = Annotated[
    list[str] | None,
    Option("--label", metavar="NAME", help="Name of a curve, in their order. Repeat for each."),
]
Pdf = Annotated[
    Path | None, Option(help="Also draw the curves into this PDF file, a figure on each page.")
]
ConfigPath = Annotated[str, Argument(help="A TOML file; see configs/.")]


def _use(folder: Path | None) -> Path | None:
    """Name the data folder for this process and those it starts."""
    if folder is not None:
        os.environ["MANIFED_DATA"] = str(folder.resolve())
    return folder


DataDir = Annotated[
    Path | None,
    Option(
        help="Folder of data sets (default: $MANIFED_DATA).",
        exists=True,
        file_okay=False,
        callback=_use,
    ),
]


class Command(TyperCommand):
    """A command with the option ``--json``.

    With it, standard output holds one document, and all text goes to standard error.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params.append(
            click.Option(
                ["--json"],
                is_flag=True,
                expose_value=False,
                callback=_apart,
                help="Print one JSON document to standard output and text to standard error.",
            )
        )


def _apart(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        context.meta[_DOCUMENT] = sys.stdout
        context.with_resource(redirect_stdout(sys.stderr))


def print_json(document: Mapping[str, Any]) -> None:
    """Prints one JSON document on one line if ``--json`` was given."""
    from manifed.runs.folder import jsonable

    if (out := click.get_current_context().meta.get(_DOCUMENT)) is not None:
        echo(json.dumps(jsonable(document)), out)


def answer(
    document: Mapping[str, Any],
    *lines: str,
    rows: Sequence[Mapping[str, Any]] = (),
    label: str | None = None,
) -> None:
    """Prints the label of the noise, lines and a table; with ``--json`` a document instead.

    Without a ``label`` the answer is a price, for which no noise was drawn.
    """
    from manifed.privacy.events import Label

    label = label or Label.PLANNED
    echo("\n".join([f"privacy: {label}", *lines]))
    if rows:
        print_table(rows)
    print_json({"label": label, **document})


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints a Markdown table, a row for each mapping, with aligned columns."""
    from manifed.runs.statement import said

    table = [[key.replace("_", " ") for key in rows[0]]]
    table += [[said(cell).replace("|", "/") for cell in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    for row in table:
        echo(f"| {' | '.join(map(str.ljust, row, widths))} |")


def outcome(error: Exception) -> tuple[str, int]:
    """Returns the line and the exit code of a command that ends with this error.

    2: bad input, or a file that the system refuses. 1: a failed run, or an unexpected error. After
    a signal, 130: Ctrl-C; 143: SIGTERM; 129: SIGHUP.
    """
    if isinstance(error, click.ClickException):
        return one_line(error.format_message()), 2
    code = getattr(error, "exit_code", 2 if isinstance(error, OSError) else None)
    if code is None:
        where = f"unexpected at {raised_at(error)}; MANIFED_DEBUG=1 shows the traceback"
        return f"{described(error, 400)} ({where})", 1
    return one_line(str(error), 1500) if code == 2 else str(error), code

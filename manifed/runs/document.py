"""The option ``--json`` of every command: standard output is one document, and nothing else."""

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Annotated, Any, TextIO

import click
import typer

_DOCUMENT = "manifed.document"
"""Where a command keeps the standard output that its JSON document goes to."""


def _alone(context: typer.Context, is_asked: bool) -> bool:
    """Under ``--json`` standard output is the document's; every word goes to standard error."""
    if is_asked and _DOCUMENT not in context.meta:
        context.meta[_DOCUMENT] = sys.stdout
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
    from manifed.runs.run_folder import jsonable

    context = click.get_current_context(silent=True)
    out: TextIO = sys.stdout if context is None else context.meta.get(_DOCUMENT, sys.stdout)
    out.write(json.dumps(jsonable(value)) + "\n")
    out.flush()

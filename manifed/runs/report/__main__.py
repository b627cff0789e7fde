"""``python -m manifed.runs.report`` is ``manifed report``: the same function, the same options.

Private runs are shown as runs/report/public.py publishes them, unless one reports as the server.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manifed.errors import one_line
from manifed.runs.document import Json, print_json

if TYPE_CHECKING:
    from manifed.runs.report.runs import Run


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders; of several, those that are none are skipped."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for page and figures (one run: its own; several: ./report)."),
    ] = None,
    is_server_view: Annotated[
        bool,
        typer.Option(
            "--server-view",
            "--as-server",
            help="Show what only the server may see; it voids the secrecy of the sample.",
        ),
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write one page (report.html) and figures of runs, and print their table."""
    from manifed.runs.report.tables import doubts_of, table_of

    try:
        runs = _runs(folders)
        out = out or (runs[0].directory if len(folders) == 1 else Path("report"))
        shown, written = _written(runs, out, is_server_view=is_server_view)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {one_line(str(error), 1500)}\n")
        raise typer.Exit(2) from None
    notes = [f"note: {doubt}" for doubt in doubts_of(shown)]
    lines = [table_of(shown, markdown=markdown), *notes, *(str(path) for path in written)]
    sys.stdout.write("\n".join(lines) + "\n")
    if as_json:
        print_json({"files": [str(path) for path in written], "is_server_view": is_server_view})


def _runs(folders: Sequence[Path]) -> "list[Run]":
    """The runs in the folders; a pattern like ``runs/*`` also names figures and tables beside them.

    Raises:
        FileNotFoundError, FolderDamaged: one folder that is no run, none that is, or a damaged one.
    """
    from manifed.runs.reading import is_there
    from manifed.runs.report.runs import read

    is_run = [is_there(folder / "manifest.json") for folder in folders]
    if len(folders) == 1 or not any(is_run):
        return [read(folders[0])]
    for folder, one in zip(folders, is_run, strict=True):
        if not one:
            if not is_there(folder):
                raise FileNotFoundError(f"Expected a run folder, got {folder}, which is not there")
            sys.stderr.write(f"skipped: {one_line(str(folder), 300)} holds no manifest.json\n")
    return [read(folder) for folder, one in zip(folders, is_run, strict=True) if one]


def _written(
    runs: "Sequence[Run]", out: Path, *, is_server_view: bool
) -> "tuple[Sequence[Run], list[Path]]":
    """The runs as the table shows them, and the files."""
    from manifed.durable import write_atomically
    from manifed.runs.places import check_file, check_new
    from manifed.runs.reading import is_there
    from manifed.runs.report.figures import FIGURES, draw, name_of
    from manifed.runs.report.page import NAME, page_of
    from manifed.runs.report.public import public_run, server_run

    shown = [server_run(run) if is_server_view else public_run(run) for run in runs]
    check_new("--out", out)
    for name in (NAME, *(name_of(y, x) for y, x in FIGURES)):
        if is_there(out / name):
            check_file("--out", out / name)
    page = page_of(runs, is_server_view=is_server_view).encode()
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / NAME, page)
    return shown, [out / NAME, *draw(shown, out)]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 after one line about what is wrong."""
    import click

    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(report)
    words = None if argv is None else list(argv)
    try:
        code = program(args=words, prog_name="manifed report", standalone_mode=False)
    except click.ClickException as error:
        sys.stderr.write(f"error: {' '.join(error.format_message().split())}\n")
        return 2
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())

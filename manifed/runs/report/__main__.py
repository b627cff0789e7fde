"""manifed report FOLDER... [--out DIR] [--markdown] [--as-server]: figures and a table.

Private runs are shown as runs/report/public.py publishes them, unless one reports as the server.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from manifed.errors import one_line
from manifed.runs.places import check_file, check_new
from manifed.runs.reading import is_there
from manifed.runs.report.figures import FIGURES, draw
from manifed.runs.report.runs import read
from manifed.runs.report.tables import table_of


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 after one line about a folder that is no run."""
    parser = argparse.ArgumentParser(prog="python -m manifed.runs.report", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run folder")
    parser.add_argument(
        "--out", type=Path, help="where figures go (one folder: itself; several: ./report)"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument(
        "--as-server",
        action="store_true",
        help="show what only the server may see: realised epsilon, bytes, seconds",
    )
    given = parser.parse_args(argv)
    try:
        runs = [read(folder) for folder in given.folders]
        if not given.as_server:
            from manifed.runs.report.public import public_run

            runs = [public_run(run) for run in runs]
        out = given.out or (given.folders[0] if len(runs) == 1 else Path("report"))
        check_new("--out", out)
        for name in (f"{y}-by-{x}.png".replace("_", "-") for y, x in FIGURES):
            if is_there(out / name):
                check_file("--out", out / name)
        written = draw(runs, out)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {one_line(str(error), 1500)}\n")
        return 2
    lines = [table_of(runs, markdown=given.markdown), *(str(path) for path in written)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The verdicts that the pages of docs/ record of a figure's checks."""

import re

from reproduction.figure_files import FIGURES, FigureFile

CELL = re.compile(r"(?<!\\)\|")
DATE = re.compile(r"^Recorded on (\d{4}-\d{2}-\d{2})\.", re.MULTILINE)


def recorded(file: FigureFile) -> tuple[str, dict[str, str]]:
    """The date of the record in a figure's page, and the verdict of each check that is in it."""
    text = (FIGURES.parents[1] / (file.report or "")).read_text() if file.checks else ""
    found = {}
    has_verdicts = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in CELL.split(line)]
        if len(cells) < 6:
            has_verdicts = False
        elif cells[3] == "verdict":
            has_verdicts = True
        elif has_verdicts:
            found[cells[1]] = cells[3]
    date = DATE.search(text)
    short = {name: re.sub(r"^\d{3}-", "", name) for name in file.checks}
    return date[1] if date else "", {k: found[v] for k, v in short.items() if v in found}

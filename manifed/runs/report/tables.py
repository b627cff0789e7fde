"""Runs side by side, as aligned text or as a Markdown table."""

from collections.abc import Sequence

from manifed.errors import one_line
from manifed.runs.report.runs import Run, names_of
from manifed.runs.statement import label_in_manifest

HEADER = (
    "run",
    "rounds",
    "relative cost gap",
    "gradient norm",
    "label",
    "epsilon",
    "delta",
    "bytes up",
    "bytes down",
    "seconds",
)
ABSENT = "-"


def table_of(runs: Sequence[Run], *, markdown: bool = False) -> str:
    """One line per run, the header first; "-" stands for what does not apply or is not known."""
    names = names_of(runs)
    rows = [HEADER, *(_row(name, run) for name, run in zip(names, runs, strict=True))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = [_line(row, widths, markdown=markdown) for row in rows]
    left, *others = widths
    if markdown:
        rule = "| " + " | ".join(["-" * left, *("-" * (w - 1) + ":" for w in others)]) + " |"
    else:
        rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def doubts_of(runs: Sequence[Run]) -> list[str]:
    """What the folders of the runs cannot exclude, each once."""
    told = ((run.manifest.get("privacy") or {}).get("doubts", ()) for run in runs)
    return list(dict.fromkeys(doubt for doubts in told for doubt in doubts))


def _row(name: str, run: Run) -> tuple[str, ...]:
    unfinished = "" if run.final else " (unfinished)"
    return (
        _text(name + unfinished),
        _whole(_final(run, "rounds", "round")),
        _number(_final(run, "relative_cost_gap", "relative_cost_gap")),
        _number(_final(run, "gradient_norm", "gradient_norm")),
        label_in_manifest(run.manifest, _final(run, "epsilon", "epsilon")),
        _number(_final(run, "epsilon", "epsilon")),
        _number(run.final.get("delta")),
        _whole(run.total("bytes_up")),
        _whole(run.total("bytes_down")),
        _number(_final(run, "seconds", None)),
    )


def _final(run: Run, key: str, column: str | None) -> float | str | None:
    """The final value; of an unfinished run the newest row's, or the sum of its seconds."""
    if run.final:
        return run.final.get(key)
    return run.last(column) if column else run.total(key)


def _line(row: Sequence[str], widths: Sequence[int], *, markdown: bool) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "| " + " | ".join(cells) + " |" if markdown else "  ".join(cells)


def _text(value: str) -> str:
    return one_line(value.replace("|", "/"))


def _number(value: float | str | None) -> str:
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else f"{value:.4g}"


def _whole(value: float | str | None) -> str:
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else f"{int(value):,}".replace(",", " ")

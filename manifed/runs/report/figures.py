"""Curves of runs as matplotlib draws them: the figures of a run, of a report and of a fit.

Several seeds of one configuration become one curve: their mean, with a band from the least to the
greatest. A figure that has nothing to show (privacy off, no optimum known) is not made.
"""

import io
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manifed.durable import write_atomically
from manifed.errors import one_line
from manifed.runs.folder import RunFolder
from manifed.runs.interrupt import Ended
from manifed.runs.report.runs import Column, Curve, curves_of, read
from manifed.runs.statement import label_in, label_in_manifest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = (
    ("cost", "round"),
    ("relative_cost_gap", "round"),
    ("relative_cost_gap", "epsilon"),
    ("gradient_norm", "round"),
    ("gradient_norm", "epsilon"),
    ("held_out_loss", "round"),
    ("held_out_accuracy", "round"),
    ("consensus_distance", "round"),
)
"""Pairs (y, x) of columns; the file is ``y``-by-``x``.png."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's palette, told apart by colour-blind readers."""
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)))
"""One after another for curves beyond the palette."""
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "",
}
Lines = Mapping[str, tuple[Column, Column]]
"""Of each label x (n,) and y (runs, n)."""


class NotDrawn(Exception):
    """Figures of a finished run that are not there, why, and the command that draws them."""

    def __init__(self, why: str, directory: Path, code: int = 1) -> None:
        command = shlex.join(["manifed", "report", str(directory)])
        super().__init__(
            f"not drawn: {one_line(why, 400)}; the run is finished and whole; draw with: {command}"
        )
        self.exit_code = code


def figures_of(curves: Sequence[Curve]) -> Iterator[tuple[str, str, str, Lines]]:
    """Each pair of `FIGURES` that has something to show: y, x, what x is called, and the lines.

    An axis of epsilon says whether the noise behind it protects anybody.
    """
    for y, x in FIGURES:
        lines: dict[str, tuple[Column, Column]] = {}
        words: set[str] = set()
        for curve in curves:
            first, rows = curve.values(x, y)
            if len(np.unique(first if y == "cost" else first[(rows > 0).all(axis=0)])) > 1:
                several = f", mean of {len(rows)}" if len(rows) > 1 else ""
                lines[curve.label + several] = first, rows
                words |= {
                    label_in_manifest(one.manifest, one.last("epsilon")) for one in curve.runs
                }
        if lines:
            yield y, x, f"{' / '.join(sorted(words))}: epsilon" if x == "epsilon" else x, lines


def draw(axes: "Axes", lines: Lines, x: str, y: str, *, is_log: bool = False) -> None:
    """Lines in a pair of axes: the mean of the rows of each, and a band where they are several."""
    for i, (label, (first, rows)) in enumerate(lines.items()):
        values = np.where(rows > 0, rows, np.nan) if is_log else rows
        color, dash = COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]
        words, marker = one_line(label).replace("$", r"\$"), "o" if len(first) <= 25 else ""
        axes.plot(
            first, values.mean(axis=0), color=color, linestyle=dash, marker=marker, label=words
        )
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(first, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_yscale("log" if is_log else "linear")
    axes.set_xlabel(x)
    axes.set_ylabel(y.replace("_", " "))


def figure_of(
    curves: Mapping[str, Sequence[float | None]], statement: Mapping[str, Any]
) -> "Figure":
    """The curves of a fit, a panel a number, under a title that says what the run promises.

    A notebook shows it by itself, whatever its plotting backend.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    class FitFigure(Figure):
        def _repr_png_(self) -> bytes:
            return saved(self, "png")

    title = label_in(statement)
    for one in statement.get("adversaries", ())[:1]:
        bound = f"({one['epsilon']:.3g}, {one['delta']:g})-DP against {one['name']}"
        title = f"{title}; {bound}, for each {statement['unit']}"
    columns = {name: np.array(values, dtype=np.float64) for name, values in curves.items()}
    counts = ("round", "participants", "failures")
    names = [name for name in columns if name not in counts and np.isfinite(columns[name]).any()]
    names = sorted(names or ["participants"], key="epsilon".__eq__)
    with rc_context(rc=STYLE):
        figure = FitFigure(figsize=(1.0 + 3.2 * len(names), 3.2), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            draw(axes, {name: (columns["round"], columns[name][None])}, "round", name)
        figure.suptitle(title, fontsize=10)
    return figure


def saved(figure: "Figure", kind: str) -> bytes:
    """The bytes of a figure, which depend on nothing else."""
    content = io.BytesIO()
    told = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(content, format=kind, dpi=150, metadata=told, transparent=kind == "svg")
    return content.getvalue()


def picture(lines: Lines, x: str, y: str, kind: str = "png", *, title: str = "") -> bytes:
    """One pair of axes with a legend, as PNG or SVG; y is logarithmic but for costs and epsilon."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(rc=STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.add_subplot(title=title)
        draw(axes, lines, x, y, is_log=y not in ("cost", "epsilon", "held_out_accuracy"))
        figure.legend(loc="outside lower center", ncols=2)
        return saved(figure, kind)


def write_figures(curves: Sequence[Curve], out: Path) -> list[Path]:
    """The PNG files written into ``out``: one for each of ``FIGURES`` that has data."""
    written: list[Path] = []
    for y, x, words, lines in figures_of(curves):
        out.mkdir(parents=True, exist_ok=True)
        written.append(out / f"{y}-by-{x}.png".replace("_", "-"))
        write_atomically(written[-1], picture(lines, words, y))
    return written


def draw_finished(folder: RunFolder) -> None:
    """Draw what the config of a finished run asks for, and say so in a line.

    The run is whole by then: a drawing that fails leaves it as it is.

    Raises:
        NotDrawn: it failed, or this process is told to end.
    """
    output = (folder.manifest().get("config") or {}).get("output")
    if not isinstance(output, dict) or not output.get("plots", True):
        return
    try:
        drawn = write_figures(curves_of([read(folder.directory)]), folder.directory)
    except (Ended, KeyboardInterrupt) as ended:
        code = ended.code if isinstance(ended, Ended) else 130
        raise NotDrawn("interrupted", folder.directory, code) from None
    except Exception as error:  # whatever a font, a disk or a library does
        raise NotDrawn(str(error), folder.directory) from None
    if drawn:
        sys.stdout.write(f"figures in the run folder: {', '.join(one.name for one in drawn)}\n")
        sys.stdout.flush()

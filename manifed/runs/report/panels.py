"""A figure of a paper from run folders: a column of axes a panel, a row a pair of columns.

Curves are means over seeds with a band from the least to the greatest. Colours are Okabe and Ito's,
with dashes beside them, so that neither colour-blind readers nor a grey print mix curves up. The
file is as wide as a paper's column (one panel) or page (several): PDF to print, PNG to look at.
"""

import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manifed.algorithms.rsvrg import RSVRG
from manifed.durable import make_folder, write_atomically
from manifed.errors import ConfigError, one_line
from manifed.experiment.figure_files import Axes as Row
from manifed.experiment.figure_files import DrawnPanel, FigureOf
from manifed.experiment.load import parse
from manifed.experiment.paths import nearest
from manifed.runs.report.figures import COLORS, DASHES, LABELS, STYLE, draw_optimum
from manifed.runs.report.runs import Column, Curve, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0
"""Inches of a column and of a page."""
_ACROSS = 4
"""Panels beside each other; more are wrapped."""
_HIGH = 1.9
"""Inches of a row of axes."""
_LINE, _LETTER, _KEY = 0.14, 0.056, 8
"""Of a legend: inches of a line and of a letter, and letters that the line before a label takes."""
SMALL: dict[Any, Any] = STYLE | {
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "legend.fontsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
}
WORDS = {
    **LABELS,
    "gradients": "gradients of records / n",
    "gradient_norm": "$\\|\\mathrm{grad}\\,f(x)\\|$",
    "relative_cost_gap": "relative cost gap",
    "uploads": "matrices per client",
    "accuracy": "accuracy",
    "seconds": "seconds a round",
    "optimum_distance": "mean squared distance to $x^*$",
}
QUICK_LOOK = "quick look: five short rounds of one seed, noise calibrated to them"
RunsOf = Mapping[str, Sequence[Run]]
"""The finished runs of a curve by its name."""


def draw_panels(
    figure: FigureOf, runs: RunsOf, folder: Path, *, is_quick: bool = False
) -> list[Path]:
    """PNG and PDF of all panels that have a run; nothing where none has.

    Raises:
        ConfigError: a column that no run has, or a text that matplotlib cannot set.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = [panel for panel in figure.panels if any(runs.get(name) for name, _ in panel.curves)]
    if not panels:
        return []
    rows = figure.file.axes
    _check_columns(figure, [run for several in runs.values() for run in several])
    across = min(len(panels), _across(figure, len(panels)))
    bands = -(-len(panels) // across)
    wide = PAGE if across > 1 else COLUMN
    with rc_context(rc=SMALL):
        labels = {label for panel in panels for _, label in panel.curves}
        columns = _columns(labels, wide)
        high = 0.5 + _HIGH * len(rows) * bands + _LINE * (-(-len(labels) // columns) - 1)
        drawn = Figure(figsize=(wide, high), layout="constrained")
        grid = drawn.subplots(bands * len(rows), across, squeeze=False)
        for axes in grid.flat:
            axes.set_visible(False)
        for k, panel in enumerate(panels):
            for down, row in enumerate(rows):
                axes = grid[k // across * len(rows) + down][k % across]
                axes.set_visible(True)
                _draw(axes, figure, panel, runs, row, is_first=k % across == 0)
                if down == 0:
                    axes.set_title(panel.title)
        every = [run for several in runs.values() for run in several]
        _legend(drawn, list(grid.flat), every, columns)
        try:
            return save(drawn, folder / f"figure-{figure.figure}", is_quick=is_quick)
        except ValueError as error:
            said = one_line(str(error), 200)
            raise ConfigError(
                f"{figure.path}: expected titles and labels that can be set, got one that cannot: "
                f"{said}"
            ) from None


def _check_columns(figure: FigureOf, runs: Sequence[Run]) -> None:
    known = {name for run in runs for name in run.columns}
    for row in figure.file.axes:
        for side, name in (("x", row.x), ("y", row.y)):
            if name not in known and (side, name) != ("x", "gradients"):
                meant = nearest(name, known)
                hint = (
                    f"did you mean {meant!r}?" if meant else f"there are {', '.join(sorted(known))}"
                )
                raise ConfigError(
                    f"{figure.path}: axes.{side}: expected a column of metrics.csv, got {name!r}; "
                    f"{hint}"
                )


def _across(figure: FigureOf, count: int) -> int:
    """Panels in a row: all, or the choices of the part that varies fastest."""
    if count <= _ACROSS:
        return count
    last = next((panel.by[-1] for panel in figure.file.panels if len(panel.by) > 1), None)
    return _ACROSS if last is None else len(figure.file.parts[last])


def save(figure: "Figure", stem: Path, *, is_quick: bool = False) -> list[Path]:
    """PNG and PDF of a figure; a quick look says in the picture that it is one."""
    if is_quick:
        figure.suptitle(QUICK_LOOK, fontsize=7, fontstyle="italic", color="#A00000")
    make_folder(stem.parent)
    written: list[Path] = []
    for kind, told in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=200, metadata=told)
        written.append(stem.with_name(f"{stem.name}.{kind}"))
        write_atomically(written[-1], content.getvalue())
    return written


# -- one set of axes -----------------------------------------------------------------------------
def _draw(
    axes: "Axes", figure: FigureOf, panel: DrawnPanel, runs: RunsOf, row: Row, *, is_first: bool
) -> None:
    from matplotlib.ticker import MaxNLocator

    for name, label in panel.curves:
        if not runs.get(name):
            continue
        place = _place(figure, label)
        color = COLORS[place % len(COLORS)]
        x, rows = values_of(runs[name], row)
        mean = _shown(rows.mean(axis=0), row)
        axes.plot(
            x,
            mean,
            label=label,
            color=color,
            linestyle=DASHES[place % len(DASHES)],
            linewidth=1.1,
            marker="o" if len(x) <= 25 else None,
            markersize=2,
        )
        if len(rows) > 1:
            low, high = _shown(rows.min(axis=0), row), _shown(rows.max(axis=0), row)
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    if row.y == "cost":
        shown = [run for name, _ in panel.curves for run in runs.get(name, ())]
        draw_optimum(axes, shown, "least cost", 0.9)
    if row.x in ("round", "uploads"):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    for side in row.log:
        (axes.set_xscale if side == "x" else axes.set_yscale)("log")
    if row.least is not None:
        axes.set_ylim(bottom=row.least)
    plain_ticks(axes)
    axes.margins(x=0.02)
    axes.set_xlabel(WORDS.get(row.x, row.x.replace("_", " ")))
    if is_first:
        axes.set_ylabel(WORDS.get(row.y, row.y.replace("_", " ")))


def plain_ticks(axes: "Axes") -> None:
    """Plain numbers on a logarithmic y axis that has less than a decade: no powers of ten."""
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log" and 0 < low < high < 10 * low:
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")


def _place(figure: FigureOf, label: str) -> int:
    """Of a label among all of the figure's, so that it has one colour in every panel."""
    labels = [label for panel in figure.panels for _, label in panel.curves]
    return list(dict.fromkeys(labels)).index(label)


def values_of(runs: Sequence[Run], row: Row) -> tuple[Column, Column]:
    """Columns x (n,) and y (runs, n) over the rounds that all runs have measured.

    ``gradients`` is no measured column: it is rounds times the gradients of one, in units of all
    records.
    """
    if row.x != "gradients":
        return Curve("", runs).values(row.x, row.y)
    rounds, rows = Curve("", runs).values("round", row.y)
    return rounds * passes_a_round(runs[0]), rows


def passes_a_round(run: Run) -> float:
    """Gradients that a client computes in a round, over the number of its records."""
    from manifed.experiment.assembly import facts_of

    config = parse(dict(run.manifest["config"]))
    training: Any = config.training
    count = min(facts_of(config).sizes)
    size = training.minibatch.expected_size(count)
    if isinstance(training, RSVRG):
        return training.epochs * (1 + 2 * training.inner_steps * size / count)
    return training.local_steps * size / count


def _shown(values: Column, row: Row) -> Column:
    return np.where(values > 0, values, np.nan) if "y" in row.log else values


def _columns(labels: Collection[str], wide: float) -> int:
    """Labels beside each other that are no wider than the figure."""
    longest = max(map(len, labels)) + _KEY
    return max(1, min(4 if wide > COLUMN else 2, int(wide / (_LETTER * longest))))


def _legend(figure: "Figure", grid: Sequence["Axes"], runs: Sequence[Run], columns: int) -> None:
    """One below all axes, with what the band is."""
    from matplotlib.patches import Patch

    handles: dict[str, Any] = {}
    for axes in grid:
        if axes.get_visible():
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    seeds = len({run.manifest["config"]["federation"]["seed"] for run in runs})
    if seeds > 1:
        handles[f"least to greatest of {seeds} seeds"] = Patch(color="#555555", alpha=0.2)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)

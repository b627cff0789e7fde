"""Reports of runs, from their folders alone: curves, one HTML page, and a PDF.

Several seeds of one configuration become one curve: their mean, with a band from the least to the
greatest. A figure that has nothing to show (privacy off, no optimum known) is not made.

The page needs nothing beside it: no network, no script to be read; its curves are pictures (SVG)
inside it. What a run folder says enters it as text, and a policy in its head allows no script but
the page's own.
"""

import base64
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from manifed.errors import ConfigError, one_line, optional
from manifed.fields import Document, Values
from manifed.privacy.events import Label
from manifed.runs.folder import RunFolder, with_label
from manifed.runs.statement import headline, label_in, said, statement_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    "pdf.fonttype": 42,
    "svg.hashsalt": "",
}
Column = NDArray[np.float64]
_Lines = Mapping[str, tuple[Column, Column]]
"""x (n,) and y (runs, n) of each label."""


# -- runs and curves -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """The contents of one run folder."""

    directory: Path
    name: str
    manifest: Values
    columns: Mapping[str, Column]

    @property
    def final(self) -> Values:
        """The manifest's "final"; empty for a running or failed run."""
        return self.manifest.get("final", {})

    @property
    def label(self) -> Label:
        """The label before the run's epsilon."""
        return label_in(self.manifest["privacy"])

    def last(self, column: str) -> float | None:
        """Returns the newest measured value of ``column``."""
        found = self.columns.get(column, np.empty(0))
        return next((x for x in found[::-1].tolist() if not np.isnan(x)), None)


_Curves = Mapping[str, Sequence[Run]]
"""The runs of each label, which differ in their seed only."""


def columns_of(runs: Sequence[Run], x: str, y: str) -> tuple[Column, Column]:
    """Returns columns x (n,) and y (runs, n) over the rounds that all runs have measured."""
    tables = list[dict[float, list[float]]]()
    for run in runs:
        rows = zip(*(run.columns.get(key, ()) for key in ("round", x, y)), strict=False)
        tables.append({r: both for r, *both in rows if np.isfinite(both).all()})
    rounds = sorted({*tables[0]}.intersection(*tables))
    found = np.array([[table[r] for r in rounds] for table in tables]).reshape(len(runs), -1, 2)
    return found[0, :, 0], found[:, :, 1]


def read(directory: Path) -> Run:
    """Reads the run in ``directory``.

    Raises:
        FileNotFoundError: it is no run folder.
        FolderDamaged: its manifest or metrics are damaged, or its config was changed.
    """
    folder = RunFolder.open(directory)
    manifest = folder.manifest()
    if (digest := manifest.get("experiment_sha256")) is not None:
        folder.check_unedited(digest)
    columns = {
        key: np.array(values, dtype=np.float64)
        for key, values in folder.metrics(manifest.get("final", {}).get("rounds")).items()
    }
    return Run(directory, manifest["name"], manifest, columns)


def curves_of(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Groups runs by configuration (seed and output aside), in order of first appearance.

    A label names the keys in which runs of one name differ, at most three; where more differ it
    counts, for a folder's name may tell a seed.
    """
    groups = dict[tuple[str, frozenset[Any]], list[Run]]()
    for run in runs:
        settings = _settings({**run.manifest["config"], "output": None})
        groups.setdefault((run.name, frozenset(settings)), []).append(run)
    curves = dict[str, list[Run]]()
    for k, ((name, own), group) in enumerate(groups.items(), start=1):
        alike = [settings for other, settings in groups if other == name]
        told = sorted(own.difference(frozenset.intersection(*alike)))
        words = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in told)
        if len(alike) > 1:
            words = f", {words}" if 0 < len(told) <= 3 else f" (run {k})"
        curves.setdefault(name + words, []).extend(group)
    return curves


def names_of(curves: Iterable[str], labels: Sequence[str]) -> dict[str, str]:
    """Maps each curve to the label given for it, in their order; to itself where none is given.

    Raises:
        ConfigError: there is not one label for each curve, or two are equal.
    """
    known = list(curves)
    if labels and len({label for label in labels if label.strip()}) != len(known):
        raise ConfigError(
            f"--label: expected {len(known)} different labels, for {known} in this order, "
            f"got {list(labels)}"
        )
    return dict(zip(known, labels or known, strict=True))


def relabelled(runs: Sequence[Run], labels: Sequence[str]) -> list[Run]:
    """Names runs by the label of their curve; the order is that of `curves_of`."""
    curves = curves_of(runs)
    names = names_of(curves, labels)
    return [replace(run, name=names[curve]) for curve, group in curves.items() for run in group]


def _settings(table: Values, path: str = "") -> Iterator[tuple[str, str]]:
    """The keys in dots and their values, without what may differ between repetitions."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{path}{key}.")
        elif key != "seed" and value is not None:
            yield path + key, str(value)


# -- figures ---------------------------------------------------------------------------------------
def figures_of(curves: _Curves) -> Iterator[tuple[str, str, _Lines]]:
    """Lists each pair of columns with something to show: y, x, the name of x, and the lines.

    An axis of epsilon says whether the noise behind it protects anybody.
    """
    for y, x in (
        ("cost", "round"),
        ("relative_cost_gap", "round"),
        ("relative_cost_gap", "epsilon"),
        ("gradient_norm", "round"),
        ("gradient_norm", "epsilon"),
        ("held_out_loss", "round"),
        ("held_out_accuracy", "round"),
        ("consensus_distance", "round"),
    ):
        lines = dict[str, tuple[Column, Column]]()
        words = set[str]()
        for label, runs in curves.items():
            first, rows = columns_of(runs, x, y)
            if len(np.unique(first if y == "cost" else first[(rows > 0).all(axis=0)])) > 1:
                several = f", mean of {len(rows)}" if len(rows) > 1 else ""
                lines[label + several] = first, rows
                words |= {one.label for one in runs}
        if lines:
            yield y, f"{' / '.join(sorted(words))}: epsilon" if x == "epsilon" else x, lines


def _draw(axes: "Axes", lines: _Lines, x: str, y: str, scale: str = "linear") -> None:
    """Lines in a pair of axes: the mean of the rows of each, and a band where they are several."""
    for i, (label, (first, rows)) in enumerate(lines.items()):
        values = np.where(rows > 0, rows, np.nan) if scale == "log" else rows
        color = COLORS[i % len(COLORS)]
        axes.plot(
            first,
            values.mean(axis=0),
            color=color,
            linestyle=DASHES[i // len(COLORS) % len(DASHES)],
            marker="o" if len(first) <= 25 else "",
            label=one_line(label).replace("$", r"\$"),
        )
        axes.fill_between(
            first, values.min(axis=0), values.max(axis=0), color=color, alpha=0.15, linewidth=0
        )
    axes.set(yscale=scale, xlabel=x, ylabel=y.replace("_", " "))


def figure_of(curves: Mapping[str, Sequence[float | None]], statement: Values) -> "Figure":
    """Draws the curves of a fit, a panel a number, under a title that says what is promised.

    A notebook shows it by itself, whatever its plotting backend.
    """
    with optional():
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    class FitFigure(Figure):
        def _repr_png_(self) -> bytes:
            return _saved(self, "png")

    columns = {name: np.array(values, dtype=np.float64) for name, values in curves.items()}
    rounds = columns.pop("round")
    counts = ("participants", "failures")
    names = [name for name, x in columns.items() if name not in counts and np.isfinite(x).any()]
    names = sorted(names or counts[:1], key="epsilon".__eq__)
    with rc_context(rc=STYLE):
        figure = FitFigure(figsize=(1.0 + 3.2 * len(names), 3.2), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            _draw(axes, {name: (rounds, columns[name][None])}, "round", name)
        figure.suptitle(headline(statement), fontsize=10)
    return figure


def picture(lines: _Lines, x: str, y: str, kind: str = "png", *, title: str = "") -> bytes:
    """Draws a pair of axes as PNG or SVG; y is logarithmic except for costs and epsilon."""
    with optional():
        from matplotlib import rc_context

    with rc_context(rc=STYLE):
        return _saved(_drawn(lines, x, y, title), kind)


def pdf_of(curves: _Curves, *, title: str = "") -> bytes:
    """Draws the figures of `figures_of` as a PDF, one on each page.

    Raises:
        ConfigError: no curve has two measured rounds.
    """
    with optional():
        from matplotlib import rc_context
        from matplotlib.backends.backend_pdf import PdfPages

    if not (found := list(figures_of(curves))):
        raise ConfigError("--pdf: expected a run with two measured rounds to draw, got none")
    content = io.BytesIO()
    told = {"CreationDate": None, "Creator": None}
    with rc_context(rc=STYLE), PdfPages(content, metadata=told) as pages:
        for y, x, lines in found:
            pages.savefig(_drawn(lines, x, y, title))
    return content.getvalue()


def _drawn(lines: _Lines, x: str, y: str, title: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    scale = "linear" if y in ("cost", "epsilon", "held_out_accuracy") else "log"
    _draw(figure.add_subplot(title=title), lines, x, y, scale)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _saved(figure: "Figure", kind: str) -> bytes:
    """The bytes of a figure, which depend on nothing else."""
    content = io.BytesIO()
    told = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(content, format=kind, dpi=150, metadata=told, transparent=kind == "svg")
    return content.getvalue()


# -- the page --------------------------------------------------------------------------------------
def rows_of(runs: Sequence[Run]) -> list[tuple[Run, Document]]:
    """Returns the runs, sorted by curve, and the row of each in a table."""
    found = list[tuple[Run, Document]]()
    for label, group in curves_of(runs).items():
        for k, run in enumerate(group, start=1):
            name = label + (f", run {k}" if len(group) > 1 else "")
            final = run.final or {"rounds": run.last("round")}
            row: Document = {"run": name if run.final else f"{name} (unfinished)"}
            for key in ("rounds", "relative_cost_gap", "gradient_norm", "epsilon", "delta"):
                row[key] = final.get(key, run.last(key))
            found.append((run, with_label(row, run.label)))
    return found


def page_of(runs: Sequence[Run], *, is_server_view: bool = False) -> str:
    """Makes the HTML page of runs as they may be shown (`manifed.runs.export.viewed`)."""
    from jinja2 import Template

    charts = list[tuple[str, str, str, list[Any]]]()
    for y, words, lines in figures_of(curves_of(runs)):
        values = [
            {"curve": label, words: a, y: b}
            for label, (first, found) in lines.items()
            for a, b in zip(first.tolist(), found.mean(axis=0).tolist(), strict=True)
        ]
        drawn = base64.b64encode(picture(lines, words, y, "svg")).decode()
        # at most 60 rows; all values are in metrics.csv
        kept = {round(i): None for i in np.linspace(0, len(values) - 1, 60)}
        charts.append((y, words, drawn, [values[i] for i in kept]))
    return Template(
        Path(__file__).with_name("page.html").read_text(encoding="utf-8"), autoescape=True
    ).render(
        is_server_view=is_server_view,
        runs=rows_of(runs),
        charts=charts,
        said=said,
        statement_of=statement_of,
        dumps=json.dumps,
    )

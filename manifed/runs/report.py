"""Reports of runs, from their folders alone: curves, figures, and one HTML page.

Several seeds of one configuration become one curve: their mean, with a band from the least to the
greatest. A figure that has nothing to show (privacy off, no optimum known) is not made.

The page needs nothing beside it: no network, no script to be read. What a run folder says enters it
as text, and a policy in its head allows no script but the page's own.
"""

import base64
import hashlib
import io
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from manifed.durable import write_atomically
from manifed.errors import one_line
from manifed.runs.folder import RunFolder
from manifed.runs.interrupt import Ended
from manifed.runs.statement import label_in, label_in_manifest, statement_of

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
    "svg.hashsalt": "",
}
HEADER = ("run", "rounds", "relative cost gap", "gradient norm", "label", "epsilon", "delta")
"""The header of the table of runs."""
_MOST_ROWS = 60
"""The most rows of a table of values; all values are in metrics.csv."""
Column = NDArray[np.float64]
_Lines = Mapping[str, tuple[Column, Column]]
"""x (n,) and y (runs, n) of each label."""


# -- runs and curves -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    directory: Path
    name: str
    manifest: Mapping[str, Any]
    columns: Mapping[str, Column]

    @property
    def final(self) -> Mapping[str, Any]:
        """The manifest's "final"; empty while the run goes on or after it failed."""
        return self.manifest.get("final", {})

    def last(self, column: str) -> float | None:
        """The newest measured value of ``column``."""
        values = self.columns.get(column, np.empty(0))
        measured = values[~np.isnan(values)]
        return float(measured[-1]) if measured.size else None


@dataclass(frozen=True)
class Curve:
    """Runs of one configuration that differ in their seed only."""

    label: str
    runs: Sequence[Run]

    def values(self, x: str, y: str) -> tuple[Column, Column]:
        """Columns x (n,) and y (runs, n) over the rounds that all runs have measured."""
        tables: list[dict[float, tuple[float, float]]] = []
        for run in self.runs:
            rows = zip(*(run.columns.get(key, ()) for key in ("round", x, y)), strict=False)
            tables.append({r: (a, b) for r, a, b in rows if np.isfinite(a) and np.isfinite(b)})
        rounds = sorted(set(tables[0]).intersection(*tables))
        both = np.array([[table[r] for r in rounds] for table in tables], dtype=np.float64)
        both = both.reshape(len(tables), len(rounds), 2)
        return both[0, :, 0], both[:, :, 1]


def read(directory: Path) -> Run:
    """The run in ``directory``.

    Raises:
        FileNotFoundError: it is no run folder.
        FolderDamaged: its manifest or metrics are damaged, or its config was changed.
    """
    folder = RunFolder.open(directory)
    manifest = folder.manifest()
    if (digest := manifest.get("experiment_sha256")) is not None:
        folder.check_unedited(digest)
    rows = folder.metrics(manifest.get("final", {}).get("rounds"))
    columns = {key: np.array(values, dtype=np.float64) for key, values in rows.items()}
    return Run(directory, manifest.get("name") or directory.resolve().name, manifest, columns)


def curves_of(runs: Iterable[Run]) -> list[Curve]:
    """The runs grouped by configuration (seed and output aside), in order of first appearance.

    A label names the keys in which runs of one name differ, at most three; where more differ it
    counts, for a folder's name may tell a seed.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([run.name, _settings(run.manifest)], sort_keys=True)
        groups.setdefault(key, []).append(run)
    curves: list[Curve] = []
    for k, group in enumerate(groups.values(), start=1):
        label, own = group[0].name, _settings(group[0].manifest)
        others = [_settings(one[0].manifest) for one in groups.values() if one[0].name == label]
        if len(others) > 1:
            told = [
                f"{key.rpartition('.')[2]}={value}"
                for key, value in own.items()
                if value is not None and any(one.get(key) != value for one in others)
            ]
            label += f", {', '.join(told)}" if 0 < len(told) <= 3 else f" (run {k})"
        curves.append(Curve(label, tuple(group)))
    return curves


def _settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The config's keys in dots, without what may differ between repetitions."""
    config = manifest.get("config") or {}
    table = {key: value for key, value in config.items() if key != "output"}
    while nested := [key for key, value in table.items() if isinstance(value, Mapping)]:
        for key in nested:
            table |= {f"{key}.{name}": value for name, value in table.pop(key).items()}
    return {key: value for key, value in table.items() if key.rpartition(".")[2] != "seed"}


# -- figures ---------------------------------------------------------------------------------------
class NotDrawn(Exception):
    """Figures of a finished run that are not there, why, and the command that draws them."""

    def __init__(self, why: str, directory: Path, code: int = 1) -> None:
        command = shlex.join(["manifed", "report", str(directory)])
        super().__init__(
            f"not drawn: {one_line(why, 400)}; the run is finished and whole; draw with: {command}"
        )
        self.exit_code = code


def figures_of(curves: Sequence[Curve]) -> Iterator[tuple[str, str, str, _Lines]]:
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


def draw(axes: "Axes", lines: _Lines, x: str, y: str, *, is_log: bool = False) -> None:
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
            return _saved(self, "png")

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


def picture(lines: _Lines, x: str, y: str, kind: str = "png", *, title: str = "") -> bytes:
    """A pair of axes with a legend as PNG or SVG; y is logarithmic but for costs and epsilon."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(rc=STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.add_subplot(title=title)
        draw(axes, lines, x, y, is_log=y not in ("cost", "epsilon", "held_out_accuracy"))
        figure.legend(loc="outside lower center", ncols=2)
        return _saved(figure, kind)


def _saved(figure: "Figure", kind: str) -> bytes:
    """The bytes of a figure, which depend on nothing else."""
    content = io.BytesIO()
    told = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(content, format=kind, dpi=150, metadata=told, transparent=kind == "svg")
    return content.getvalue()


def write_figures(curves: Sequence[Curve], out: Path) -> list[Path]:
    """The PNG files written into ``out``: one for each of ``FIGURES`` that has data."""
    written: list[Path] = []
    for y, x, words, lines in figures_of(curves):
        out.mkdir(parents=True, exist_ok=True)
        written.append(out / f"{y}-by-{x}.png".replace("_", "-"))
        write_atomically(written[-1], picture(lines, words, y))
    return written


def draw_finished(folder: RunFolder) -> None:
    """Draw the figures of a finished run into its folder, and say so in a line.

    The run is whole by then: a drawing that fails leaves it as it is.

    Raises:
        NotDrawn: it failed, or this process is told to end.
    """
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


# -- the page --------------------------------------------------------------------------------------
def rows_of(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for each run; "-" stands for what does not apply, is not known or may not be shown."""
    return [row for _, row in _told(runs)]


def _told(runs: Sequence[Run]) -> Iterator[tuple[Run, tuple[str, ...]]]:
    """The runs, those of one curve beside each other, and the row of each."""
    ends = ("relative_cost_gap", "gradient_norm", "epsilon")
    for curve in curves_of(runs):
        for k, run in enumerate(curve.runs, start=1):
            now = {"rounds": run.last("round"), **{key: run.last(key) for key in ends}}
            final = run.final or now
            label = label_in_manifest(run.manifest, final.get("epsilon"))
            rounds, gap, norm, *spent = (said(final.get(key)) for key in ("rounds", *ends, "delta"))
            name = curve.label + (f", run {k}" if len(curve.runs) > 1 else "")
            name += "" if run.final else " (unfinished)"
            yield run, (name, rounds, gap, norm, label, *spent)


def said(value: object) -> str:
    """Four digits of a number; an empty place as "-"."""
    if isinstance(value, float):
        return "-" if np.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)


def page_of(runs: Sequence[Run], *, is_server_view: bool = False) -> str:
    """The HTML of runs as they may be shown (`manifed.runs.export.viewed`)."""
    from jinja2 import StrictUndefined, Template
    from markupsafe import Markup

    told, charts = list(_told(runs)), list[dict[str, Any]]()
    for y, x, words, lines in figures_of(curves_of(runs)):
        drawn = picture(lines, words, y, "svg").decode()
        extra = r'<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"'
        svg = re.sub(extra, "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
        values = [
            (label, said(a), said(b))
            for label, (first, found) in lines.items()
            for a, b in zip(first.tolist(), found.mean(axis=0).tolist(), strict=True)
        ]
        kept = sorted({round(i) for i in np.linspace(0, len(values) - 1, _MOST_ROWS)})
        charts.append(
            {
                "caption": f"{y} against {words}".replace("_", " "),
                "svg": Markup(re.sub(r'(\bid="|href="#|url\(#)', rf"\1{y}-by-{x}-", svg)),
                "header": ("curve", words, y),
                "rows": [values[i] for i in kept],
            }
        )
    template = Template(
        Path(__file__).with_name("page.html").read_text(encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    text = template.render(
        title=told[0][1][0] if len(told) == 1 else f"{len(told)} runs",
        is_server_view=is_server_view,
        header=HEADER,
        rows=[row for _, row in told],
        charts=charts,
        runs=[
            (row[0], statement_of(run.manifest.get("privacy") or {"kind": "none"}),
             json.dumps({k: v for k, v in run.manifest.items() if k != "privacy"}, indent=1))
            for run, row in told
        ],
    )  # fmt: skip
    script = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return text.replace("HASH-OF-THE-SCRIPT", digest, 1)

"""PNG figures of one run or several overlaid, drawn from run folders alone.

Several seeds of one configuration become one curve: their mean, with a band from the least to the
greatest. A figure that has nothing to show (privacy off, no optimum known) is not written.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manifed.durable import write_atomically
from manifed.errors import one_line
from manifed.runs.report.runs import Column, Curve, Run, curves_of
from manifed.runs.statement import label_in_manifest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = (
    ("cost", "round"),
    ("relative_cost_gap", "round"),
    ("relative_cost_gap", "epsilon"),
    ("relative_cost_gap", "uploads"),
    ("gradient_norm", "round"),
    ("gradient_norm", "uploads"),
    ("gradient_norm", "epsilon"),
)
"""Pairs (y, x) of columns; the file is ``y``-by-``x``.png."""

LABELS = {
    "cost": "cost $f(x)$",
    "cost_gap": "excess risk $f(x) - f(x^*)$",
    "relative_cost_gap": "relative cost gap $(f(x) - f(x^*))\\,/\\,|f(x^*)|$",
    "distance_to_truth": "distance to the true embedding",
    "gradient_norm": "gradient norm $\\|\\mathrm{grad}\\,f(x)\\|$",
    "round": "round",
    "uploads": "matrices sent by a client",
    "epsilon": "$\\varepsilon$ spent",
}
LINEAR = {"cost", "distance_to_truth"}
"""Columns y on a linear axis; all others have a logarithmic one."""
Numbered = Sequence[tuple[int, Curve]]
"""Curves with their place in the whole report, so that each keeps its colour in every figure."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's palette, told apart by colour-blind readers."""
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)))
"""One after another for curves beyond the palette."""
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#222222",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "mathtext.fontset": "dejavusans",
}


def draw(runs: Sequence[Run], out: Path) -> list[Path]:
    """The PNG files written into ``out``: one for each of ``FIGURES`` that has data."""
    return draw_curves(curves_of(runs), out)


def draw_curves(curves: Sequence[Curve], out: Path) -> list[Path]:
    """As `draw`, of curves that have their labels."""
    return list(draw_each(curves, out))


def draw_each(curves: Sequence[Curve], out: Path) -> Iterator[Path]:
    """As `draw_curves`, each file once it is written."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    for (y, x), shown in figures_of(curves).items():
        with rc_context(rc=STYLE):
            figure = Figure(figsize=(6.4, 4.2), layout="constrained")
            axes = figure.add_subplot()
            draw_axes(axes, shown, x, y)
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=160, metadata={"Software": None})
        path = out / name_of(y, x)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
        yield path


def name_of(y: str, x: str) -> str:
    """The file of a pair."""
    return f"{y}-by-{x}.png".replace("_", "-")


def figures_of(
    curves: Sequence[Curve], pairs: Sequence[tuple[str, str]] | None = None
) -> dict[tuple[str, str], Numbered]:
    """Those pairs (``FIGURES``) that have something to show, each with the curves in it."""
    numbered = list(enumerate(curves))
    shown = {
        (y, x): [(i, curve) for i, curve in numbered if _is_drawable(curve, x, y)]
        for y, x in (FIGURES if pairs is None else pairs)
    }
    has_uploads = any(_sends_several(curve) for curve in curves)
    return {
        (y, x): curves
        for (y, x), curves in shown.items()
        if curves and (x != "uploads" or has_uploads)
    }


def _sends_several(curve: Curve) -> bool:
    """Whether clients send other than one matrix a round, so that uploads are not rounds."""
    rounds, uploads = curve.values("round", "uploads")
    return bool((uploads != rounds).any())


def _is_drawable(curve: Curve, x: str, y: str) -> bool:
    """Whether at least two different x have a y (for logarithms: a positive one)."""
    first, rows = curve.values(x, y)
    mean = rows.mean(axis=0) if rows.size else first
    return len(np.unique(first if y in LINEAR else first[mean > 0])) > 1


def _words(label: str) -> str:
    """A label that matplotlib reads as words, not as mathematics."""
    return one_line(label).replace("$", r"\$")


def draw_axes(axes: "Axes", curves: Numbered, x: str, y: str) -> None:
    """The curves of column y against column x, with labels, scales and legend."""
    _draw_curves(axes, curves, x, y)
    _draw_frame(axes, curves, x, y)


def _draw_curves(axes: "Axes", curves: Numbered, x: str, y: str) -> None:
    for i, curve in curves:
        first, rows = curve.values(x, y)
        color = COLORS[i % len(COLORS)]
        mean = _positive(rows.mean(axis=0), y)
        axes.plot(
            first,
            mean,
            label=_words(curve.label),
            color=color,
            linestyle=DASHES[i // len(COLORS) % len(DASHES)],
            linewidth=1.8,
            marker="o" if len(first) <= 25 else None,
            markersize=3.5,
        )
        if len(rows) > 1:
            low, high = _positive(rows.min(axis=0), y), _positive(rows.max(axis=0), y)
            axes.fill_between(first, low, high, color=color, alpha=0.15, linewidth=0)
    if y == "cost":
        draw_optimum(axes, [run for _, curve in curves for run in curve.runs], "true value", 1.2)


def draw_optimum(axes: "Axes", runs: Sequence[Run], label: str, width: float) -> None:
    """A dotted line at the optimal cost (cost minus cost gap), where all runs share it."""
    optima = [_optimum(run) for run in runs]
    values = np.array([np.nan if optimum is None else optimum for optimum in optima])
    if np.ptp(values) <= 1e-9 * np.abs(values).max():
        axes.axhline(values[0], color="#555555", linestyle=":", linewidth=width, label=label)


def _draw_frame(axes: "Axes", curves: Numbered, x: str, y: str) -> None:
    from matplotlib.ticker import MaxNLocator

    is_spent = x == "epsilon"
    axes.set_xlabel((_labels(curves) + LABELS[x] + _delta(curves)) if is_spent else LABELS[x])
    axes.set_ylabel(LABELS[y])
    if y not in LINEAR:
        axes.set_yscale("log")
    if x == "epsilon":
        axes.set_xlim(left=0)
    else:
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if len(axes.get_lines()) > 8:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)
    else:
        axes.legend(loc="best")


def _labels(curves: Numbered) -> str:
    """Whether the noise behind an epsilon protects anybody, before it; each word once."""
    runs = [run for _, curve in curves for run in curve.runs]
    words = {label_in_manifest(run.manifest, run.last("epsilon")) for run in runs}
    return f"{' / '.join(sorted(words))}: "


def _delta(curves: Numbered) -> str:
    """The common delta of the runs, for the axis that shows epsilon."""
    deltas = {run.final.get("delta") for _, curve in curves for run in curve.runs}
    delta = deltas.pop() if len(deltas) == 1 else None
    if not delta:
        return ""
    mantissa, _, exponent = f"{delta:.3e}".partition("e")
    factor = "" if float(mantissa) == 1 else f"{float(mantissa):g} \\cdot "
    return f"  ($\\delta = {factor}10^{{{int(exponent)}}}$)"


def _positive(values: Column, y: str) -> Column:
    return values if y in LINEAR else np.where(values > 0, values, np.nan)


def _optimum(run: Run) -> float | None:
    cost, gap = run.columns.get("cost"), run.columns.get("cost_gap")
    if cost is None or gap is None:
        return None
    optimum = (cost - gap)[np.isfinite(cost - gap)]
    return float(optimum[-1]) if optimum.size else None

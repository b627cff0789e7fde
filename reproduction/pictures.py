"""Pictures of papers' figures, as wide as a column or a page: PNG to look at, PDF to print."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from manifed.durable import write_atomically
from manifed.experiment.assembly import facts_of, load_shards
from manifed.experiment.load import load, parse
from manifed.runs.report import COLORS, DASHES, STYLE, Column, Run, columns_of
from reproduction.figure_files import Axes as Row
from reproduction.figure_files import FigureOf
from reproduction.trials import gradients_a_round

COLUMN = 3.4
PAGE = 7.0
"""Inches of a column and of a page."""
SMALL: dict[Any, Any] = STYLE | {
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "legend.fontsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.linewidth": 0.6,
}
WORDS = {
    "cost": "cost $f(x)$",
    "cost_gap": "excess risk $f(x) - f(x^*)$",
    "distance_to_truth": "distance to the true embedding",
    "epsilon": "$\\varepsilon$ spent",
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


def save(figure: Figure, stem: Path, *, note: str = "") -> list[Path]:
    """PNG and PDF of a figure, with a note where it is not the paper's."""
    if note:
        figure.suptitle(note, fontsize=7, fontstyle="italic", color="#A00000")
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, told in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=200, metadata=told)
        written.append(stem.with_name(f"{stem.name}.{kind}"))
        write_atomically(written[-1], content.getvalue())
    return written


def written(table: Path, columns: Mapping[str, Sequence[float]]) -> Path:
    """Columns as CSV, in a folder made if it is missing."""
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(f"{value:.7g}" for value in row) for row in rows)]
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("\n".join(lines) + "\n")
    return table


def plain_ticks(axes: Axes) -> None:
    """Plain numbers on a logarithmic y axis that has less than a decade: no powers of ten."""
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log" and 0 < low < high < 10 * low:
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")


def draw_panels(figure: FigureOf, runs: RunsOf, folder: Path, *, note: str = "") -> list[Path]:
    """PNG and PDF of all panels that have a run: a column of axes a panel, a row a pair of columns.

    Curves are means over seeds with a band from the least to the greatest; a curve has one colour
    in every panel. Nothing is drawn where no panel has a run.
    """
    panels = [panel for panel in figure.panels if any(runs.get(name) for name in panel[1])]
    if not panels:
        return []
    rows = figure.file.axes
    across = len(panels)
    if across > 4:  # a line of panels for each choice of the part that varies fastest
        parts = [panel.by[-1] for panel in figure.file.panels if len(panel.by) > 1]
        across = len(figure.file.parts[parts[0]]) if parts else 4
    bands = -(-len(panels) // across)
    labels = list(dict.fromkeys(label for panel in figure.panels for label in panel[1].values()))
    wide = PAGE if across > 1 else COLUMN
    columns = max(1, min(4, int(wide / (0.056 * (8 + max(map(len, labels)))))))
    with rc_context(rc=SMALL):
        high = 0.5 + 1.9 * len(rows) * bands + 0.14 * (-(-len(labels) // columns) - 1)
        drawn = Figure(figsize=(wide, high), layout="constrained")
        grid = drawn.subplots(bands * len(rows), across, squeeze=False)
        handles = {}
        for k in range(bands * across):
            column = grid[k // across * len(rows) :, k % across][: len(rows)]
            if k >= len(panels):
                for axes in column:
                    axes.set_visible(False)
                continue
            title, names = panels[k]
            shown = {
                labels.index(label): (label, runs[name])
                for name, label in names.items()
                if runs.get(name)
            }
            column[0].set_title(title)
            for axes, row in zip(column, rows, strict=True):
                _draw(axes, shown, row)
                if k % across == 0:
                    axes.set_ylabel(worded(row.y))
                handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        seeds = {
            run.manifest["config"]["federation"]["seed"] for one in runs.values() for run in one
        }
        if len(seeds) > 1:
            words = f"least to greatest of {len(seeds)} seeds"
            handles[words] = Patch(color="#555555", alpha=0.2)
        drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
        return save(drawn, folder / f"figure-{figure.figure}", note=note)


def worded(column: str) -> str:
    """What an axis calls a column of metrics.csv."""
    return WORDS.get(column, column.replace("_", " "))


def _draw(axes: Axes, shown: Mapping[int, tuple[str, Sequence[Run]]], row: Row) -> None:
    for place, (label, runs) in shown.items():
        color = COLORS[place % len(COLORS)]
        x, values = values_of(runs, row)
        values = np.where(values > 0, values, np.nan) if "y" in row.log else values
        axes.plot(
            x,
            values.mean(axis=0),
            label=label,
            color=color,
            linestyle=DASHES[place % len(DASHES)],
            linewidth=1.1,
            marker="o" if len(x) <= 25 else None,
            markersize=2,
        )
        if len(values) > 1:
            ends = values.min(axis=0), values.max(axis=0)
            axes.fill_between(x, *ends, color=color, alpha=0.15, linewidth=0)
    optima = np.array([_optimum(run) for _, runs in shown.values() for run in runs])
    if row.y == "cost" and np.ptp(optima) <= 1e-9 * np.abs(optima).max():
        axes.axhline(optima[0], color="#555555", linestyle=":", linewidth=0.9, label="least cost")
    if row.x in ("round", "uploads"):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    for side in row.log:
        (axes.set_xscale if side == "x" else axes.set_yscale)("log")
    if row.least is not None:
        axes.set_ylim(bottom=row.least)
    plain_ticks(axes)
    axes.margins(x=0.02)
    axes.set_xlabel(worded(row.x))


def _optimum(run: Run) -> float:
    """The least cost that there is, cost minus cost gap, where it was measured; else NaN."""
    if not {"cost", "cost_gap"} <= set(run.columns):
        return math.nan
    optimum = run.columns["cost"] - run.columns["cost_gap"]
    return next((float(value) for value in optimum[::-1] if np.isfinite(value)), math.nan)


def values_of(runs: Sequence[Run], row: Row) -> tuple[Column, Column]:
    """Columns x (n,) and y (runs, n) over the rounds that all runs have measured.

    ``gradients`` is no measured column: it is rounds times the gradients of one, in units of all
    records.
    """
    if row.x != "gradients":
        return columns_of(runs, row.x, row.y)
    rounds, rows = columns_of(runs, "round", row.y)
    return rounds * passes_a_round(runs[0]), rows


def passes_a_round(run: Run) -> float:
    """Gradients that a client computes in a round, over the number of its records."""
    config = parse(dict(run.manifest["config"]))
    count = min(facts_of(config).sizes)
    return gradients_a_round(config, count) / count


# -- Figure 6 of PriRFed -------------------------------------------------------------------------
def draw_disk(runs: RunsOf, labels: Mapping[str, str], stem: Path, *, note: str = "") -> list[Path]:
    """All nodes, the truth and the best prediction of every config, whole disk and close up.

    The best is the nearest to the truth among the runs on the first run's data (the random tree is
    another one for every seed, the mammals are not).
    """
    first = next(iter(runs.values()))[0]
    found = load_shards(load(first.directory / "experiment.toml"))
    nodes = poincare(torch.cat([shard["target"] for shard in found.examples]))
    truth = poincare(found.meta["query_target"])
    with rc_context(rc=STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(9.6, 4.8), layout="constrained")
        for axes, is_close in zip(figure.subplots(1, 2), (False, True), strict=True):
            angle = np.linspace(0, 2 * np.pi, 400)
            axes.plot(np.cos(angle), np.sin(angle), color="#AAAAAA", linewidth=0.8)
            axes.scatter(*nodes.T, s=5, color="#BBBBBB", label="embedding")
            axes.scatter(*truth, s=90, marker="*", color="black", label="truth", zorder=3)
            for (name, several), color in zip(runs.items(), COLORS, strict=False):
                comparable = [run for run in several if _checksum(run) == found.checksum]
                best = min(comparable, key=lambda run: run.last("distance_to_truth") or np.inf)
                shown = f"{labels[name]}, {best.last('distance_to_truth'):.3f}"
                end = poincare(load_file(best.directory / "model.safetensors")["x"])
                axes.scatter(*end, s=36, color=color, label=shown, zorder=2)
            if is_close:
                axes.set_xlim(truth[0] - 0.25, truth[0] + 0.25)
                axes.set_ylim(truth[1] - 0.25, truth[1] + 0.25)
            axes.set_aspect("equal")
        axes.legend(
            loc="best", fontsize=8, title="best run, distance", frameon=True, framealpha=0.9
        )
        return save(figure, stem, note=note)


def _checksum(run: Run) -> object:
    """Of the data that a run was on; a private run's manifest does not tell it."""
    return load_shards(parse(dict(run.manifest["config"]))).checksum


def poincare(x: Tensor) -> NDArray[np.float64]:
    """Points of the hyperboloid on the disk, x_{2:} / (1 + x_1), shape (..., 2)."""
    return (x[..., 1:] / (1 + x[..., :1])).numpy()

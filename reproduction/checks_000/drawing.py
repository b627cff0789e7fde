"""Figures of several panels from run folders, and predictions on the Poincaré disk."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from manifed.experiment.assembly import load_shards
from manifed.experiment.load import load, parse
from manifed.runs.report.figures import COLORS, LABELS, STYLE
from manifed.runs.report.runs import Curve, Run, curves_of
from reproduction.checks_000.panels import Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MORE_LABELS = {
    "cost_gap": "excess risk $f(x) - f(x^*)$",
    "distance_to_truth": "distance to the true embedding",
}
RunsOf = Mapping[str, Sequence[Run]]
"""The runs of every config by its name."""


def draw_panels(panels: Sequence[Panel], runs: RunsOf, path: Path) -> None:
    """One column of axes a panel, one row a measured quantity: means with bands over seeds."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = len(panels[0].columns)
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(4.6 * len(panels), 3.4 * rows), layout="constrained")
        grid = figure.subplots(rows, len(panels), squeeze=False)
        for across, panel in enumerate(panels):
            curves = curves_of([run for name in panel.configs for run in runs[name]])
            for down, column in enumerate(panel.columns):
                _draw(grid[down][across], curves, column)
            grid[0][across].set_title(panel.title)
        figure.savefig(path, dpi=140, metadata={"Software": None})


def _draw(axes: "Axes", curves: Sequence[Curve], column: str) -> None:
    is_logarithmic = column != "cost"
    for curve, color in zip(curves, COLORS, strict=False):
        rounds, values = curve.values("round", column)
        values = np.where(values > 0, values, np.nan) if is_logarithmic else values
        axes.plot(rounds, values.mean(0), color=color, label=_short(curve), linewidth=1.6)
        if len(values) > 1:
            axes.fill_between(rounds, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)
    if column == "cost":
        optima = [run.columns["cost"][-1] - run.columns["cost_gap"][-1]
                  for curve in curves for run in curve.runs]  # fmt: skip
        axes.axhline(float(np.mean(optima)), color="#555555", linestyle=":", label="true value")
    if is_logarithmic and column != "distance_to_truth":
        axes.set_yscale("log")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("round")
    axes.set_ylabel((LABELS | MORE_LABELS)[column])
    axes.legend(loc="best", fontsize=8)


def _short(curve: Curve) -> str:
    """A curve's name without the figure's number, and how many seeds it is the mean of."""
    name = curve.runs[0].name.split("_", 2)[2].removeprefix("regime_")
    return f"{name} ({len(curve.runs)} seeds)" if len(curve.runs) > 1 else name


# -- Figure 6 --------------------------------------------------------------------------------
def draw_disk(runs: RunsOf, path: Path) -> None:
    """All nodes, the truth and the best prediction of every config, whole disk and close up.

    The best is the nearest to the truth among the runs on the first run's data (the random tree is
    another one for every seed, the mammals are not).
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    first = next(iter(runs.values()))[0]
    nodes, truth = embedding(first.directory)
    with rc_context(rc=STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(9.6, 4.8), layout="constrained")
        for axes, is_close in zip(figure.subplots(1, 2), (False, True), strict=True):
            angle = np.linspace(0, 2 * np.pi, 400)
            axes.plot(np.cos(angle), np.sin(angle), color="#AAAAAA", linewidth=0.8)
            axes.scatter(*nodes.T, s=5, color="#BBBBBB", label="embedding")
            axes.scatter(*truth, s=90, marker="*", color="black", label="truth", zorder=3)
            for (name, several), color in zip(runs.items(), COLORS, strict=False):
                comparable = [run for run in several if _data(run) == _data(first)]
                best = min(comparable, key=lambda run: run.last("distance_to_truth") or np.inf)
                shown = f"{name.split('_', 2)[2]}, {best.last('distance_to_truth'):.3f}"
                axes.scatter(*prediction(best.directory), s=36, color=color, label=shown, zorder=2)
            if is_close:
                axes.set_xlim(truth[0] - 0.25, truth[0] + 0.25)
                axes.set_ylim(truth[1] - 0.25, truth[1] + 0.25)
            axes.set_aspect("equal")
        axes.legend(
            loc="best", fontsize=8, title="best run, distance", frameon=True, framealpha=0.9
        )
        figure.savefig(path, dpi=140, metadata={"Software": None})


def _data(run: Run) -> object:
    """The checksum of what it ran on; a private run's manifest does not tell it."""
    return load_shards(parse(dict(run.manifest["config"]))).checksum


def poincare(x: Tensor) -> NDArray[np.float64]:
    """Points of the hyperboloid on the disk, x_{2:} / (1 + x_1), shape (..., 2)."""
    return (x[..., 1:] / (1 + x[..., :1])).numpy()


def prediction(folder: Path) -> NDArray[np.float64]:
    """Where a run ended."""
    return poincare(load_file(folder / "model.safetensors")["x"])


def embedding(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All targets and the one held out, on the disk."""
    found = load_shards(load(folder / "experiment.toml"))
    targets = torch.cat([shard["target"] for shard in found.examples])
    return poincare(targets), poincare(found.meta["query_target"])

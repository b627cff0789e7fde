"""What `manifed reproduce` draws beside panels: budgets on an axis, a disk, and what no run makes.

Figure 1 of DECOR has budgets on its axis. Figure 6 of PriRFed shows end points on the Poincaré
disk. Figures 2 and 3 of DECOR are the accountant's, those of growing samples plain numpy's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from manifed.errors import ConfigError
from manifed.experiment.assembly import load_shards
from manifed.experiment.figure_files import FigureOf, read_figure
from manifed.experiment.load import load, parse
from manifed.experiment.schema import Experiment
from manifed.problems.federation import data_folder
from manifed.problems.readers import DataMissing, mnist
from manifed.runs.figure_runs import FigureTask, runs_of
from manifed.runs.report.figures import COLORS, STYLE
from manifed.runs.report.panels import save
from manifed.runs.report.runs import Run
from reproduction import decor_curves, decor_figure_1, time_varying_figures

RunsOf = Mapping[str, Sequence[Run]]
"""The runs of every curve by its name."""
_MAKERS = (decor_curves, time_varying_figures)


def noise_for(config: Experiment, curve: str, budget: float) -> tuple[str, ...]:
    """Overrides with which a curve of DECOR's Figure 1 meets (budget, 1e-5)."""
    own, masks = decor_figure_1.noise_of(config, curve.rpartition("_")[2], budget)
    return f"privacy.noise_stddev={own!r}", f"privacy.mask_stddev={masks!r}"


def check(figure: FigureOf, of: FigureOf) -> None:
    """Refuse a figure that nothing here draws; ``of`` has the curves.

    Raises:
        ConfigError: a name that no drawing here is made for, or a problem that has no disk.
    """
    drawing = figure.file.drawing
    known = {
        "budgets": list(decor_figure_1.PANELS),
        "computed": [name for maker in _MAKERS for name in maker.FIGURES],
    }
    if drawing in known and figure.figure not in known[drawing]:
        raise ConfigError(
            f"{figure.path}: drawing: {drawing!r} is made for the figures "
            f"{', '.join(known[drawing])}, got {figure.figure!r}"
        )
    if drawing == "disk":
        for curve in of.choices:
            kind = load(of.source(curve)).problem.kind
            if kind != "hyperbolic-prediction":
                raise ConfigError(
                    f"{figure.path}: drawing: 'disk' needs problem.kind = 'hyperbolic-prediction', "
                    f"got {kind!r}"
                )


def missing(figure: FigureOf) -> str | None:
    """What is not below MANIFED_DATA of the data that a computed figure reads."""
    readers = {"mnist": mnist}
    try:
        for name in figure.file.data:
            readers[name](data_folder())
    except DataMissing as error:
        return str(error)
    return None


def draw_computed(figure: FigureOf, folder: Path, *, is_quick: bool = False) -> list[Path]:
    """A figure that no run makes; a quick look takes its first iterations."""
    (maker,) = (one for one in _MAKERS if figure.figure in one.FIGURES)
    return maker.draw(figure.figure, folder, is_quick)


def draw_runs(
    figure: FigureOf, tasks: Sequence[FigureTask], folder: Path, *, is_quick: bool = False
) -> list[Path]:
    """A figure of finished runs that is no column of panels."""
    if figure.file.drawing == "disk":
        source = read_figure(Path(tasks[0].source.partition("::")[0]))
        labels = dict(named for panel in source.panels for named in panel.curves)
        stem = folder / f"figure-{figure.figure}"
        return draw_disk(runs_of(tasks), labels, stem, is_quick=is_quick)
    budgets: dict[float, list[FigureTask]] = {}
    for task in tasks:
        budgets.setdefault(float(task.directory.parent.name.partition("-")[2]), []).append(task)
    runs: dict[str, dict[float, list[Run]]] = {}
    for budget, some in budgets.items():
        for curve, several in runs_of(some).items():
            runs.setdefault(curve.rpartition("_")[2], {})[budget] = several
    labels = figure.file.labels
    return decor_figure_1.draw(figure.figure, runs, labels, folder, is_quick=is_quick)


# -- Figure 6 --------------------------------------------------------------------------------
def draw_disk(
    runs: RunsOf, labels: Mapping[str, str], stem: Path, *, is_quick: bool = False
) -> list[Path]:
    """All nodes, the truth and the best prediction of every config, whole disk and close up.

    The best is the nearest to the truth among the runs on the first run's data (the random tree is
    another one for every seed, the mammals are not).
    """
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
                shown = f"{labels[name]}, {best.last('distance_to_truth'):.3f}"
                axes.scatter(*prediction(best.directory), s=36, color=color, label=shown, zorder=2)
            if is_close:
                axes.set_xlim(truth[0] - 0.25, truth[0] + 0.25)
                axes.set_ylim(truth[1] - 0.25, truth[1] + 0.25)
            axes.set_aspect("equal")
        axes.legend(
            loc="best", fontsize=8, title="best run, distance", frameon=True, framealpha=0.9
        )
        return save(figure, stem, is_quick=is_quick)


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

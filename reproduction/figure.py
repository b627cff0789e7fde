"""Run every curve of a figure over several seeds, and draw it.

    python -m reproduction.figure 000-1 [--seeds 3] [--out runs/000-1] [--set A.B=VALUE]
    python -m reproduction.figure 003-3a_lognormal
    python -m reproduction.figure 004-1a [--epsilons 3 10]
    python -m reproduction.figure 002-1

PriRFed's figures have panels: 000-1, 000-1-regime, 000-2, 000-2-digits, 000-2-regime, 000-3,
000-3-regime, 000-4, 000-5, 000-5-tree, 000-6, 000-6-tree; 000-2, 000-5 and 000-6 need MANIFED_DATA.
DECOR's Figure 1 has budgets on its axis: 004-1a, 004-1b, 004-1c (the last two need MANIFED_DATA),
004-1b-breast-cancer, 004-1c-digits; 004-2 and 004-3 are curves of the accountant, and run nothing.
Growing samples, 002-1 to 002-5, are made in plain numpy or torch, and take no seeds.
Any other name stands for the curves of configs/figures/ that begin with it, with _ for -, drawn as
`manifed report` does. A run that is already finished in the folder is kept, so an
interrupted command goes on where it stopped.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from manifed.experiment.load import load, parse
from manifed.runs.report.figures import COLORS, STYLE, draw, draw_axes
from manifed.runs.report.runs import Curve, Run, curves_of
from reproduction import decor_curves, decor_figure_1, time_varying_figures
from reproduction.experiments import curves
from reproduction.run_folders import run_of

RunsOf = Mapping[str, Sequence[Run]]
"""The runs of every config by its name."""


@dataclass(frozen=True)
class Panel:
    """One set of axes: which configs are overlaid, and which measured columns are drawn."""

    title: str
    configs: tuple[str, ...]
    columns: tuple[str, ...]


EPSILONS = ("0.08", "0.15", "0.3")
ALGORITHMS = ("rsgd", "rsvrg")
COST = ("cost", "gradient_norm")
RISK = ("cost", "cost_gap")
WORD = ("cost", "distance_to_truth")
HYPERBOLIC = ("rsgd", "dp-rsgd", "rsvrg", "dp-rsvrg")


def _epsilons(title: str, stem: str) -> Panel:
    return Panel(title, tuple(f"{stem}-eps-{epsilon}" for epsilon in EPSILONS), COST)


def _pair(title: str, stem: str, columns: tuple[str, ...]) -> Panel:
    return Panel(title, tuple(stem.format(algorithm) for algorithm in ALGORITHMS), columns)


PANELS: Mapping[str, Sequence[Panel]] = {
    "000-1": tuple(_epsilons(f"column {c}", f"000_1_col{c}") for c in (1, 2, 3)),
    "000-1-regime": (
        _epsilons("column 1, shared basis", "000_1_regime_col1-shared"),
        _epsilons("column 2, 2000 rows", "000_1_regime_col2-rows-2000"),
        _epsilons("column 3, 2000 rows", "000_1_regime_col3-rows-2000"),
    ),
    "000-2": tuple(
        _pair(f"MNIST, (N, N_i) = ({n}, {size})", f"000_2_mnist-{{}}-N-{n}", ("cost",))
        for n, size in ((8, 1200), (10, 1000), (13, 750), (16, 600))
    ),
    "000-2-digits": tuple(
        _pair(f"digits, (N, N_i) = ({n}, {size})", f"000_2_digits-{{}}-N-{n}", ("cost",))
        for n, size in ((3, 599), (6, 299), (12, 149))
    ),
    "000-2-regime": (
        Panel(
            "sigma fixed",
            tuple(f"000_2_regime_fixed-noise-N-{n}" for n in (3, 6, 12)),
            ("relative_cost_gap",),
        ),
        _pair("local epsilon 1", "000_2_regime_eps-1-{}-N-3", ("relative_cost_gap",)),
    ),
    "000-3": tuple(
        _pair(f"(N, N_i) = ({n}, {size})", f"000_3_wishart-{{}}-N-{n}", RISK)
        for n, size in ((20, 250), (50, 100))
    ),
    "000-3-regime": (_pair("first rounds, N = 20", "000_3_regime_early-{}-N-20", RISK),),
    "000-4": tuple(
        _pair(f"(N, N_i) = ({n}, {size})", f"000_4_photos-{{}}-N-{n}", RISK)
        for n, size in ((50, 400), (100, 200))
    ),
    "000-5": (Panel("mammals", tuple(f"000_5_mammals-{c}" for c in HYPERBOLIC), WORD),),
    "000-5-tree": (Panel("random tree", tuple(f"000_5_tree-{c}" for c in HYPERBOLIC), WORD),),
    "000-6": (Panel("mammals", tuple(f"000_5_mammals-{c}" for c in HYPERBOLIC), ()),),
    "000-6-tree": (Panel("random tree", tuple(f"000_5_tree-{c}" for c in HYPERBOLIC), ()),),
}
"""Figure 6 shows the end points of Figure 5's runs on the Poincaré disk."""


# -- runs --------------------------------------------------------------------------------------
def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 after one line about what is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.figure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figure", metavar="FIGURE")
    parser.add_argument("--seeds", type=int, help="seeds 0 .. SEEDS-1 (panels: 3, others: 1)")
    parser.add_argument("--out", type=Path, help="folder of the runs (default runs/FIGURE)")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=VALUE")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[], help="of Figure 004-1*")
    given = parser.parse_args(argv)
    panels, out = PANELS.get(given.figure), given.out or Path("runs") / given.figure
    seeds = range(given.seeds or (3 if panels else 1))
    try:
        if given.figure in time_varying_figures.FIGURES:
            return _said(time_varying_figures.draw(given.figure, out))
        if given.figure.startswith("004-"):
            return _said(_of_decor(given, seeds, out))
        names = configs_of(given.figure)
        runs = {name: [run_of(name, seed, out, given.sets) for seed in seeds] for name in names}
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    path = out / f"figure-{given.figure}.png"
    if panels is None:
        drawn = draw([run for several in runs.values() for run in several], out)
    elif given.figure.startswith("000-6"):
        drawn = [draw_disk(runs, path)]
    else:
        drawn = [draw_panels(panels, runs, path)]
    return _said(drawn)


def _said(drawn: Sequence[Path]) -> int:
    sys.stdout.write("".join(f"{each}\n" for each in drawn))
    return 0


def _of_decor(given: argparse.Namespace, seeds: Sequence[int], out: Path) -> list[Path]:
    """A figure of DECOR, which has budgets on its axis.

    Raises:
        ConfigError: there is no such figure.
    """
    if given.figure in decor_curves.FIGURES:
        return decor_curves.draw(given.figure, out)
    if given.figure in decor_figure_1.PANELS:
        return decor_figure_1.draw(given.figure, seeds, out, given.sets, given.epsilons)
    known = [*decor_figure_1.PANELS, *decor_curves.FIGURES]
    raise ConfigError(f"Expected a figure of DECOR out of {known}, got {given.figure!r}")


def configs_of(figure: str) -> list[str]:
    """The names of a figure's configs.

    Raises:
        ConfigError: where there are none.
    """
    if figure in PANELS:
        return list(dict.fromkeys(name for panel in PANELS[figure] for name in panel.configs))
    found = sorted(name for name in curves() if name.startswith(f"{figure.replace('-', '_')}_"))
    if not found:
        raise ConfigError(
            f"Expected a figure out of {sorted(PANELS)} or the beginning of a curve of "
            f"configs/figures/, got {figure!r}"
        )
    return found


# -- panels ------------------------------------------------------------------------------------
def draw_panels(panels: Sequence[Panel], runs: RunsOf, path: Path) -> Path:
    """One column of axes a panel, one row a measured quantity: means with bands over seeds."""
    rows = len(panels[0].columns)
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(4.6 * len(panels), 3.4 * rows), layout="constrained")
        grid = figure.subplots(rows, len(panels), squeeze=False)
        for across, panel in enumerate(panels):
            curves = curves_of([run for name in panel.configs for run in runs[name]])
            numbered = list(enumerate(replace(curve, label=_short(curve)) for curve in curves))
            for down, column in enumerate(panel.columns):
                draw_axes(grid[down][across], numbered, "round", column)
            grid[0][across].set_title(panel.title)
        figure.savefig(path, dpi=140, metadata={"Software": None})
    return path


def _short(curve: Curve) -> str:
    """A curve's name without the figure's number, and how many seeds it is the mean of."""
    name = curve.runs[0].name.split("_", 2)[2].removeprefix("regime_")
    return f"{name} ({len(curve.runs)} seeds)" if len(curve.runs) > 1 else name


# -- Figure 6 --------------------------------------------------------------------------------
def draw_disk(runs: RunsOf, path: Path) -> Path:
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
    return path


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


if __name__ == "__main__":
    sys.exit(main())

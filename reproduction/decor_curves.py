"""Figures 2 and 3 of DECOR: what a run costs by the deviation of its masks, on a ring of 16.

Nothing is trained: both figures are the accountant's. Beside each printed curve stands what holds.
Spec 004 §6.6 recovers what the captions leave out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from manifed.graphs import Ring
from manifed.privacy.secldp import Correlated, worst
from manifed.runs.report import COLORS, STYLE
from reproduction.decor_prices import paper_slope, paper_total, public_code_epsilon
from reproduction.pictures import plain_ticks, save, written

RING = Ring().build(16)
ROUNDS = 1000
DELTA = 1e-5


@dataclass(frozen=True)
class AccountantFigure:
    """One figure: its curves as functions of sigma_cor, and where they are evaluated."""

    title: str
    masks: tuple[float, ...]
    curves: Callable[[float], Mapping[str, float]]


def own_2() -> float:
    """sigma_cdp of Figure 2: the middle of the search interval for epsilon = 5, 41.684."""
    local = float(np.sqrt(2 / paper_slope(5, ROUNDS, DELTA)))
    return (local + local / 4) / 2


def user_level(sigma_cor: float) -> dict[str, float]:
    """Epsilon of 1000 rounds by the paper's conversion, and exactly."""
    found = worst(RING, Correlated(own_2(), sigma_cor), 0)
    return {
        "as printed": paper_total(2 * found.precision, ROUNDS, DELTA),
        "exact": found.epsilon(DELTA, ROUNDS, 2.0),
    }


def example_level(sigma_cor: float) -> dict[str, float]:
    """What Figure 3 plots, one step at order 2, and what 1000 rounds cost.

    Each for Poisson batches of 64 of 60 000 / 16, add-or-remove, and sigma_cdp = 5 C / 1000.
    """
    found = worst(RING, Correlated(0.005, sigma_cor), 0)
    rate = 64 / 3750
    clip = 1 / 64
    return {
        "as printed: one step": public_code_epsilon(2 * clip**2 * found.precision, rate),
        "1000 rounds at delta 1e-5": found.epsilon(DELTA, ROUNDS, clip, rate),
    }


FIGURES: Mapping[str, AccountantFigure] = {
    "004-2": AccountantFigure(
        "Figure 2: user level, $T$ = 1000, $C$ = 1, $\\sigma_{cdp}$ = 41.68",
        (1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 700, 1000),
        user_level,
    ),
    "004-3": AccountantFigure(
        "Figure 3: example level, $T$ = 1000, $C$ = 1, $b$ = 64, $\\sigma_{cdp}$ = 0.005",
        (0.001, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1),
        example_level,
    ),
}


def draw(name: str, out: Path, is_quick: bool = False) -> list[Path]:
    """The figure as PNG and PDF and its numbers as CSV, in a folder made if it is missing.

    Nothing is run, so a quick look is the whole figure.
    """
    del is_quick
    chosen = FIGURES[name]
    rows = [chosen.curves(sigma) for sigma in chosen.masks]
    found = {curve: [row[curve] for row in rows] for curve in rows[0]}
    table = written(out / f"figure-{name}.csv", {"sigma_cor": chosen.masks, **found})
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(5.2, 3.8), layout="constrained")
        axes = figure.subplots()
        for (label, values), color in zip(found.items(), COLORS, strict=False):
            axes.plot(chosen.masks, values, color=color, marker="o", markersize=3, label=label)
        axes.set_yscale("log")
        axes.set_xscale("log")
        plain_ticks(axes)
        axes.set_xlabel("$\\sigma_{cor}$")
        axes.set_ylabel("$\\varepsilon$")
        axes.set_title(chosen.title, fontsize=9)
        axes.legend(fontsize=8)
        return [*save(figure, table.with_suffix("")), table]

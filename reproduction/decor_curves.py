"""Figures 2 and 3 of DECOR: what a run costs by the deviation of its masks, on a ring of 16.

Nothing is trained: both figures are the accountant's. Beside each printed curve stands what holds.
Spec 004 §6.6 recovers what the captions leave out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from manifed.graphs import Ring
from manifed.privacy.secldp import Correlated, Rounds, worst
from manifed.runs.report import COLORS, STYLE
from reproduction.decor_prices import paper_slope, paper_total, public_code_epsilon
from reproduction.pictures import plain_ticks, save

RING = Ring().build(16)
ROUNDS = 1000
DELTA = 1e-5
BATCH = 64
EXAMPLES = 3750
"""Of Figure 3: b and m = 60 000 / 16."""
OWN_3 = 0.005
"""sigma_cdp of Figure 3, 5 C / 1000."""
Curves = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class AccountantFigure:
    """One figure: its curves as functions of sigma_cor, and where they are evaluated."""

    title: str
    masks: tuple[float, ...]
    curves: Callable[[float], Mapping[str, float]]

    def table(self) -> Curves:
        """Every curve at every sigma_cor."""
        rows = [self.curves(sigma) for sigma in self.masks]
        return {name: [row[name] for row in rows] for name in rows[0]}


def own_2() -> float:
    """sigma_cdp of Figure 2: the middle of the search interval for epsilon = 5, 41.684."""
    local = float(np.sqrt(2 / paper_slope(5, ROUNDS, DELTA)))
    return (local + local / 4) / 2


def user_level(sigma_cor: float) -> dict[str, float]:
    """Epsilon of 1000 rounds by the paper's conversion, and exactly."""
    found = worst(RING, Correlated(own_2(), sigma_cor), 0)
    return {
        "as printed": paper_total(2 * found.precision, ROUNDS, DELTA),
        "exact": Rounds(ROUNDS, 2.0).epsilon(found, DELTA),
    }


def example_level(sigma_cor: float) -> dict[str, float]:
    """What Figure 3 plots, one step at order 2, and what 1000 rounds cost.

    Each for Poisson batches of 64 of 3750, add-or-remove.
    """
    found = worst(RING, Correlated(OWN_3, sigma_cor), 0)
    rate = BATCH / EXAMPLES
    clip = 1 / BATCH
    return {
        "as printed: one step": public_code_epsilon(2 * clip**2 * found.precision, rate),
        "1000 rounds at delta 1e-5": Rounds(ROUNDS, clip, rate).epsilon(found, DELTA),
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
    found = chosen.table()
    out.mkdir(parents=True, exist_ok=True)
    table = out / f"figure-{name}.csv"
    lines = [",".join(["sigma_cor", *found])]
    lines += [
        ",".join(f"{value:.7g}" for value in (sigma, *row))
        for sigma, row in zip(chosen.masks, zip(*found.values(), strict=True), strict=True)
    ]
    table.write_text("\n".join(lines) + "\n")
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

"""Figure 1 of DECOR: what CDP, DECOR and LDP reach at each budget, through the engine.

A panel is a task; its curves are those of configs/figures/004_1*.toml, with the noise of
one budget. That of every budget is found here by the accountant and set: LDP's so that a node's own
noise meets it, CDP's a share 1 / sqrt(n) of that, DECOR's own noise a little more than CDP's with
the masks that make up for the rest against the eavesdropper (adversary I).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from manifed.algorithms.decor import Decor
from manifed.experiment.assembly import facts_of
from manifed.experiment.schema import Experiment
from manifed.privacy.secldp import calibrate_masks
from manifed.runs.report import COLORS, DASHES, Run
from manifed.setting import CorrelatedNoise
from reproduction.checks_004.learning import local_stddev
from reproduction.decor_prices import paper_slope
from reproduction.pictures import COLUMN, SMALL, WORDS, plain_ticks, save

RATIOS = {"complete": 1.05, "torus": 1.25, "ring": 1.25}
"""sigma_cdp of DECOR over that of CDP, by graph."""
DELTA = 1e-5


@dataclass(frozen=True)
class Panel:
    """One task of Figure 1."""

    title: str
    column: str
    """Of metrics.csv, averaged over the last ``rows`` measured."""
    rows: int = 1
    is_log: bool = True


PANELS: Mapping[str, Panel] = {
    "004-1a": Panel("least squares", "optimum_distance", 20),
    "004-1b": Panel("logistic regression, a9a", "cost_gap"),
    "004-1b-breast-cancer": Panel("logistic regression, breast cancer", "cost_gap"),
    "004-1c": Panel("a network, MNIST", "accuracy", is_log=False),
    "004-1c-digits": Panel("a network, digits", "accuracy", is_log=False),
}


def noise_of(config: Experiment, curve: str, epsilon: float) -> tuple[float, float]:
    """Own and mask deviations with which a curve meets (epsilon, 1e-5) against adversary I."""
    privacy = config.privacy
    rounds = config.federation.num_rounds
    assert isinstance(privacy, CorrelatedNoise)
    assert isinstance(config.training, Decor)
    if privacy.unit == "client":
        local = float(np.sqrt(2 / paper_slope(epsilon, rounds, DELTA)))
    else:
        batch = config.training.minibatch
        assert batch.kind == "poisson"
        local = local_stddev(epsilon, rounds, int(batch.batch_size), min(facts_of(config).sizes))
    local *= privacy.l2_norm_clip
    central = local / config.federation.num_clients**0.5
    role, _, graph = curve.partition("-")
    if role != "decor":
        return (central if role == "cdp" else local), 0.0
    noise = calibrate_masks(
        config.training.network.graph, RATIOS[graph] * central, 0,
        lambda w: w.precision <= 1 / local**2,
    )  # fmt: skip
    return noise.sigma_cdp, noise.sigma_cor


def draw(
    figure: str,
    runs: Mapping[str, Mapping[float, Sequence[Run]]],
    labels: Mapping[str, str],
    out: Path,
    *,
    note: str = "",
) -> list[Path]:
    """The panel as PNG and PDF and its numbers as CSV, from every curve's runs at every budget."""
    panel = PANELS[figure]
    budgets = sorted({budget for row in runs.values() for budget in row})
    out.mkdir(parents=True, exist_ok=True)
    table = out / f"figure-{figure}.csv"
    lines = ["curve,epsilon,seeds,mean,least,greatest"]
    with rc_context(rc=SMALL):
        drawn = Figure(figsize=(COLUMN, 3.2), layout="constrained")
        axes = drawn.subplots()
        for k, (curve, row) in enumerate(runs.items()):
            numbers = []
            for epsilon, several in row.items():
                each = [_value(run, panel) for run in several]
                numbers.append((float(np.mean(each)), min(each), max(each)))
                shown = ",".join(f"{number:.6g}" for number in numbers[-1])
                lines.append(f"{curve},{epsilon:g},{len(each)},{shown}")
            means, low, high = zip(*numbers, strict=True)
            style = DASHES[("cdp", "decor", "ldp").index(curve.partition("-")[0])]
            axes.plot(list(row), means, color=COLORS[k], linestyle=style, marker="o",
                      markersize=2, linewidth=1.1, label=labels[curve])  # fmt: skip
            if low != high:
                axes.fill_between(list(row), low, high, color=COLORS[k], alpha=0.15, linewidth=0)
        table.write_text("\n".join(lines) + "\n")
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axes.minorticks_off()
        if panel.is_log:
            axes.set_yscale("log")
            plain_ticks(axes)
        axes.set_xlabel("$\\varepsilon$")
        axes.set_ylabel(WORDS.get(panel.column, panel.column))
        axes.set_title(panel.title)
        drawn.legend(loc="outside lower center", ncols=2)
        return [*save(drawn, table.with_suffix(""), note=note), table]


def _value(run: Run, panel: Panel) -> float:
    column = run.columns[panel.column]
    return float(column[~np.isnan(column)][-panel.rows :].mean())

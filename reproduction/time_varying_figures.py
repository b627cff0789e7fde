"""Figures 1 to 5 of growing samples: parameter estimation on a ring of 6, rivals, a network.

Figure 1: errors of Algorithms 1 and 2; 2: their total epsilon by eta and gamma; 3 and 4: error and
spent epsilon of each beside rivals. Errors of the two algorithms are exact second moments; those of
rivals, and the faint lines of Figure 1, are draws. 5: a network on stand-ins for MNIST, where its
accuracy is that of the worst of five agents. 6: the same network beside all four rivals, on digits
and on MNIST's test set (below MANIFED_DATA).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from manifed.runs.report import COLORS, DASHES, STYLE
from reproduction.checks_002 import classifiers, network
from reproduction.checks_002.settings import (
    DIM,
    NODES,
    RING,
    START,
    STREAM,
    errors,
    moments,
    releases,
    schedules,
)
from reproduction.decor_reference import Array
from reproduction.pictures import QUICK_LOOK, save, written
from reproduction.time_varying_reference import NAMES, Setting, run
from reproduction.time_varying_rivals import RIVALS, Constants, epsilon_of_an_iteration

ROUNDS = 2000
SEEDS = 10
MARKS = tuple(sorted({round(10**p) for p in np.linspace(0, np.log10(ROUNDS), 40)}))
ETAS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
GAMMAS = (0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0)
AGAINST = {3: (1, ("DOLA [42]", "Q-DPSGD-2 [44]")), 4: (2, ("A(DP)^2SGD [43]", "Q-DPSGD-1 [44]"))}
"""The two that perturb what is sent beside Algorithm 1, the two that perturb gradients beside 2."""
TRAINED = tuple(range(25, 501, 25))
"""The iterations at which accuracy is taken."""
BESIDE_RIVALS = {"digits": TRAINED, "mnist": tuple(range(10, 61, 10))}
"""The same of Figure 6; MNIST's images take thirty times as long."""
QUICK = tuple(range(1, 6))
"""The iterations of both in a quick look; other figures take twenty times as many."""
EPSILON = "$\\varepsilon$"
WORDS = {
    "fixed": "fixed batch, like [42]",
    "averaged": "gradients averaged",
    "summed": "gradients summed",
}
Curves = dict[str, list[float]]


def figure_1(is_quick: bool) -> Curves:
    """E MSE of both algorithms, and ten runs of each."""
    marks = _marks(is_quick)
    found = {"iteration": [float(k) for k in marks]}
    for number, algorithm in NAMES.items():
        exact = moments(algorithm, schedules(number), marks)
        found[f"Algorithm {number}"] = [exact[k].mse for k in marks]
        setting = Setting(algorithm, schedules(number), RING)
        made = run(setting, STREAM, _starts(), marks[-1], np.random.default_rng(0))
        drawn = np.array(_at(marks, (one.models for one in made))).T.tolist()
        found |= {f"Algorithm {number}; seed {seed}": row for seed, row in enumerate(drawn)}
    return found


def figure_2(is_quick: bool) -> Curves:
    """Upper bounds of the total epsilon of all rounds, a row for each gamma."""
    summed = 200 if is_quick else 20_000
    return {"gamma": list(GAMMAS)} | {
        f"Algorithm {number}; eta {eta:g}": [
            releases(number, gamma=gamma, eta=eta).series(summed).total for gamma in GAMMAS
        ]
        for number in NAMES
        for eta in ETAS
    }


def figure_34(figure: int, is_quick: bool) -> Curves:
    """Error and spent epsilon of an algorithm and of its rivals."""
    number, names = AGAINST[figure]
    marks = _marks(is_quick)
    exact = moments(NAMES[number], schedules(number), marks)
    priced = releases(number)
    found = {
        "iteration": [float(k) for k in marks],
        f"Algorithm {number}: MSE": [exact[k].mse for k in marks],
        f"Algorithm {number}: epsilon": [priced.series(k, with_tail=False).partial for k in marks],
    }
    shared = Constants(RING)
    for name in names:
        made = islice(RIVALS[name](shared, STREAM, _starts(), np.random.default_rng(0)), marks[-1])
        found[f"{name}: MSE"] = [float(row.mean()) for row in _at(marks, made)]
        each = epsilon_of_an_iteration(name, shared, DIM)
        found[f"{name}: epsilon"] = [each * k for k in marks]
    return found


def figure_5(is_quick: bool) -> Curves:
    """Accuracy by iteration, for each reading of the update and each task."""
    trained = QUICK if is_quick else TRAINED
    return {"iteration": [float(k) for k in trained]} | {
        f"{reading}; {task}": list(network.accuracies(reading, trained, on=task).values())
        for task in ("digits", "breast-cancer")
        for reading in network.READINGS
    }


def figure_6(is_quick: bool) -> Curves:
    """Accuracy by iteration of Algorithm 1 and of all rivals; NaN where a task was not run on."""
    taken = {"digits": QUICK} if is_quick else BESIDE_RIVALS
    marks = sorted({k for row in taken.values() for k in row})
    return {"iteration": [float(k) for k in marks]} | {
        f"{name}; {task}": [row.get(k, float("nan")) for k in marks]
        for task, own in taken.items()
        for name, row in classifiers.of_all(own, task).items()
    }


def _marks(is_quick: bool) -> tuple[int, ...]:
    return tuple(k for k in MARKS if not is_quick or k <= 20 * QUICK[-1])


def _starts() -> Array:
    return np.broadcast_to(START, (SEEDS, NODES, DIM))


def _at(marks: tuple[int, ...], models: Iterable[Array]) -> list[Array]:
    return [errors(x) for k, x in enumerate(models, 1) if k in marks]


FIGURES: Mapping[str, Callable[[bool], Curves]] = {
    "002-1": figure_1,
    "002-2": figure_2,
    "002-3": partial(figure_34, 3),
    "002-4": partial(figure_34, 4),
    "002-5": figure_5,
    "002-6": figure_6,
}


def draw(name: str, out: Path, is_quick: bool = False) -> list[Path]:
    """The figure as PNG and PDF and its numbers as CSV, in a folder made if it is missing."""
    found = FIGURES[name](is_quick)
    table = written(out / f"figure-{name}.csv", found)
    tasks = list(dict.fromkeys(n.partition("; ")[2] for n in found if "; " in n))
    with rc_context(rc=STYLE):
        count = len(tasks) if name == "002-6" else 2
        figure = Figure(figsize=(4.8 * count, 3.8), layout="constrained")
        panels = figure.subplots(1, count, squeeze=False)[0]
        if name == "002-1":
            _draw_errors(panels, found)
        elif name == "002-2":
            _draw_totals(figure, panels, found)
        elif name in ("002-5", "002-6"):
            for axes, task in zip(panels, tasks, strict=True):
                _draw_lines(axes, found, f"; {task}")
                axes.set_ylim(0, 1)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                _titled(axes, task, "accuracy of the worst agent")
        else:
            words = ("(a) error", "MSE", "MSE"), ("(b) privacy, $C$ = 0.2", "epsilon", EPSILON)
            for axes, (title, what, label) in zip(panels, words, strict=True):
                _draw_lines(axes, found, f": {what}")
                _titled(axes, title, label, is_log=True)
        note = QUICK_LOOK if is_quick else ""
        return [*save(figure, table.with_suffix(""), note=note), table]


def _draw_errors(panels: Sequence[Any], found: Curves) -> None:
    for (number, axes), color in zip(zip(NAMES, panels, strict=True), COLORS, strict=False):
        for seed in range(SEEDS):
            axes.plot(found["iteration"], found[f"Algorithm {number}; seed {seed}"], color=color,
                      alpha=0.25, linewidth=0.8)  # fmt: skip
        axes.plot(found["iteration"], found[f"Algorithm {number}"], color=color, label="expected")
        title = f"({'ab'[number - 1]}) Algorithm {number}, {SEEDS} runs"
        _titled(axes, title, "MSE", is_log=True)


def _draw_totals(figure: Any, panels: Sequence[Any], found: Curves) -> None:
    for number, axes in zip(NAMES, panels, strict=True):
        grid = np.array([found[f"Algorithm {number}; eta {eta:g}"] for eta in ETAS]).T
        drawn = np.ma.masked_invalid(grid)
        image = axes.imshow(drawn, origin="lower", cmap="viridis_r", aspect="auto", vmax=3)
        for (row, column), value in np.ndenumerate(grid):
            is_finite = np.isfinite(value)
            axes.text(column, row, f"{value:.2f}" if is_finite else "inf", ha="center",
                      va="center", fontsize=7,
                      color="white" if is_finite and value > 1.5 else "black")  # fmt: skip
        axes.set_xticks(range(len(ETAS)), [f"{eta:g}" for eta in ETAS])
        axes.set_yticks(range(len(GAMMAS)), [f"{gamma:g}" for gamma in GAMMAS])
        axes.grid(visible=False)
        axes.set_xlabel("$\\eta$")
        axes.set_ylabel("$\\gamma$")
        axes.set_title(f"({'ab'[number - 1]}) Algorithm {number}: {EPSILON} of all rounds")
        figure.colorbar(image, ax=axes)


def _draw_lines(axes: Any, found: Curves, end: str) -> None:
    """The curves whose name has this end, where they were taken."""
    names = [name for name in found if name.endswith(end)]
    for name, color, dash in zip(names, COLORS, cycle(DASHES), strict=False):
        row = np.array(found[name])
        own = np.isfinite(row)
        word = name.removesuffix(end)
        label = WORDS.get(word, word.replace("A(DP)^2SGD", "A(DP)$^2$SGD"))
        x = np.array(found["iteration"])[own]
        axes.plot(x, row[own], color=color, linestyle=dash, label=label)


def _titled(axes: Any, title: str, label: str, *, is_log: bool = False) -> None:
    if is_log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel("iteration")
    axes.set_ylabel(label)
    axes.set_title(title)
    axes.legend(fontsize=8)

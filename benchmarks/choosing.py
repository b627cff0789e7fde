"""Gap against epsilon of the methods that serve principal components, measured and predicted.

    python -m benchmarks.choosing [--out benchmarks/results] [--seeds 20] [--json]

Digits, ten clients, (epsilon, delta 1e-5) for every client over the whole run, against the server.
Each row is a mean over seeds 0, 1, ... of the relative gap (f(x) - f*) / |f*|, which a simulation
may look at. Predictions are those of `manifed plan`, from public numbers alone, and once more with
the spectrum of the data in place of the guess, which no planner may use: what is left between them
is the guess.
"""

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.common.cases import rounds_of
from benchmarks.common.page import Page
from benchmarks.common.stopwatch import table as markdown
from manifed.experiment import planner
from manifed.experiment.assembly import load_shards
from manifed.experiment.load import load, parse, table_of
from manifed.experiment.predictions import Components, Descent, guess_of
from manifed.problems.pca import second_moment
from manifed.runs.report import COLORS, DASHES, STYLE

ROOT = Path(__file__).resolve().parent.parent
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PROBLEMS = {
    "k = 1": "problem={kind='principal-eigenvector'}",
    "k = 2": "problem={kind='kpca',num_components=2,scaling='mean'}",
}
MAPS = {"k = 1": {}, "k = 2": {"maps": "retraction"}}
"""Exact logarithms of frames do not converge where the noise of a step is long."""
STEP = {"k = 1": 1.0, "k = 2": 2.0}
"""Of the problem's step sizes, over those of the eigenvector: its cost is half of theirs."""


@dataclass(frozen=True)
class Row:
    """One method at one epsilon."""

    problem: str
    epsilon: float
    method: str
    rounds: int
    step: float | None
    gaps: tuple[float, ...]
    predicted: float | None
    informed: float | None
    """Predicted from the spectrum of the data."""

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.mean(self.gaps)


def gap_of(config) -> float:
    """Relative gap of one run in this process, without a folder."""
    plan, rounds = rounds_of(config)
    *_, last = rounds
    data = load_shards(config)
    best = data.problem.optimum(data.examples).value
    x = plan.server_update.output(last.state, plan.manifold)
    return (float(data.problem.objective(x, data.examples)) - best) / abs(best)


def landscapes(problem: str):
    """(guessed, with the spectrum of the digits in the place of the guess)."""
    config = load(ROOT / "configs" / "best.toml", [PROBLEMS[problem], "federation.num_rounds=1"])
    shape = planner.public_numbers(config).point_shape
    guess = guess_of(config, 1.0, shape, None)
    shards = load_shards(config).examples
    found = torch.linalg.eigvalsh(second_moment(shards)).flip(0).clamp_min(0).numpy()

    components = shape[1] if len(shape) == 2 else 1
    value = guess.curvature / 2 * float(found[:components].sum())
    return guess, Components(found, components, guess.curvature, value)


def methods(problem: str, epsilon: float) -> Iterator[tuple[str, dict, float, float]]:
    """(name, table, predicted, predicted from the true spectrum) of what is compared."""
    sets = [PROBLEMS[problem], f"privacy.noise.epsilon={epsilon}"]
    table = table_of(ROOT / "configs" / "best.toml", sets)
    found = {o.name: o for o in planner.planned(table, parse)}
    sizes = planner.public_numbers(parse(planner.stand_in(table))).sizes
    both = landscapes(problem)
    spread = math.sqrt(len(sizes)) / sum(sizes)
    once = found["second-moment"].noise_multiplier * spread
    for name, length in (("quickstart: 30 rounds", 0.5), ("step halved: 30 rounds", 0.25)):
        step = length * STEP[problem]
        settings = Descent(np.array([step]), 30)
        training = {"kind": "rsgd", "step_size": step, "minibatch": {"kind": "full"}}
        federation = {**table["federation"], "num_rounds": 30}
        row = {**table, "training": {**training, **MAPS[problem]}, "federation": federation}
        yield name, row, *(float(one.descent_gaps(settings, once)[0]) for one in both)
    for name, option in found.items():
        row = planner.with_option(table, option)
        if name == "second-moment":
            yield name, row, *(float(one.one_shot_gap(once)) for one in both)
            continue
        falls = getattr(option.training, "noise_multipliers", None)
        settings = Descent(
            np.array([option.training.step_size]),
            option.num_rounds,
            getattr(option.strategy, "momentum", None) or 0.0,
            1.0 if falls is None else falls.ratio,
            getattr(getattr(option.strategy, "average", None), "from_round", None),
        )
        yield name, row, *(float(one.descent_gaps(settings, once * option.clip)[0]) for one in both)


def measure(seeds: int, epsilons: Sequence[float]) -> Iterator[Row]:
    """Every problem, epsilon and method."""
    for problem in PROBLEMS:
        for epsilon in epsilons:
            for name, table, predicted, informed in methods(problem, epsilon):
                federation = table["federation"]
                step = table["training"].get("step_size")
                gaps = tuple(
                    gap_of(parse({**table, "federation": {**federation, "seed": seed}}))
                    for seed in range(seeds)
                )
                rounds = federation["num_rounds"]
                yield Row(problem, epsilon, name, rounds, step, gaps, predicted, informed)


def plot(rows: list[Row], path: Path) -> None:
    """One panel a problem: measured means with the range over seeds, and the predictions."""
    with rc_context(rc=STYLE):
        figure = Figure(figsize=(9.6, 5.2), layout="constrained")
        panels = figure.subplots(1, len(PROBLEMS), sharey=True)
        names = list(dict.fromkeys(row.method for row in rows))  # one colour a method in both
        for axes, problem in zip(panels, PROBLEMS, strict=True):
            for number, name in enumerate(names):
                colour = COLORS[number % len(COLORS)]
                dash = DASHES[number // len(COLORS)]
                mine = [row for row in rows if (row.problem, row.method) == (problem, name)]
                x = [r.epsilon for r in mine]
                y = [r.mean for r in mine]
                axes.loglog(x, y, marker="o", linestyle=dash, color=colour, label=name, ms=3.5)
                low = [min(r.gaps) for r in mine]
                high = [max(r.gaps) for r in mine]
                axes.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
                axes.loglog(x, [r.predicted for r in mine], ":", color=colour, linewidth=1)
            axes.set_title(f"digits, d = 64, {problem}")
            axes.set_xlabel("epsilon (delta 1e-5)")
        panels[0].set_ylabel("relative gap")
        handles, labels = panels[0].get_legend_handles_labels()
        title = "measured, with the range over seeds (dotted: predicted)"
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, title=title, handlelength=3
        )
        figure.savefig(path, dpi=160, metadata={"Software": None})


def text_of(rows: list[Row], seeds: int) -> str:
    """The tables."""
    parts = [
        "# Which method makes most of a budget",
        "",
        f"`{' '.join(['python -m benchmarks.choosing', *sys.argv[1:]])}`",
        "",
        f"Digits, ten clients, delta 1e-5, seeds 0 to {seeds - 1}. Gap: (f(x) - f*) / |f*|, mean, "
        "standard deviation and range over seeds. Predicted: by `manifed plan` from public "
        "numbers; informed: by the same formula from the spectrum of the data.",
    ]
    for problem in PROBLEMS:
        cells = [
            [
                f"{r.epsilon:g}", r.method, str(r.rounds), "-" if r.step is None else f"{r.step:g}",
                f"{r.mean:.3g}", f"{np.std(r.gaps, ddof=1):.2g}",
                f"{min(r.gaps):.3g} to {max(r.gaps):.3g}",
                f"{r.predicted:.3g}", f"{r.predicted / r.mean:.2f}", f"{r.informed / r.mean:.2f}",
            ]
            for r in rows
            if r.problem == problem
        ]  # fmt: skip
        head = [
            "epsilon", "method", "rounds", "step", "gap", "sd", "range", "predicted",
            "predicted / measured", "informed / measured",
        ]  # fmt: skip
        parts += ["", f"## {problem}", "", markdown(head, cells)]
    return "\n".join(parts)


def main() -> None:
    """Print the tables; with --json the means as the last line."""
    page = Page(__doc__, "choosing.md", seeds=20)
    page.parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    given = page.parser.parse_args()
    rows = list(measure(given.seeds, given.epsilon))
    page.say(text_of(rows, given.seeds))
    page.save(given, {f"{r.problem}, epsilon {r.epsilon:g}, {r.method}": r.mean for r in rows})
    if given.out is not None:
        plot(rows, given.out / "choosing.png")


if __name__ == "__main__":
    main()

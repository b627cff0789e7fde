"""Gap against epsilon of the methods that serve principal components, measured and predicted.

    python -m benchmarks.choosing [--out benchmarks/results] [--seeds 20] [--json]

Digits, ten clients, (epsilon, delta 1e-5) for every client over the whole run, against the server.
Each row is a mean over seeds 0, 1, ... of the relative gap (f(x) - f*) / |f*|, which a simulation
may look at. Predictions are those of `manifed plan`, from public numbers alone, and once more with
the spectrum of the data in place of the guess, which no planner may use: what is left between them
is the guess.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PROBLEMS = {
    "k = 1": "problem={kind='principal-eigenvector'}",
    "k = 2": "problem={kind='kpca',num_components=2,scaling='mean'}",
}
MAPS = {"k = 1": "", "k = 2": ",maps='retraction'"}
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
        return sum(self.gaps) / len(self.gaps)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds."""
        return float(np.std(self.gaps, ddof=1))


def gap_of(sets: list[str]) -> float:
    """Relative gap of one run in this process, without a folder."""
    from manifed.experiment.assembly import client_side, initial_point, load_shards, plan_of
    from manifed.experiment.load import load
    from manifed.federation.rounds import run_rounds
    from manifed.federation.stacked import StackedTransport

    config = load(ROOT / "configs" / "best.toml", sets)
    transport = StackedTransport(client_side(config), device="cpu", memory_budget_mb=1024)
    plan = plan_of(config)
    *_, last = run_rounds(
        plan, plan.server_update.initial(initial_point(config)), transport,
        num_rounds=config.federation.num_rounds,
    )  # fmt: skip
    data = load_shards(config)
    best = data.problem.optimum(data.examples).value
    x = plan.server_update.output(last.state, plan.manifold)
    return (float(data.problem.objective(x, data.examples)) - best) / abs(best)


def spectrum_of_digits(components: int):
    """The true spectrum, in the place of the guess."""
    import torch

    from manifed.experiment.assembly import load_shards
    from manifed.experiment.load import load
    from manifed.experiment.predictions import Spectrum
    from manifed.problems.pca import second_moment

    shards = load_shards(load(ROOT / "configs" / "best.toml")).examples
    found = torch.linalg.eigvalsh(second_moment(shards)).flip(0).clamp_min(0).numpy()

    @dataclass(frozen=True)
    class Known(Spectrum):
        @property
        def values(self):
            """As they are."""
            return found

    return Known(len(found), components, 1.0, 2.0)


def methods(problem: str, epsilon: float) -> Iterator[tuple[str, int, float | None, float, float]]:
    """(name, rounds, step, predicted, predicted from the true spectrum) of what is compared."""
    from manifed.experiment import planning
    from manifed.experiment.load import load
    from manifed.experiment.predictions import Spectrum, descent_gap, one_shot_gap

    sets = [PROBLEMS[problem], f"privacy.noise.epsilon={epsilon}"]
    config = load(ROOT / "configs" / "best.toml", sets)
    options = planning.plan(config, planning.Auto(), planning.MOST_ROUNDS)
    sizes, shape = planning.public_numbers(config)
    components = shape[1] if len(shape) == 2 else 1
    guess, truth = Spectrum(shape[0], components, 1.0, 2.0), spectrum_of_digits(components)
    curvature = planning.CURVATURE[config.problem.kind]
    once = {o.training.kind: o.noise_multiplier / math.sqrt(o.num_rounds) for o in options}
    spread = math.sqrt(sum((n / sum(sizes)) ** 2 / n**2 for n in sizes))
    descent = next(o for o in options if o.training.kind == "rsgd")
    rows = [
        ("quickstart: 30 rounds", 30, 0.5 * STEP[problem]),
        ("step halved: 30 rounds", 30, 0.25 * STEP[problem]),
        ("planned descent", descent.num_rounds, descent.training.step_size),
    ]
    for name, rounds, step in rows:
        noise = once["rsgd"] * math.sqrt(rounds) * spread
        both = (descent_gap(s, noise, step, rounds, curvature) for s in (guess, truth))
        yield name, rounds, step, *both
    noise = once["second-moment"] * spread
    yield "one-shot", 1, None, one_shot_gap(guess, noise), one_shot_gap(truth, noise)


def measure(seeds: int) -> Iterator[Row]:
    """Every problem, epsilon and method."""
    for problem, table in PROBLEMS.items():
        for epsilon in EPSILONS:
            for name, rounds, step, predicted, informed in methods(problem, epsilon):
                training = "{kind='second-moment'}"
                if step is not None:
                    training = (
                        f"{{kind='rsgd',step_size={step},minibatch={{kind='full'}}{MAPS[problem]}}}"
                    )
                sets = [
                    table, f"privacy.noise.epsilon={epsilon}", f"training={training}",
                    f"federation.num_rounds={rounds}",
                ]  # fmt: skip
                gaps = tuple(gap_of([*sets, f"federation.seed={s}"]) for s in range(seeds))
                yield Row(problem, epsilon, name, rounds, step, gaps, predicted, informed)


def plot(rows: list[Row], path: Path) -> None:
    """One panel a problem: measured means with the range over seeds, and the predictions."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PROBLEMS), figsize=(10, 4.2), sharey=True)
    for axis, problem in zip(axes, PROBLEMS, strict=True):
        names = list(dict.fromkeys(row.method for row in rows if row.problem == problem))
        for name, colour in zip(names, ("C3", "C1", "C0", "C2"), strict=True):
            mine = [row for row in rows if (row.problem, row.method) == (problem, name)]
            x, y = [r.epsilon for r in mine], [r.mean for r in mine]
            axis.loglog(x, y, "o-", color=colour, label=name, markersize=4)
            low, high = [min(r.gaps) for r in mine], [max(r.gaps) for r in mine]
            axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
            axis.loglog(x, [r.predicted for r in mine], ":", color=colour, linewidth=1)
        axis.set_title(f"digits, d = 64, {problem}")
        axis.set_xlabel("epsilon (delta 1e-5)")
        axis.grid(visible=True, which="both", alpha=0.2)
    axes[0].set_ylabel("relative gap")
    axes[0].legend(fontsize=8, title="measured (dotted: predicted)", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def text_of(rows: list[Row], seeds: int) -> str:
    """The tables."""
    from benchmarks.common.stopwatch import table

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
                f"{r.mean:.3g}", f"{r.spread:.2g}", f"{min(r.gaps):.3g} to {max(r.gaps):.3g}",
                f"{r.predicted:.3g}", f"{r.predicted / r.mean:.2f}", f"{r.informed / r.mean:.2f}",
            ]
            for r in rows
            if r.problem == problem
        ]  # fmt: skip
        head = [
            "epsilon", "method", "rounds", "step", "gap", "sd", "range", "predicted",
            "predicted / measured", "informed / measured",
        ]  # fmt: skip
        parts += ["", f"## {problem}", "", table(head, cells)]
    return "\n".join([*parts, ""])


def main() -> None:
    """Print the tables; with --json the means as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="folder for choosing.md and choosing.png")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = list(measure(given.seeds))
    text = text_of(rows, given.seeds)
    sys.stdout.write(text)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "choosing.md").write_text(text)
        plot(rows, given.out / "choosing.png")
    if given.json:
        found = {f"{r.problem}, epsilon {r.epsilon:g}, {r.method}": r.mean for r in rows}
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

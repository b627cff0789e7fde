"""Persons as the unit of privacy, beside group privacy of their rows: noise and accuracy.

    python -m benchmarks.persons --out benchmarks/results

Three sites have 200 persons each, whose rows lie near a centre of their own. All persons have as
many rows, or one in ten has more and the others have one. A logistic regression is trained at
(2, 1e-5) for each person: with ``privacy.unit = "person"``, and by what protects rows alone, at
(2 / m, 1e-5 / (m e^(2 (m - 1) / m))) for each row where a person has at most m of them, which is
(2, 1e-5) for each person (Vadhan, The Complexity of Differential Privacy, Lemma 2.2). Both have 100
rounds, batches of a tenth, the same clip, and their best step of four on other seeds. Noise is the
standard deviation on a client's mean gradient over the clip.

Where `jax_privacy` 2 can be imported, a column has the noise that it calibrates for batches of
persons (its `UserSelectionStrategy`), to its tolerance of 0.001.
"""

import argparse
import importlib
import math
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from manifed import ExampleLevel, fit
from manifed.algorithms import RSGD
from manifed.oracles.minibatch import Poisson
from manifed.plan import example_mechanism
from manifed.problems import Logistic, Persons
from manifed.setting import Federation, Setting

EPSILON, DELTA = 2.0, 1e-5
SITES, PERSONS, DIMENSION, ROUNDS = 3, 200, 10, 100
STEPS = (0.5, 2.0, 8.0, 32.0)
SEEDS, OTHERS = range(10), range(100, 103)


def counts(rows: int, is_uneven: bool) -> torch.Tensor:
    """Returns how many rows each person of a site has."""
    has_more = (torch.arange(PERSONS) % 10 == 0) | (not is_uneven)
    return torch.where(has_more, rows, 1)


_Site = dict[str, torch.Tensor]


def rows_of(seed: int, rows: int, is_uneven: bool) -> tuple[list[_Site], _Site]:
    """Returns three sites, and 1000 other persons of one row each to test on."""
    generator = torch.Generator().manual_seed(seed)

    def normals(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    normal = normals(DIMENSION)

    def made(counts: torch.Tensor) -> _Site:
        names = torch.arange(len(counts)).repeat_interleave(counts)
        rows = normals(len(counts), DIMENSION)[names] + 0.5 * normals(len(names), DIMENSION)
        label = torch.where(rows @ normal + 0.5 * normals(len(rows)) > 0, 1.0, -1.0)
        return {"feature": rows / 4, "label": label, "person": names}

    sites = [made(counts(rows, is_uneven)) for _ in range(SITES)]
    for i, site in enumerate(sites):
        site["person"] += i * PERSONS
    return sites, made(torch.ones(1000, dtype=torch.long))


def way(unit: str, rows: int, is_uneven: bool) -> tuple[Logistic | Persons, ExampleLevel, float]:
    """Returns problem, protection and batch of one way to protect persons with ``rows`` each."""
    if unit == "person":
        level = ExampleLevel(epsilon=EPSILON, delta=DELTA, unit="person", noise_source="seed")
        return Persons(Logistic(), rows), level, PERSONS / 10
    epsilon = EPSILON / rows
    delta = DELTA / (rows * math.exp((rows - 1) * epsilon))
    level = ExampleLevel(epsilon=epsilon, delta=delta, noise_source="seed")
    return Logistic(), level, float(counts(rows, is_uneven).sum()) / 10


def accuracy(unit: str, rows: int, is_uneven: bool, step: float, seed: int) -> float:
    """Trains once, and returns the share of other persons that is predicted right."""
    problem, level, batch = way(unit, rows, is_uneven)
    sites, test = rows_of(seed, rows, is_uneven)
    found = fit(
        problem, sites, RSGD(step_size=step, minibatch=Poisson(batch_size=batch)),
        rounds=ROUNDS, privacy=level, seed=seed, start=torch.zeros(DIMENSION),
    )  # fmt: skip
    return float((found.predict(test["feature"]) == test["label"]).double().mean())


def noise(unit: str, rows: int, is_uneven: bool) -> float:
    """Returns the standard deviation of the noise on one client's mean gradient, over the clip."""
    problem, level, batch = way(unit, rows, is_uneven)
    update = RSGD(step_size=1.0, minibatch=Poisson(batch_size=batch))
    federation = Federation(num_clients=SITES, num_rounds=ROUNDS)
    setting = Setting(federation, update, problem.manifold, privacy=level, problem=problem)
    size = PERSONS if unit == "person" else int(counts(rows, is_uneven).sum())
    return example_mechanism(setting, (size,) * SITES).noise.multiplier / batch


def elsewhere() -> str:
    """Returns the noise that jax-privacy calibrates, or "-" where it is not installed."""
    try:
        jax: Any = importlib.import_module("jax_privacy.accounting")
    except ImportError:
        return "-"
    multiplier = jax.calibrate_noise_multiplier(
        target_epsilon=EPSILON, target_delta=DELTA, num_updates=ROUNDS, tol=1e-3,
        accountant=jax.DpsgdTrainingAccountant(jax.PldAccountantConfig()),
        batch_sizes=PERSONS // 10, num_samples=PERSONS,
    )  # fmt: skip
    return f"{multiplier / (PERSONS // 10):.3f}"


def main() -> None:
    """Prints the table, or writes it as persons.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    ways = ("person", "example")
    by_jax = elsewhere()
    lines = [
        "| rows | noise, unit person | the same by jax-privacy | noise, group privacy "
        "| accuracy, unit person | accuracy, group privacy |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for is_uneven, rows in product((False, True), (1, 4, 16, 64)):
        if rows == 1 and is_uneven:
            continue
        cells = [f"{noise(unit, rows, is_uneven):.3f}" for unit in ways]
        cells.insert(1, by_jax)
        for unit in ways:
            run = partial(accuracy, unit, rows, is_uneven)
            best = max(STEPS, key=lambda step: mean(run(step, seed) for seed in OTHERS))
            found = [100 * run(best, seed) for seed in SEEDS]
            cells.append(f"{mean(found):.1f} ± {stdev(found) / len(found) ** 0.5:.1f}")
        name = f"{rows} of one person in ten, 1 of others" if is_uneven else f"{rows} of each"
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if out:
        text = "\n".join(["# Persons beside group privacy", "", *lines, ""])
        (out / "persons.md").write_text(text)


if __name__ == "__main__":
    main()

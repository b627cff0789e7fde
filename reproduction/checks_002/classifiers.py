"""The four rivals of section 5.3 on the classification task, beside Algorithm 1.

Constants as the paper has them for [42]: step 0.01, batches of 50, noise of scale 1. The paper
names no C, so prices are those of C = 1; they are linear in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import torch

from manifed.graphs import Ring, metropolis_hastings
from reproduction.checks_002.network import AGENTS, SCHEDULES, Learner, accuracies, task
from reproduction.decor_reference import Array
from reproduction.endless import Releases
from reproduction.time_varying_rivals import RIVALS, Constants, epsilon_of_an_iteration

READINGS: Final = ("averaged", "summed")


@dataclass(frozen=True)
class Images:
    """Gradients of images, each agent's own; where one agent is asked alone, of all together.

    Agents have images of one law, so what an agent alone is given is like its own.
    """

    learner: Learner

    def each(self, x: Array, size: int, rng: np.random.Generator) -> Array:
        """No rival clips."""
        raise NotImplementedError

    def mean(self, x: Array, size: int, rng: np.random.Generator) -> Array:
        """Means over ``size`` images, of x (1, n, d)."""
        of, (models,) = self.learner.of, x
        local = of.labels.shape[1]
        found = []
        for i, model in enumerate(models):
            agent = i if len(models) > 1 else int(rng.integers(AGENTS))
            rows = torch.from_numpy(rng.choice(local, size, replace=False))
            flat = torch.from_numpy(model).float()
            chosen = of.images[agent][rows], of.labels[agent][rows], torch.full((size,), 1 / size)
            found.append(self.learner.gradient(flat, *chosen).double().numpy())
        return np.stack(found)[None]


def constants() -> Constants:
    """Of the paper's comparison on MNIST."""
    weights = metropolis_hastings(Ring().build(AGENTS)).toarray()
    return Constants(weights, step_size=0.01, batch=50, noise_scale=1.0, sensitivity=1.0)


def rival(name: str, marks: Sequence[int], on: str, seed: int = 0) -> dict[int, float]:
    """Accuracy of the worst agent after so many iterations of a rival."""
    learner = Learner(task(on))
    start = learner.start(seed).double().expand(1, AGENTS, -1).numpy()
    made = RIVALS[name](constants(), Images(learner), start, np.random.default_rng(seed))
    iterates = enumerate(islice(made, max(marks)), 1)
    return {k: learner.worst(torch.from_numpy(x[0]).float()) for k, x in iterates if k in marks}


def of_all(marks: Sequence[int], on: str) -> Mapping[str, dict[int, float]]:
    """The two readings of Algorithm 1, and the four rivals."""
    own = {f"Algorithm 1, {reading}": accuracies(reading, marks, on=on) for reading in READINGS}
    return own | {name: rival(name, marks, on) for name in RIVALS}


def price(name: str, rounds: int, dim: int) -> float:
    """Pure epsilon of so many iterations at C = 1; Algorithm 1 as printed, averaged."""
    if name in RIVALS:
        return rounds * epsilon_of_an_iteration(name, constants(), dim)
    priced = Releases(algorithm="output", schedules=SCHEDULES, sensitivity=1.0)
    return priced.series(rounds, with_tail=False).partial

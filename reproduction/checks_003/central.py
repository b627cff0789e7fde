"""Central solvers: a federation of one client, several seeds at once as a stacked cohort.

The product's own client updates, mechanism, oracle and noise on configs/figures/003_*; only
Flower is left out, whose part is nil here (with one client the tangent mean returns its point; the
equality with a product run is tested). Every seed is one row: its own start and noise, shared data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manifed.algorithms.payloads import Point
from manifed.experiment.assembly import load_shards, starts
from manifed.experiment.schema import Experiment
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.plan import example_mechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.problem import Problem
from reproduction.trials import gradients_a_round


class Shared(Examples):
    """One data set seen by every row: drawn batches are gathered without copying it."""

    def take(self, indices: Tensor) -> Examples:
        """The drawn examples of every row."""
        drawn = {key: tensor[0][indices] for key, tensor in self.tensors.items()}
        return Examples(drawn, self.feature_ndim)


@dataclass(frozen=True)
class Curve:
    """Excess risk of every seed after so many per-example gradients; the last points."""

    gradients: NDArray[np.float64]
    excess: NDArray[np.float64]
    """(seeds, measurements)."""
    points: Tensor
    noise_stddev: float
    """Of one step's noise; 0 where nothing is noised."""

    @property
    def final(self) -> float:
        """Mean excess risk at the end."""
        return float(self.excess[:, -1].mean())

    def at(self, gradients: float) -> NDArray[np.float64]:
        """Excess risk of every seed at the last measurement within that many gradients."""
        within = np.flatnonzero(self.gradients <= gradients * (1 + 1e-9))
        return self.excess[:, within[-1]]


_LEAST: dict[tuple[Problem, str], float] = {}
"""Optimal costs by problem and checksum of the data: every curve of a panel needs the same one."""


def solve(config: Experiment, seeds: Sequence[int]) -> Curve:
    """Run a config for all ``seeds``.

    Raises:
        ValueError: for more than one client, or a sampled cohort.
    """
    federation = config.federation
    if federation.num_clients != 1 or federation.cohort.kind != "all":
        raise ValueError(
            f"Expected one client that always takes part, got {federation.num_clients} and "
            f"{federation.cohort.kind!r}"
        )
    found = load_shards(config)
    (data,) = found.examples
    problem = found.problem
    key = problem, found.checksum
    if key not in _LEAST:
        _LEAST[key] = problem.optimum([data]).value
    mechanism = example_mechanism(config.setting, found.sizes)
    rows = len(seeds)
    training = config.training
    setup = ClientSetup(problem, training, mechanism)
    stacked = Shared(
        {k: t.expand(rows, *t.shape) for k, t in data.tensors.items()}, data.feature_ndim
    )
    shape = problem.point_shape(data)
    x = torch.stack([config.problem.first_point(problem, shape, starts(seed)) for seed in seeds])
    source = NoiseSource.from_seed(federation.seed)
    spent = [0.0]
    excess = [_costs(problem, x, data) - _LEAST[key]]
    for r in range(1, federation.num_rounds + 1):
        seat = Seat(tuple(seeds), r, 0, "train")
        update = run_update(setup, seat, Point(x), None, stacked, [len(data)] * rows, source)
        x = problem.manifold.expmap(x, update.up.tensors()["u"])
        if r % config.evaluation.every == 0 or r == federation.num_rounds:
            spent.append(r * gradients_a_round(config, len(data)))
            excess.append(_costs(problem, x, data) - _LEAST[key])
    *_, of_a_step = training.queries(mechanism, len(data))
    return Curve(np.array(spent), np.stack(excess, axis=1), x, of_a_step.drawn or 0.0)


def _costs(problem: Problem, x: Tensor, data: Examples) -> NDArray[np.float64]:
    return np.array([float(problem.losses(point, data).mean()) for point in x])

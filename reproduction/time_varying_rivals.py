"""The rivals of growing samples in plain numpy: what [42], [43] and [44] of Wang and Zhang do.

The paper names them and gives neither update rules nor constants. Here are their
rules with one batch B, one step and one Laplace scale for all, so that prices are comparable: pure
epsilon of an example changed in every batch, at the paper's C. [43] and [44] draw Gaussian noise in
their own papers, and state (epsilon, delta).

* DOLA [42], output perturbation: b_i = sum_j a_ij (w_j + n_j), w_i = b_i - alpha g_i(b_i).
  Everybody sees b_i, so an example moves w_i by C alpha / B.
* A(DP)^2SGD [43], gradient perturbation, asynchronous: a node at a time, drawn at random, takes the
  mean with a random neighbour, which takes it too, and then its step by a noised gradient at the
  point it had before. One iteration here is n such events.
* Q-DPSGD-1 [44], gradient perturbation: a noised step, rounded at random to a grid, then mixed.
* Q-DPSGD-2 [44], output perturbation: a step, rounded to a grid, then discrete Laplace noise on it,
  then mixed. Rounding to the nearest moves a coordinate by up to half a cell, so an example moves
  what is noised by up to C alpha / B + d cell, in steps of the grid.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from reproduction.decor_reference import Array, mixed
from reproduction.time_varying_reference import Gradients


@dataclass(frozen=True)
class Constants:
    """What all rivals share."""

    weights: Array
    step_size: float = 0.05
    batch: int = 10
    noise_scale: float = 1.0
    sensitivity: float = 0.2
    cell: float = 0.01
    """Of the grid of [44]."""


def dola(
    of: Constants, gradients: Gradients, x: Array, rng: np.random.Generator
) -> Iterator[Array]:
    """Models w after every iteration, (..., n, d)."""
    while True:
        point = mixed(x + rng.laplace(0.0, of.noise_scale, x.shape), of.weights)
        x = point - of.step_size * gradients.mean(point, of.batch, rng)
        yield x


def adpsgd(
    of: Constants, gradients: Gradients, x: Array, rng: np.random.Generator
) -> Iterator[Array]:
    """Models after every n events; the same nodes meet in all seeds."""
    x = x.copy()
    n = len(of.weights)
    neighbours = [np.flatnonzero((of.weights[i] > 0) & (np.arange(n) != i)) for i in range(n)]
    while True:
        for _ in range(n):
            i = int(rng.integers(n))
            j = int(rng.choice(neighbours[i]))
            g = gradients.mean(x[..., i : i + 1, :], of.batch, rng)[..., 0, :]
            noised = g + rng.laplace(0.0, of.noise_scale, g.shape)
            mean = (x[..., i, :] + x[..., j, :]) / 2
            x[..., j, :] = mean
            x[..., i, :] = mean - of.step_size * noised
        yield x.copy()


def qdpsgd_1(
    of: Constants, gradients: Gradients, x: Array, rng: np.random.Generator
) -> Iterator[Array]:
    """Models after every iteration."""
    while True:
        noised = gradients.mean(x, of.batch, rng) + rng.laplace(0.0, of.noise_scale, x.shape)
        half = x - of.step_size * noised
        x = mixed(of.cell * np.floor(half / of.cell + rng.random(x.shape)), of.weights)
        yield x


def qdpsgd_2(
    of: Constants, gradients: Gradients, x: Array, rng: np.random.Generator
) -> Iterator[Array]:
    """Models after every iteration; the difference of two geometrics is discrete Laplace."""
    share = -np.expm1(-of.cell / of.noise_scale)
    while True:
        half = x - of.step_size * gradients.mean(x, of.batch, rng)
        noise = rng.geometric(share, x.shape) - rng.geometric(share, x.shape)
        x = mixed(of.cell * (np.rint(half / of.cell) + noise), of.weights)
        yield x


Rule = Callable[[Constants, Gradients, Array, np.random.Generator], Iterator[Array]]
RIVALS: Mapping[str, Rule] = {
    "DOLA [42]": dola, "A(DP)^2SGD [43]": adpsgd, "Q-DPSGD-1 [44]": qdpsgd_1,
    "Q-DPSGD-2 [44]": qdpsgd_2,
}  # fmt: skip


def epsilon_of_an_iteration(name: str, of: Constants, dim: int) -> float:
    """What one iteration costs a node, pure epsilon; [43]: on average one release an iteration."""
    moved = of.sensitivity / of.batch
    if name == "DOLA [42]":
        moved *= of.step_size
    elif name == "Q-DPSGD-2 [44]":
        moved = of.step_size * moved + dim * of.cell
    return moved / of.noise_scale

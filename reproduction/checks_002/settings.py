"""Distributed parameter estimation (Section 5), its exact second moments, and its data streams."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from manifed.graphs import Ring, metropolis_hastings
from manifed.schedules import Schedule, TimeVarying
from reproduction import recipes
from reproduction.decor_reference import Array
from reproduction.endless import Releases
from reproduction.powers import EXAMPLES, polynomial

NODES = 6
DIM = 6
COVARIANCE = np.array(recipes.COVARIANCE, dtype=np.float64)
"""R, of the features of every node."""
TARGET = np.full(DIM, 0.5)
START = np.array([3.0, 1.0, 1.0, 3.0, 3.0, 1.0])
RING = metropolis_hastings(Ring().build(NODES)).toarray()
SPREAD = 1.0
"""Standard deviation of the observation noise; the results do not depend on it."""


def releases(number: int, **exponents: float) -> Releases:
    """Example 1 or 2, with other exponents where given."""
    one = EXAMPLES[number]
    return Releases(
        algorithm=one.algorithm, schedules=schedules(number, **exponents),
        sensitivity=one.sensitivity,
    )  # fmt: skip


def schedules(number: int, **exponents: float) -> TimeVarying:
    """The schedules of Example 1 or 2, with other exponents or constants where given."""
    own = {1: {"alpha": 0.9, "beta": 0.6, "gamma": 1.1, "eta": 0.05},
           2: {"alpha": 0.8, "beta": 0.5, "gamma": 1.2, "eta": 0.1}}[number]  # fmt: skip
    return polynomial(**{**own, **exponents})


class Moments(NamedTuple):
    """E|x_i - x*|^2, averaged over nodes, and E|mean - x*|^2 of their mean."""

    mse: float
    mean: float


@dataclass(frozen=True)
class Sequences:
    """alpha, beta, gamma, sigma of the first rounds, whatever made them."""

    alpha: Array
    beta: Array
    gamma: Array
    sigma: Array

    @classmethod
    def of(cls, table: TimeVarying, rounds: int) -> "Sequences":
        """Those of a table."""
        k = np.arange(rounds, dtype=np.float64)
        return cls(table.step_size.values(k), table.mixing.values(k), table.sizes(k),
                   table.noise_scale.values(k))  # fmt: skip


@lru_cache(maxsize=64)
def moments(algorithm: str, table: TimeVarying, marks: tuple[int, ...]) -> Mapping[int, Moments]:
    """Second moments of a run with the schedules of ``table`` at iterations ``marks``, exactly."""
    return second_moments(algorithm, Sequences.of(table, max(marks)), marks)


def second_moments(algorithm: str, of: Sequences, marks: Iterable[int]) -> Mapping[int, Moments]:
    """The recursion of S_k = E[e_k e_k^T], e = x - x*, on the ring: no draw."""
    n = NODES
    d = DIM
    r = COVARIANCE
    error = np.tile(START - TARGET, n)
    state = np.outer(error, error)
    marks = set(marks)
    found = {}
    mixing = np.kron(RING, np.eye(d))
    nodes = np.arange(n)
    spread = np.kron(RING @ RING.T, np.eye(d))
    steps = np.kron(np.eye(n), r)
    eye = np.eye(n * d)
    for k in range(max(marks) + 1):
        blocks = state.reshape(n, d, n, d)
        if k in marks:
            mean = float(np.einsum("iaja->", blocks)) / n**2
            found[k] = Moments(float(np.trace(state)) / n, mean)
        if k == max(marks):
            break
        alpha = of.alpha[k]
        beta = of.beta[k]
        move = (1 - beta) * eye + beta * mixing - alpha * steps
        own = blocks[nodes, :, nodes, :]
        traces = np.einsum("ab,iba->i", r, own)
        batch = r @ own @ r + (traces + SPREAD**2)[:, None, None] * r
        state = move @ state @ move.T
        state.reshape(n, d, n, d)[nodes, :, nodes, :] += alpha**2 / of.gamma[k] * batch
        scale, noise = (beta, spread) if algorithm == "output" else (alpha, eye)
        state = state + 2 * (scale * of.sigma[k]) ** 2 * noise
    return found


def fixed(step: Schedule, size: float, noise: float, rounds: int) -> Sequences:
    """A baseline of one batch size, one noise and one time scale."""
    alpha = step.values(np.arange(rounds, dtype=np.float64))
    return Sequences(alpha, *(np.full(rounds, v) for v in (1.0, size, noise)))


@dataclass(frozen=True)
class Regression:
    """The paper's stream: u ~ N(0, R), d = u^T x* + N(0, 1); gradients u (u^T x - d)."""

    covariance: Array
    target: Array

    def mean(self, x: Array, size: int, rng: np.random.Generator) -> Array:
        """Means over fresh batches; from ``size`` > d on by Bartlett's law of their Gram matrix."""
        d = x.shape[-1]
        if size <= d:
            return self.each(x, size, rng).mean(-2)
        factor = np.linalg.cholesky(self.covariance)
        lower = np.tril(rng.standard_normal((*x.shape, d)), -1)
        chi = np.sqrt(rng.chisquare(size - np.arange(d), x.shape))
        half = factor @ (lower + chi[..., None] * np.eye(d)) / np.sqrt(size)
        noise = half @ rng.standard_normal((*x.shape, 1)) * (SPREAD / np.sqrt(size))
        gram = half @ (np.swapaxes(half, -1, -2) @ (x - self.target)[..., None])
        return (gram - noise)[..., 0]

    def each(self, x: Array, size: int, rng: np.random.Generator) -> Array:
        """Every example's gradient."""
        u = rng.standard_normal((*x.shape[:-1], size, x.shape[-1]))
        u = u @ np.linalg.cholesky(self.covariance).T
        rest = np.einsum("...sd,...d->...s", u, x - self.target)
        rest -= SPREAD * rng.standard_normal(rest.shape)
        return u * rest[..., None]


STREAM = Regression(COVARIANCE, TARGET)


def errors(models: Array) -> Array:
    """(1/n) sum_i |x_i - x*|^2 of each seed."""
    return ((models - TARGET) ** 2).sum(-1).mean(-1)

"""Distributed parameter estimation (Section 5), its exact second moments, and its data streams."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from manifed.graphs import Complete, Ring, metropolis_hastings
from manifed.schedules import Constant, TimeVarying
from reproduction.endless import Releases
from reproduction.powers import EXAMPLES, polynomial
from reproduction.time_varying_reference import Array

NODES = 6
DIM = 6
COVARIANCE = np.array(
    [[2, 1, 0, 1, 0, 0], [1, 2, 0, 1, 0, 0], [0, 0, 2, 0, 0, 0],
     [1, 1, 0, 2, 0, 0], [0, 0, 0, 0, 2, 0], [0, 0, 0, 0, 0, 2]], dtype=np.float64,
)  # fmt: skip
"""R, of the features of every node."""
TARGET = np.full(DIM, 0.5)
START = np.array([3.0, 1.0, 1.0, 3.0, 3.0, 1.0])
RING = metropolis_hastings(Ring().build(NODES)).toarray()
COMPLETE = metropolis_hastings(Complete().build(NODES)).toarray()
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


@dataclass(frozen=True)
class Moments:
    """E|x_i - x*|^2, averaged over nodes; of their mean; and of their spread."""

    mse: float
    mean: float

    @property
    def spread(self) -> float:
        """E|x_i - mean|^2, averaged."""
        return self.mse - self.mean


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
def moments(
    algorithm: str, table: TimeVarying, marks: tuple[int, ...], is_noised: bool = True,
    is_complete: bool = False,
) -> Mapping[int, Moments]:  # fmt: skip
    """Second moments of a run with the schedules of ``table`` at iterations ``marks``, exactly."""
    weights = COMPLETE if is_complete else RING
    found = Sequences.of(table, max(marks))
    return second_moments(algorithm, found, marks, weights, is_noised=is_noised)


def second_moments(
    algorithm: str, of: Sequences, marks: Iterable[int], weights: Array, *, is_noised: bool = True
) -> Mapping[int, Moments]:
    """The recursion of S_k = E[e_k e_k^T], e = x - x*: no draw (spec 002 §5.1)."""
    n = NODES
    d = DIM
    r = COVARIANCE
    error = np.tile(START - TARGET, n)
    state = np.outer(error, error)
    marks = set(marks)
    found = {}
    mixing = np.kron(weights, np.eye(d))
    nodes = np.arange(n)
    spread = np.kron(weights @ weights.T, np.eye(d))
    steps = np.kron(np.eye(n), r)
    eye = np.eye(n * d)
    for k in range(max(marks) + 1):
        if k in marks:
            blocks = state.reshape(n, d, n, d)
            found[k] = Moments(float(np.trace(state)) / n,
                               float(np.einsum("iaja->", blocks)) / n**2)  # fmt: skip
        if k == max(marks):
            break
        alpha = of.alpha[k]
        beta = of.beta[k]
        gamma = of.gamma[k]
        sigma = of.sigma[k]
        move = (1 - beta) * eye + beta * mixing - alpha * steps
        own = state.reshape(n, d, n, d)[nodes, :, nodes, :]
        traces = np.einsum("ab,iba->i", r, own)
        batch = r @ own @ r + (traces + SPREAD**2)[:, None, None] * r
        state = move @ state @ move.T
        state.reshape(n, d, n, d)[nodes, :, nodes, :] += alpha**2 / gamma * batch
        if is_noised and algorithm == "output":
            state = state + 2 * (beta * sigma) ** 2 * spread
        elif is_noised:
            state = state + 2 * (alpha * sigma) ** 2 * eye
    return found


def fixed(step: Any, size: float, noise: float, rounds: int, mixing: float = 1.0) -> Sequences:
    """A baseline: one batch size, one noise, one time scale; ``step`` is a schedule or a number."""
    k = np.arange(rounds, dtype=np.float64)
    alpha = Constant(value=step).values(k) if isinstance(step, float) else step.values(k)
    return Sequences(alpha, *(np.full(rounds, v) for v in (mixing, size, noise)))


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

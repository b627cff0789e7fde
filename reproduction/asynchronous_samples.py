"""Nodes with clocks and sample sizes of their own, and neighbours that are heard late; in numpy.

Beyond Wang and Zhang (2024), whose rounds are synchronous. Time runs in ticks. Node i has a period
p_i, ticks that one iteration of its own takes, and schedules of its own: its k-th iteration has
alpha_k, beta_k, gamma_k, sigma_k of *its* table, whatever others do. In an iteration a node

1. mixes what it heard last of each neighbour, z_i = sum_j a_ij y_j (its own y_i in it, the newest),
2. takes its gradient and its step, as in `reproduction.time_varying_reference`, and
3. sends: y_{i,k+1} (output perturbation) or x_{i,k+1} (gradient perturbation).

What is sent at a tick is heard at the next one. A node that is due waits while a neighbour is more
than ``max_staleness`` iterations behind it; with 0 nobody begins iteration k + 1 before all its
neighbours have sent what came of iteration k.

Accounting. A node releases once an iteration of its own, and its k-th release is as sensitive as
`manifed.privacy.series` says of its own schedules: what it mixes, and when, is public or follows
from what everybody saw, so the proof of docs/time_varying.md holds with "round" read as "iteration
of node i". After t ticks node i has spent the series of its own table at k_i(t).

Invariant: with equal clocks this is the synchronous loop, bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manifed.privacy.series import Releases
from manifed.schedules.time_varying import TimeVarying
from reproduction.time_varying_reference import (
    Array,
    Gradients,
    Setting,
    clipped,
    mixed,
    output_step,
)

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Clocks:
    """How fast nodes are, and how far apart they may get."""

    periods: tuple[int, ...]
    """Ticks of one iteration of each node, >= 1."""
    max_staleness: int
    """How many iterations a node may be ahead of a neighbour when it begins one, >= 0."""

    def __post_init__(self) -> None:
        if min(self.periods) < 1:
            raise ValueError(f"periods: expected ticks >= 1, got {min(self.periods)}")
        if self.max_staleness < 0:
            raise ValueError(f"max_staleness: expected a number >= 0, got {self.max_staleness}")


@dataclass(frozen=True)
class Tick:
    """What a tick left."""

    done: Counts
    """k_i, iterations that each node has finished."""
    acted: NDArray[np.bool_]
    sent: Array
    """The newest message of every node, (..., n, d): all that anybody is shown."""
    models: Array
    """x_i; with output perturbation no one's but node i's."""


def run(
    setting: Setting,
    tables: tuple[TimeVarying, ...],
    clocks: Clocks,
    gradients: Gradients,
    start: Array,
    ticks: int,
    rng: np.random.Generator,
) -> Iterator[Tick]:
    """Ticks 1, 2, ..., lazily; node i follows ``tables[i]``.

    Raises:
        ValueError: for another number of tables or periods than nodes.
    """
    n = len(setting.weights)
    if (len(tables), len(clocks.periods)) != (n, n):
        raise ValueError(
            f"tables, periods: expected one of each for {n} nodes, got {len(tables)}, "
            f"{len(clocks.periods)}"
        )
    hears = (setting.weights > 0) & ~np.eye(n, dtype=bool)
    is_output = setting.algorithm == "output"
    k, due = np.zeros(n, dtype=np.int64), np.array(clocks.periods)
    x = start
    sent = start + _noise(setting, tables, k, start, rng) if is_output else start
    for tick in range(1, ticks + 1):
        least = np.where(hears, k, np.iinfo(np.int64).max).min(1)
        acts = (due <= tick) & (k <= least + clocks.max_staleness)
        if not acts.any():
            yield Tick(k, acts, sent, x)
            continue
        found = _iteration(setting, tables, k, x, sent, gradients, rng, acts)
        chosen = acts[:, None]
        x = np.where(chosen, found, x)
        k = k + acts
        due = np.where(acts, tick + np.array(clocks.periods), due)
        shown = x + _noise(setting, tables, k, x, rng) if is_output else x
        sent = np.where(chosen, shown, sent)
        yield Tick(k, acts, sent, x)


def spent(releases: tuple[Releases, ...], done: Counts) -> Array:
    """Epsilon (Laplace) or rho (Gaussian) of every node after its own iterations, from above."""
    pairs = zip(releases, done.tolist(), strict=True)
    return np.array([one.series(k, with_tail=False).partial for one, k in pairs])


def _iteration(
    setting: Setting,
    tables: tuple[TimeVarying, ...],
    k: Counts,
    x: Array,
    sent: Array,
    gradients: Gradients,
    rng: np.random.Generator,
    acts: NDArray[np.bool_],
) -> Array:
    """What every node would come to now; only those that act are kept."""
    own = list(zip(tables, k.tolist(), strict=True))
    alpha = np.array([table.step_size(i) for table, i in own])[:, None]
    beta = np.array([table.mixing(i) for table, i in own])[:, None]
    noise = _noise(setting, tables, k, x, rng) if setting.algorithm == "gradient" else None
    z = mixed(setting.weights, sent)
    point = z if setting.grad_point == "mixed" else x
    g = np.zeros_like(x)
    sizes = [table.size(i) for table, i in own]
    for size in sorted({size for size, act in zip(sizes, acts, strict=True) if act}):
        nodes = np.array([acts[i] and sizes[i] == size for i in range(len(sizes))])
        g[..., nodes, :] = _gradient(setting, gradients, point[..., nodes, :], size, rng)
    return output_step(x, z, g if noise is None else g + noise, alpha, beta)


def _gradient(
    setting: Setting, gradients: Gradients, point: Array, size: int, rng: np.random.Generator
) -> Array:
    if setting.mode == "paper":
        return gradients.mean(point, size, rng)
    each = gradients.each(point, size, rng)
    return clipped(each, setting.sensitivity / 2, setting.norm).mean(-2)


def _noise(
    setting: Setting, tables: tuple[TimeVarying, ...], k: Counts, x: Array, rng: np.random.Generator
) -> Array:
    """Laplace draws of scale sigma_k of each node's own table, drawn for all nodes."""
    if not setting.is_noised:
        return np.zeros_like(x)
    scales = [table.noise_scale(i) for table, i in zip(tables, k.tolist(), strict=True)]
    return rng.laplace(0.0, 1.0, x.shape) * np.array(scales)[:, None]

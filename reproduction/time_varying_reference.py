"""Both algorithms of growing samples in plain numpy: what the engines are compared with.

Wang and Zhang (2024), eq. (3) and Section 4. Models have shape (..., n, d): seeds in front, a row
for each node. `output_step` is pure; `run` draws noise and asks for gradients.

Mode "paper" takes batch means as they are, at a node's own state, and takes C on trust. Mode
"rigorous" clips every example's gradient to C / 2, so that C holds, and takes gradients where the
setting says: with ``grad_point = "mixed"`` at what everybody sees.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from manifed.schedules import TimeVarying
from reproduction.decor_reference import Array, clipped, mixed


class Gradients(Protocol):
    """A stream of examples at every node."""

    def mean(self, x: Array, size: int, rng: np.random.Generator) -> Array:
        """Means over ``size`` fresh examples' gradients at ``x`` (..., n, d)."""
        ...

    def each(self, x: Array, size: int, rng: np.random.Generator) -> Array:
        """The gradients of ``size`` fresh examples, (..., n, size, d)."""
        ...


NAMES: Mapping[int, Literal["output", "gradient"]] = {1: "output", 2: "gradient"}
"""What Algorithms 1 and 2 perturb."""


@dataclass(frozen=True)
class Setting:
    """An algorithm with its schedules and weights."""

    algorithm: Literal["output", "gradient"]
    schedules: TimeVarying
    weights: Array
    mode: Literal["paper", "rigorous"] = "paper"
    sensitivity: float = 0.2
    """C, enforced in mode "rigorous"."""
    norm: Literal[1, 2] = 1
    grad_point: Literal["own", "mixed"] = "own"


@dataclass(frozen=True)
class Round:
    """What iteration k saw and left."""

    k: int
    sent: Array
    """y_{i,k} of Algorithm 1, x_{i,k} of Algorithm 2: all that anybody is shown."""
    models: Array
    """x_{i,k+1}; of Algorithm 1 no one's but node i's."""


def output_step(
    x: Array, z: Array, gradients: Array, step_size: float | Array, mixing: float | Array
) -> Array:
    """(1 - beta) x + beta z - alpha g with z = sum_j a_ij (x_j + n_j), eq. (3)."""
    return (1 - mixing) * x + mixing * z - step_size * gradients


def run(
    setting: Setting,
    gradients: Gradients,
    start: Array,
    rounds: int,
    rng: np.random.Generator,
    noise: Callable[[int], Array] | None = None,
) -> Iterator[Round]:
    """Iterations k = 0, 1, ..., lazily; ``noise`` replaces the Laplace draws."""
    s = setting.schedules
    x = start

    def gradient_at(point: Array, size: int) -> Array:
        if setting.mode == "paper":
            return gradients.mean(point, size, rng)
        each = gradients.each(point, size, rng)
        return clipped(each, setting.sensitivity / 2, setting.norm).mean(-2)

    for k in range(rounds):
        alpha = s.step_size(k)
        beta = s.mixing(k)
        size = s.size(k)
        drawn = noise(k) if noise else rng.laplace(0.0, s.noise_scale(k), x.shape)
        if setting.algorithm == "output":
            sent = x + drawn  # line 2
            z = mixed(sent, setting.weights)
            point = x if setting.grad_point == "own" else z
            x = output_step(x, z, gradient_at(point, size), alpha, beta)  # line 4
        else:
            sent = x
            noised = gradient_at(x, size) + drawn
            x = output_step(x, mixed(x, setting.weights), noised, alpha, beta)  # Section 4
        yield Round(k, sent, x)


def last_models(rounds: Iterator[Round]) -> Array:
    """The models after all of ``rounds``, of which there is at least one."""
    return deque(rounds, maxlen=1)[0].models

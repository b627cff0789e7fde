r"""The price of K rounds of releases with scheduled noise and batch sizes.

Wang and Zhang, *Differentially Private Distributed Stochastic Optimization with Time-Varying Sample
Sizes* (2024). The guarantee: one example in the batch of every round is another.

Symbols: C sensitivity, alpha_k step_size, beta_k mixing, gamma_k sample_size, sigma_k noise_scale,
Delta_k how far that moves what round k releases.

* gradient perturbation: Delta_k = C / gamma_k, released in rounds k = 0, 1, ...
* output perturbation: Delta_0 = 0 and
  Delta_{k+1} = (1 - beta_k + alpha_k Lip) Delta_k + C alpha_k / gamma_k, released at k >= 1.

A round costs Delta_k / sigma_k of epsilon with Laplace noise (C an L1 bound), and
Delta_k^2 / (2 sigma_k^2) of rho-zCDP with Gaussian noise (C an L2 bound); rounds add up
(docs/time_varying.md has the proofs). What a schedule costs in all: reproduction/endless.py.

Guarantee: `Releases.costs` are upper bounds, rounding included, for powers that the platform
computes to 16 ulps.
"""

from typing import Literal

import numpy as np

from manifed.fields import Frozen, NonNegative, Positive, PositiveCount
from manifed.schedules import Array, TimeVarying

_ROUNDING = 2.0**-44
"""Allowed, relatively, to each term and each step of a recursion: some hundred ulps."""


class Releases(Frozen):
    """Schedules of releases and their noise: all that a price needs."""

    algorithm: Literal["output", "gradient"]
    schedules: TimeVarying
    sensitivity: Positive
    """C: how far apart two examples' gradients can be, L1 for Laplace noise, L2 for Gaussian."""
    noise: Literal["laplace", "gaussian"] = "laplace"
    lipschitz: NonNegative = 0.0
    """Of an example's gradient, in the norm of C; for output perturbation whose gradients are taken
    at a node's own state. 0 where both runs take them at one point (``grad_point = "mixed"``), or
    where the step is no expansion (convex losses, alpha_k L <= 2 (1 - beta_k), L2)."""
    num_examples: PositiveCount | None = None
    """How many examples a node has: no batch is larger, so nothing is finite for ever."""

    def costs(self, rounds: int, side: int = 1) -> Array:
        """Returns the cost of each of the first releases that cost something."""
        k = np.arange(rounds, dtype=np.float64) + (self.algorithm == "output")
        with np.errstate(over="ignore", under="ignore"):
            ratio = self.sensitivities(rounds, side) / self.schedules.noise_scale.values(k)
            each = ratio if self.noise == "laplace" else ratio * ratio / 2
        return each * (1 + side * _ROUNDING)

    def sizes(self, k: Array) -> Array:
        """The batches of rounds k, no larger than a node's examples."""
        found = self.schedules.sizes(k)
        return found if self.num_examples is None else np.minimum(found, self.num_examples)

    def sensitivities(self, rounds: int, side: int = 1) -> Array:
        """Delta_1..Delta_rounds (output) or Delta_0..Delta_{rounds-1} (gradient).

        With side 1 from above, with -1 from below.
        """
        k = np.arange(rounds, dtype=np.float64)
        s = self.schedules
        with np.errstate(over="ignore", under="ignore"):
            if self.algorithm == "gradient":
                return self.sensitivity / self.sizes(k) * (1 + side * _ROUNDING)  # Theorem 5
            fresh = (
                self.sensitivity * s.step_size.values(k) / self.sizes(k) * (1 + side * _ROUNDING)
            )
        kept = 1.0 - s.mixing.values(k) + self.lipschitz * s.step_size.values(k)
        kept = np.maximum(kept + side * _ROUNDING, 0.0)
        found = np.empty(rounds)
        delta = 0.0
        for i, (keep, new) in enumerate(zip(kept.tolist(), fresh.tolist(), strict=True)):
            delta = keep * delta + new  # eq. (8)
            found[i] = delta
        return found

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
(docs/time_varying.md has the proofs). What infinitely many rounds cost: reproduction/endless.py.

Guarantee: `Releases.spent` is an upper bound, rounding included, for powers that the platform
computes to 16 ulps.
"""

import math
from typing import Literal

import numpy as np

from manifed.fields import Frozen, NonNegative, Positive, PositiveCount
from manifed.privacy.composition import gaussian_epsilon
from manifed.schedules import Array, TimeVarying

_ROUNDING = 2.0**-44
"""Allowed, relatively, to each term and each step of a recursion: some hundred ulps."""
_MOST_TERMS = 10**7


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

    def spent(self, rounds: int, side: int = 1) -> float:
        """Epsilon (Laplace) or rho (Gaussian) after ``rounds`` rounds, from above.

        After K rounds K updates have been made, and the K-th state has been shown. With side -1
        from below.

        Raises:
            ValueError: unless 0 <= rounds <= 10^7.
        """
        if not 0 <= rounds <= _MOST_TERMS:
            raise ValueError(f"rounds: expected 0 to {_MOST_TERMS}, got {rounds}")
        return math.fsum(self.costs(rounds, side)) * (1 + side * _ROUNDING)

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


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Returns epsilon of adaptive Gaussian releases with sum Delta^2 / (2 sigma^2) = rho.

    They are mu-GDP with mu = sqrt(2 rho), infinitely many of them too.
    """
    return gaussian_epsilon(delta, mu=math.sqrt(2 * rho) * (1 + _ROUNDING))

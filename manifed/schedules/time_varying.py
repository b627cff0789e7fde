"""The four schedules of stochastic optimisation with growing samples, as one table.

Wang and Zhang, *Differentially Private Distributed Stochastic Optimization with Time-Varying Sample
Sizes* (2024).

Symbols: alpha_k step_size, beta_k mixing, gamma_k sample_size, sigma_k noise_scale; a1, a2, a3, b
and the exponents alpha, beta, gamma, eta of `TimeVarying.polynomial`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from manifed.schedules.schedule import AnySchedule, Array, CeilPolynomial, Polynomial, whole


class TimeVarying(BaseModel):
    """Gradient steps, consensus steps, samples and noise of every round k = 0, 1, ..."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_size: AnySchedule
    """alpha_k."""
    mixing: AnySchedule
    """beta_k, in (0, 1): how far a node goes towards the mean of its neighbours."""
    sample_size: AnySchedule
    """gamma_k, rounded up to an integer >= 1."""
    noise_scale: AnySchedule
    """sigma_k: the scale of Laplace noise, or the standard deviation of Gaussian noise."""

    @model_validator(mode="after")
    def _mixes(self) -> "TimeVarying":
        first = self.mixing(0)
        if not 0 < first < 1:
            raise ValueError(f"mixing: expected 0 < beta_0 < 1, got {first:g}")
        for name, schedule in (("step_size", self.step_size), ("mixing", self.mixing)):
            values = schedule.values(np.array([0.0, 1.0, 1e6]))
            if np.any(np.diff(values) > 0):
                raise ValueError(f"{name}: expected a schedule that does not grow, got one that "
                                 f"goes from {values[0]:g} to {values[-1]:g}")  # fmt: skip
        return self

    @classmethod
    def polynomial(
        cls,
        *,
        a1: float = 0.5,
        a2: float = 1.0,
        a3: float = 1.0,
        b: float = 1.0,
        alpha: float,
        beta: float,
        gamma: float,
        eta: float,
    ) -> "TimeVarying":
        """The paper's schedules, in its own letters."""
        return cls(
            step_size=Polynomial(scale=a1, offset=a2, exponent=-alpha),
            mixing=Polynomial(scale=a1, offset=a2, exponent=-beta),
            sample_size=CeilPolynomial(scale=a3, offset=a2, exponent=gamma),
            noise_scale=Polynomial(scale=b, offset=a2, exponent=eta),
        )

    def sizes(self, k: Array) -> Array:
        """gamma_k: integers >= 1, as float64."""
        return whole(self.sample_size.values(k))

    def size(self, k: int) -> int:
        """gamma_k of one round."""
        return int(self.sizes(np.array([k], dtype=np.float64))[0])

    def samples(self, rounds: int) -> int:
        """How many examples a node uses up in the first ``rounds`` rounds."""
        return int(self.sizes(np.arange(rounds, dtype=np.float64)).sum())


@dataclass(frozen=True)
class Example:
    """Schedules that the paper uses, and what it says of them."""

    algorithm: Literal["output", "gradient"]
    """Algorithm 1 or 2."""
    schedules: TimeVarying
    sensitivity: float
    """C, an L1 bound on how far apart two examples' gradients are."""
    printed: float
    """The total epsilon in the paper's text; no formula of the paper gives it."""


EXAMPLES = {
    1: Example(
        "output", TimeVarying.polynomial(alpha=0.9, beta=0.6, gamma=1.1, eta=0.05), 0.2, 0.864
    ),
    2: Example(
        "gradient", TimeVarying.polynomial(alpha=0.8, beta=0.5, gamma=1.2, eta=0.1), 0.2, 0.488
    ),
}
"""Section 5 of the paper, by number."""

"""Schedules as powers of k + offset, those of the paper among them.

Series and conditions of convergence are read off these.
"""

from dataclasses import dataclass
from typing import Literal

from manifed.schedules import (
    Constant,
    Geometric,
    Hyperbolic,
    Polynomial,
    Schedule,
    TimeVarying,
)

WHOLE_SLACK = 2e-9
"""A sample size is at least its power times (1 - this): the guard of `whole`, and roundings."""


@dataclass(frozen=True)
class Power:
    """scale (k + offset)^exponent."""

    scale: float
    offset: float
    exponent: float


def power_of(schedule: Schedule) -> Power | None:
    """The power law that a schedule is, before any rounding up; None where it is none."""
    match schedule:
        case Polynomial():
            return Power(schedule.scale, schedule.offset, schedule.exponent)
        case Hyperbolic():
            return Power(schedule.scale / schedule.rate, 1.0 / schedule.rate, -1.0)
        case Constant():
            return Power(schedule.value, 1.0, 0.0)
        case Geometric(ratio=1.0):
            return Power(schedule.scale, 1.0, 0.0)
        case _:
            return None


def polynomial(
    *,
    a1: float = 0.5,
    a2: float = 1.0,
    a3: float = 1.0,
    b: float = 1.0,
    alpha: float,
    beta: float,
    gamma: float,
    eta: float,
) -> TimeVarying:
    """The schedules of Wang and Zhang (2024), in the paper's own letters."""
    return TimeVarying(
        step_size=Polynomial(scale=a1, offset=a2, exponent=-alpha),
        mixing=Polynomial(scale=a1, offset=a2, exponent=-beta),
        sample_size=Polynomial(scale=a3, offset=a2, exponent=gamma),
        noise_scale=Polynomial(scale=b, offset=a2, exponent=eta),
    )


@dataclass(frozen=True)
class Example:
    """Schedules that the paper uses, and what it says of them."""

    algorithm: Literal["output", "gradient"]
    """Algorithm 1 or 2."""
    schedules: TimeVarying
    sensitivity: float = 0.2
    """C, an L1 bound on how far apart two examples' gradients are."""


EXAMPLES = {
    1: Example("output", polynomial(alpha=0.9, beta=0.6, gamma=1.1, eta=0.05)),
    2: Example("gradient", polynomial(alpha=0.8, beta=0.5, gamma=1.2, eta=0.1)),
}
"""Section 5 of the paper, by number."""

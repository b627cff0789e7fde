"""Schedules as powers of k + offset: series and conditions of convergence are read off these."""

from dataclasses import dataclass

from manifed.schedules.schedule import Constant, Geometric, Hyperbolic, Polynomial, Schedule

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

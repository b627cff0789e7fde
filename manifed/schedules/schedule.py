"""Sequences of positive numbers, one a round k = 0, 1, ..., as frozen tables with a ``kind``.

A schedule is public: it depends on k and its own constants, never on data. Where it is, or lies
between, multiples of a power of k + offset, `Schedule.power` says so: series and conditions of
convergence are read off that.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

Array = NDArray[np.float64]
_GUARD = 1e-9, 1e-12
"""What a value may lie above an integer, absolutely and relatively, and still count as it: the
rounding of a power is not a sample more, on whatever processor."""
WHOLE_SLACK = 2e-9
"""A sample size is at least its power times (1 - this): the guard of `whole`, and roundings."""


@dataclass(frozen=True)
class Power:
    """scale (k + offset)^exponent."""

    scale: float
    offset: float
    exponent: float


class Schedule(BaseModel):
    """What every schedule can do."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @abstractmethod
    def values(self, k: Array) -> Array:
        """The values at rounds ``k`` >= 0, of its shape, float64."""
        raise NotImplementedError

    @property
    @abstractmethod
    def power(self) -> Power | None:
        """The power law it is, before any rounding up to integers; None where it is none."""
        raise NotImplementedError

    def __call__(self, k: int) -> float:
        """The value at round k."""
        return float(self.values(np.array([k], dtype=np.float64))[0])


class Polynomial(Schedule):
    """scale (k + offset)^exponent; a step size falls with a negative exponent."""

    kind: Literal["polynomial"] = "polynomial"
    scale: float = Field(gt=0)
    offset: float = Field(default=1.0, gt=0)
    exponent: float = Field(ge=-10, le=10)

    def values(self, k: Array) -> Array:
        """The power itself."""
        return self.scale * (k + self.offset) ** self.exponent

    @property
    def power(self) -> Power:
        """Itself."""
        return Power(self.scale, self.offset, self.exponent)


class CeilPolynomial(Polynomial):
    """The least integer >= scale (k + offset)^exponent, and at least 1: a sample size."""

    kind: Literal["ceil-polynomial"] = "ceil-polynomial"  # pyright: ignore[reportIncompatibleVariableOverride]
    exponent: float = Field(ge=0, le=10)

    def values(self, k: Array) -> Array:
        """Integers, as float64; `power` is that before rounding."""
        return whole(super().values(k))


class Hyperbolic(Schedule):
    """scale / (1 + rate k)."""

    kind: Literal["hyperbolic"] = "hyperbolic"
    scale: float = Field(gt=0)
    rate: float = Field(gt=0)

    def values(self, k: Array) -> Array:
        """Falls as 1 / k."""
        return self.scale / (1.0 + self.rate * k)

    @property
    def power(self) -> Power:
        """(scale / rate) / (k + 1 / rate)."""
        return Power(self.scale / self.rate, 1.0 / self.rate, -1.0)


class Constant(Schedule):
    """The same value in every round."""

    kind: Literal["constant"] = "constant"
    value: float = Field(gt=0)
    """In every round."""

    def values(self, k: Array) -> Array:
        """The value, k.shape times."""
        return np.full_like(k, self.value)

    @property
    def power(self) -> Power:
        """Exponent 0."""
        return Power(self.value, 1.0, 0.0)


class Geometric(Schedule):
    """scale ratio^k."""

    kind: Literal["geometric"] = "geometric"
    scale: float = Field(gt=0)
    ratio: float = Field(gt=0, le=2)

    def values(self, k: Array) -> Array:
        """Leaves float64 for large k, upwards as infinity."""
        with np.errstate(over="ignore", under="ignore"):
            return self.scale * self.ratio**k

    @property
    def power(self) -> Power | None:
        """Only with ratio 1."""
        return Power(self.scale, 1.0, 0.0) if self.ratio == 1 else None


AnySchedule = Annotated[
    Polynomial | CeilPolynomial | Hyperbolic | Constant | Geometric, Field(discriminator="kind")
]


def whole(values: Array) -> Array:
    """The least integers >= ``values``, and at least 1; one rounding above n counts as n."""
    absolute, relative = _GUARD
    return np.maximum(1.0, np.ceil(values * (1.0 - relative) - absolute))


LARGEST_FACTOR = 1e9
"""Of a schedule in any round, where it is a factor; the smallest is one over it."""


def factor_of(field: str, rule: AnySchedule | None, server_round: int) -> float:
    """The factor of round k = server_round - 1; 1 where there is no rule.

    Raises:
        ValueError: naming the field, for a factor beyond 1e9, or below one over it.
    """
    if rule is None:
        return 1.0
    factor = rule(server_round - 1)
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        raise ValueError(
            f"{field}: expected factors between {1 / LARGEST_FACTOR:g} and "
            f"{LARGEST_FACTOR:g}, got {factor:g} in round {server_round}"
        )
    return factor

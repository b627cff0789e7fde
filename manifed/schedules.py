"""Schedules: sequences of positive numbers by round, as frozen tables with a ``kind``.

A schedule is public: it depends on k and its own constants, never on data.

The four schedules of stochastic optimisation with growing samples, as one table.

Wang and Zhang, *Differentially Private Distributed Stochastic Optimization with Time-Varying Sample
Sizes* (2024).

Symbols: alpha_k step_size, beta_k mixing, gamma_k sample_size, sigma_k noise_scale.
"""

from abc import abstractmethod
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from manifed.fields import BY_KIND, Frozen, Positive

Array = NDArray[np.float64]


class Schedule(Frozen):
    """Base of all schedules, which give a value for every round k = 0, 1, ..."""

    @abstractmethod
    def values(self, k: Array) -> Array:
        """Returns the values at rounds ``k`` >= 0, of its shape, float64."""
        ...

    def __call__(self, k: int) -> float:
        """Returns the value at round k."""
        return float(self.values(np.array([float(k)]))[0])


class Polynomial(Schedule):
    """scale (k + offset)^exponent."""

    kind: Literal["polynomial"] = "polynomial"
    scale: Positive
    offset: Positive = 1.0
    exponent: float = Field(ge=-10, le=10)

    def values(self, k: Array) -> Array:
        """Returns the powers."""
        return self.scale * (k + self.offset) ** self.exponent


class _CeilPolynomial(Polynomial):
    """The least integer >= scale (k + offset)^exponent, and at least 1."""

    kind: Literal["ceil-polynomial"] = "ceil-polynomial"  # pyright: ignore[reportIncompatibleVariableOverride]
    exponent: float = Field(ge=0, le=10)

    def values(self, k: Array) -> Array:
        """Integers, as float64."""
        return whole(super().values(k))


class Hyperbolic(Schedule):
    """scale / (1 + rate k)."""

    kind: Literal["hyperbolic"] = "hyperbolic"
    scale: Positive
    rate: Positive

    def values(self, k: Array) -> Array:
        """Returns the values, which fall as 1 / k."""
        return self.scale / (1.0 + self.rate * k)


class Constant(Schedule):
    """One value in every round."""

    kind: Literal["constant"] = "constant"
    value: Positive
    """The value."""

    def values(self, k: Array) -> Array:
        """Returns the value in the shape of k."""
        return np.full_like(k, self.value)


class Geometric(Schedule):
    """scale ratio^k."""

    kind: Literal["geometric"] = "geometric"
    scale: Positive
    ratio: float = Field(gt=0, le=2)

    def values(self, k: Array) -> Array:
        """Returns the powers; for large k they leave float64, upwards as infinity."""
        with np.errstate(over="ignore", under="ignore"):
            return self.scale * self.ratio**k


AnySchedule = Annotated[Polynomial | _CeilPolynomial | Hyperbolic | Constant | Geometric, BY_KIND]


def whole(values: Array) -> Array:
    """Returns the least integers >= ``values``, at least 1; one rounding above n counts as n.

    A value may lie 1e-9 or a part of 1e-12 above an integer and still count as it: the rounding of
    a power is not a sample more, on whatever processor.
    """
    return np.maximum(1.0, np.ceil(values * (1.0 - 1e-12) - 1e-9))


_LARGEST_FACTOR = 1e9
"""The largest value of a schedule that is a factor, in any round; the smallest is one over it."""


def factor_of(field: str, rule: AnySchedule | None, server_round: int) -> float:
    """Returns the factor of round k = server_round - 1; 1 where there is no rule.

    Raises:
        ValueError: naming the field, for a factor beyond 1e9, or below one over it.
    """
    if rule is None:
        return 1.0
    factor = rule(server_round - 1)
    if not 1 / _LARGEST_FACTOR <= factor <= _LARGEST_FACTOR:
        raise ValueError(
            f"{field}: expected factors between {1 / _LARGEST_FACTOR:g} and "
            f"{_LARGEST_FACTOR:g}, got {factor:g} in round {server_round}"
        )
    return factor


class TimeVarying(Frozen):
    """The schedules of growing samples."""

    step_size: AnySchedule
    """Step size alpha_k."""
    mixing: AnySchedule
    """Weight beta_k of the neighbours' mean, in (0, 1)."""
    sample_size: AnySchedule
    """Sample size gamma_k, rounded up."""
    noise_scale: AnySchedule
    """Noise sigma_k: scale (Laplace) or standard deviation (Gaussian)."""

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

    def sizes(self, k: Array) -> Array:
        """Returns the batch sizes gamma_k: integers >= 1, as float64."""
        return whole(self.sample_size.values(k))

    def size(self, k: int) -> int:
        """Returns the batch size gamma_k of one round."""
        return int(self.sizes(np.array([float(k)]))[0])

    def samples(self, rounds: int) -> int:
        """Returns how many examples a node uses up in the first ``rounds`` rounds."""
        return int(self.sizes(np.arange(float(rounds))).sum())

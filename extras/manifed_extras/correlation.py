r"""Noise that is correlated over rounds: banded Toeplitz strategies, their errors and their prices.

A client adds zhat = C^{-1} z to its answers 1, ..., n, with z i.i.d. standard normal and C lower
triangular, Toeplitz, with first column c_0 = 1, c_1, ... >= 0 (the matrix mechanism B C = A on
prefix sums A; Denisov, McMahan, Rush, Smith, Thakurta: Improved Differential Privacy for SGD via
Optimal Private Linear Operators on Adaptive Streams, 2022).

* `Banded`: c has ``bands`` entries, those of A^{1/2} (Kalinin, Lampert: Banded Square Root Matrix
  Factorization, 2024) or given ones (BandMF, Choquette-Choo et al. 2023, arXiv 2306.08153).
* `BandedInverse`: C^{-1} has ``bands`` entries, those of A^{-1/2} (BISR, Kalinin, McKenna,
  Upadhyay, Lampert 2025, arXiv 2505.12128).

Price (docs/correlated-noise.md): given all answers so far, neighbours shift the mean of the next
one, whose fresh noise is z_t, by at most sum_s |c_{t-s}| bounds over the answers s <= t in which
the example took part. If it takes part in all, that is `row_sum`; the sum of the squares is then
||C 1||^2, the exact sensitivity.
"""

import math
from typing import Annotated, Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from manifed.fields import BY_KIND, Frozen, NonNegative

Array = NDArray[np.float64]
MOST_BANDS: Final = 512
_ULPS: Final = 1e-12


def square_root(n: int) -> Array:
    """The first column of A^{1/2}, A the n x n matrix of prefix sums: C(2k, k) / 4^k."""
    k = np.arange(1, n, dtype=np.float64)
    return np.concatenate(([1.0], np.cumprod((2 * k - 1) / (2 * k))))


def inverse_square_root(n: int) -> Array:
    """The first column of A^{-1/2}: that of A^{1/2} over 1 - 2k."""
    return square_root(n) / (1.0 - 2.0 * np.arange(n))


def inverse(column: Array, n: int) -> Array:
    """The first column, n entries, of the inverse of a lower triangular Toeplitz matrix."""
    return _filtered([1.0], column, np.eye(1, n)[0])


def _filtered(forward: ArrayLike, back: ArrayLike, signal: Array) -> Array:
    from scipy.signal import lfilter  # a second of its own, for runs with such noise alone

    return np.asarray(lfilter(forward, back, signal), dtype=np.float64)


class Banded(Frozen):
    """C has so many bands: past noise is subtracted, as it was added."""

    kind: Literal["banded"] = "banded"
    bands: int = Field(ge=2, le=MOST_BANDS)
    """How many rounds the correlation reaches, the present one included."""
    coefficients: tuple[NonNegative, ...] | None = None
    """c_0 = 1 and on, not growing; None: those of A^{1/2}."""

    @model_validator(mode="after")
    def _falls(self) -> Self:
        c = self.coefficients
        if c is not None and not (
            len(c) == self.bands and c[0] == 1 and all(np.diff(np.array(c)) <= 0)
        ):
            raise ValueError(
                f"coefficients: expected bands = {self.bands} of them from 1 on, none above the "
                f"one before, got {list(c)}"
            )
        return self

    @property
    def band(self) -> Array:
        """c_0, ..., c_{bands - 1}."""
        c = self.coefficients
        return square_root(self.bands) if c is None else np.array(c, dtype=np.float64)

    def strategy(self, n: int) -> Array:
        """The first column of C, n entries."""
        return np.concatenate((self.band, np.zeros(n)))[:n]

    @property
    def weights(self) -> tuple[float, ...]:
        """What multiplies zhat_{t-1}, zhat_{t-2}, ... in zhat_t - z_t."""
        return tuple(float(-c) for c in self.band[1:])

    @property
    def remembers(self) -> Literal["added", "drawn"]:
        """What the weights multiply: noise as it was added."""
        return "added"


class BandedInverse(Frozen):
    """C^{-1} has so many bands: past draws are subtracted."""

    kind: Literal["banded-inverse"] = "banded-inverse"
    bands: int = Field(ge=2, le=MOST_BANDS)
    """How many rounds the correlation reaches, the present one included."""

    def strategy(self, n: int) -> Array:
        """The first column of C, n entries."""
        return inverse(inverse_square_root(self.bands), n)

    @property
    def weights(self) -> tuple[float, ...]:
        """What multiplies z_{t-1}, z_{t-2}, ... in zhat_t - z_t."""
        return tuple(float(d) for d in inverse_square_root(self.bands)[1:])

    @property
    def remembers(self) -> Literal["added", "drawn"]:
        """What the weights multiply: the normals as they were drawn."""
        return "drawn"


Correlation = Annotated[Banded | BandedInverse, BY_KIND]


# -- prices --------------------------------------------------------------------------------------
def row_sum(correlation: Correlation, t: int) -> float:
    """c_0 + ... + c_{t-1}, rounded up: the shift of answer t = 1, 2, ... of an example in all."""
    return math.fsum(correlation.strategy(t)) * (1 + _ULPS)


def sensitivity(
    strategy: Array, *, min_separation: int | None = None, participations: int | None = None
) -> float:
    """The largest ||C u||_2 of one example's changes u, one vector of length <= 1 an answer.

    It takes part at most ``participations`` times (None: as often as fits), at least
    ``min_separation`` answers apart (None: once; 1: in every one, if it may). For nonnegative
    columns that do not grow the worst case is every ``min_separation``-th answer from the first
    on, with all changes alike (Kalinin and Lampert 2024, Theorem 2).

    Raises:
        ValueError: for another column, or counts below one.
    """
    n = len(strategy)
    apart = n if min_separation is None else min_separation
    if apart < 1 or (participations is not None and participations < 1):
        raise ValueError(
            f"Expected min_separation and participations >= 1, got {apart} and {participations}"
        )
    if (strategy < 0).any() or (np.diff(strategy) > _ULPS).any():
        raise ValueError("Expected a nonnegative column that does not grow, got another")
    most = -(-n // apart)
    times = most if participations is None else min(participations, most)
    total = np.zeros(n)
    for i in range(times):
        total[i * apart :] += strategy[: n - i * apart]
    return float(np.linalg.norm(total))


# -- errors --------------------------------------------------------------------------------------
def errors(strategy: Array, workload: Array | None = None) -> Array:
    """Standard deviations of the n answers A C^{-1} z, for noise of scale one.

    ``workload`` is the first column of A; None: prefix sums.
    """
    n = len(strategy)
    column = np.ones(n) if workload is None else workload
    rows = _filtered(column, [1.0], inverse(strategy, n))
    return np.sqrt(np.cumsum(rows**2))


def root_mean_square_error(strategy: Array, sensitivity: float) -> float:
    """Of prefix sums, times the sensitivity: what the papers compare."""
    return sensitivity * float(np.sqrt(np.mean(errors(strategy) ** 2)))


def largest_error(strategy: Array, sensitivity: float) -> float:
    """That of the last prefix sum, times the sensitivity."""
    return sensitivity * float(errors(strategy)[-1])

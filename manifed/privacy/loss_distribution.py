"""Privacy loss distributions on a grid: built pessimistically, composed by FFT, read one-sided.

The privacy loss of a pair (P, Q) is log(dP/dQ) under P. Doroshenko, Ghazi, Kamath, Kumar,
Manurangsi (2022), "Connect the dots: tighter discrete approximations of privacy loss
distributions", replaces it by masses on the grid ``interval * integers`` whose hockey-stick curve
lies on or above the true one, so every epsilon and delta read from it is an upper bound. This is
dp-accounting's estimate too, and tests compare the two; here it is built from interval masses
(``privacy/loss_grid.py``), accurate also on the fine grids that small sampling rates need, and
composed by one cached transform, because a run asks for a new count after every round.

Guarantee: ``delta`` and ``epsilon`` are upper bounds, up to the rounding that `_roundoff` adds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manifed.privacy.normal_law import Array

_TAIL: Final = 1e-16
"""Mass that a composition may cut off, per side; it counts as an infinite loss."""
Complex = npt.NDArray[np.complex128]
_UP: Final = 1 + 1e-12
LARGEST_LOSS: Final = 600.0
"""Finite losses above this count as infinite (their exponentials leave float64)."""


def _power(values: Complex, count: int) -> Complex:
    """Values ** count by repeated squaring: faster and rounder than a complex logarithm."""
    result, square = np.ones_like(values), values
    while True:
        if count & 1:
            result = result * square
        count >>= 1
        if not count:
            return result
        square = square * square


def _transform_size(length: int) -> int:
    """A power of two >= length: transforms of a growing count share their sizes."""
    return 1 << max(length - 1, 1).bit_length()


def _roundoff(count: int) -> float:
    """Bound on what float64 transforms can move: each factor of a power adds one rounding."""
    return 1e-15 * (8 + count)


@dataclass(frozen=True, eq=False)
class LossPmf:
    """Masses at ``interval * (lowest + i)`` and at infinity: one direction of a pair."""

    interval: float
    lowest: int
    masses: Array
    infinity: float

    def composed(self, count: int) -> "LossPmf":
        """The loss of ``count`` independent runs."""
        if count == 1:
            return self
        low, high = self._range(count)
        size = _transform_size(high - low + 1)
        cycle = np.fft.irfft(_power(self._spectrum(size), count), size)
        masses = np.roll(cycle, -(low % size))[: high - low + 1]
        infinity = -math.expm1(count * math.log1p(-min(self.infinity, 1 - 1e-16)))
        return LossPmf(
            self.interval,
            self.lowest * count + low,
            np.maximum(masses, 0.0),
            min(1.0, infinity + 2 * _TAIL + _roundoff(count)),
        )

    def composed_length(self, count: int) -> int:
        """How many grid points `composed` would take."""
        low, high = self._range(count)
        return high - low + 1

    def convolved(self, other: "LossPmf") -> "LossPmf":
        """The loss of both, which must share the grid."""
        if self.interval != other.interval:
            raise ValueError(f"Expected one grid, got {self.interval} and {other.interval}")
        length = len(self.masses) + len(other.masses) - 1
        size = _transform_size(length)
        product = np.fft.rfft(self.masses, size) * np.fft.rfft(other.masses, size)
        masses = np.maximum(np.fft.irfft(product, size)[:length], 0.0)
        infinity = self.infinity + other.infinity - self.infinity * other.infinity
        return LossPmf(
            self.interval, self.lowest + other.lowest, masses, min(1.0, infinity + _roundoff(1))
        )._trimmed()

    def mixed(self, probability: float) -> "LossPmf":
        """This loss with ``probability``, else loss 0: a release whose happening is revealed."""
        low = min(self.lowest, 0)
        high = max(self.lowest + len(self.masses), 1)
        masses = np.zeros(high - low)
        start = self.lowest - low
        masses[start : start + len(self.masses)] = probability * self.masses
        masses[-low] += 1.0 - probability
        return LossPmf(self.interval, low, masses, probability * self.infinity)

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at epsilon >= 0."""
        losses, masses, infinity = self._positive
        above = losses > epsilon
        total = infinity + float(-np.expm1(epsilon - losses[above]) @ masses[above])
        return min(1.0, total)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 whose hockey-stick divergence is at most delta."""
        losses, _, infinity = self._positive
        if infinity > delta:
            return math.inf
        upper, lower = self._tails
        at_losses = infinity + upper[1:] - np.exp(losses) * lower[1:]
        index = int(np.searchsorted(-at_losses, -delta)) if len(losses) else 0
        if lower.size == 0 or lower[index] <= 0.0:
            return 0.0
        excess = infinity + float(upper[index]) - delta
        return max(0.0, math.log(excess / float(lower[index]))) * _UP if excess > 0 else 0.0

    @cached_property
    def _positive(self) -> tuple[Array, Array, float]:
        """Losses in (0, LARGEST_LOSS], their masses, and the mass above."""
        first = max(0, 1 - self.lowest)
        points = np.arange(self.lowest + first, self.lowest + len(self.masses), dtype=np.float64)
        losses = self.interval * points
        masses = self.masses[first:]
        stop = int(np.searchsorted(losses, LARGEST_LOSS))
        return losses[:stop], masses[:stop], self.infinity + float(masses[stop:].sum())

    @cached_property
    def _tails(self) -> tuple[Array, Array]:
        """Sums over losses >= i of p and of p exp(-loss), with a final 0."""
        losses, masses, _ = self._positive
        sums = [np.cumsum(a[::-1])[::-1] for a in (masses, masses * np.exp(-losses))]
        return np.append(sums[0], 0.0), np.append(sums[1], 0.0)

    def _spectrum(self, size: int) -> Complex:
        """The Fourier transform of the masses, wrapped to ``size``; cached by size."""
        if size not in self._spectra:
            padded = np.zeros(-(-len(self.masses) // size) * size)
            padded[: len(self.masses)] = self.masses
            self._spectra[size] = np.fft.rfft(padded.reshape(-1, size).sum(0))
        return self._spectra[size]

    @cached_property
    def _spectra(self) -> dict[int, Any]:
        return {}

    def _range(self, count: int) -> tuple[int, int]:
        """Indices outside which the sum of ``count`` losses has mass <= _TAIL per side."""
        orders, logs = self._chernoff
        bounds = (count * logs - math.log(_TAIL)) / orders
        full = (len(self.masses) - 1) * count
        low = max(0, math.floor(bounds[orders < 0].max()))
        high = min(full, math.ceil(bounds[orders > 0].min()))
        return min(low, full), max(high, min(low, full))

    @cached_property
    def _chernoff(self) -> tuple[Array, Array]:
        """Orders and the logarithms of the moment generating function of the index there."""
        index = np.flatnonzero(self.masses).astype(np.float64)
        masses = self.masses[self.masses > 0]
        total = float(masses.sum())
        mean = float(index @ masses) / total
        spread = max(math.sqrt(float((index - mean) ** 2 @ masses) / total), 1e-3)
        # The first sizes suit a sum that is nearly normal, the others one of rare, large losses.
        span = max(float(index[-1] - index[0]), 1.0)
        sizes = np.append(np.geomspace(1e-3, 30.0, 28) / spread, np.geomspace(1.0, 64.0, 7) / span)
        orders = np.concatenate([-sizes, sizes])
        logs = np.empty_like(orders)
        for i, order in enumerate(orders):
            shift = max(order * index[0], order * index[-1])
            logs[i] = shift + math.log(float(np.exp(order * index - shift) @ masses))
        return orders, logs

    def _trimmed(self) -> "LossPmf":
        """Without tails of mass <= _TAIL: the lower moves up, the upper to infinity."""
        below = int(np.searchsorted(np.cumsum(self.masses), _TAIL))
        above = int(np.searchsorted(np.cumsum(self.masses[::-1]), _TAIL))
        stop = max(len(self.masses) - above, below + 1)
        masses = self.masses[below:stop].copy()
        masses[0] += float(self.masses[:below].sum())
        infinity = self.infinity + float(self.masses[stop:].sum())
        return LossPmf(self.interval, self.lowest + below, masses, infinity)


@dataclass(frozen=True, eq=False)
class Loss:
    """Both directions of a pair of neighbours: an example removed, an example added."""

    remove: LossPmf
    add: LossPmf

    def composed(self, count: int) -> "Loss":
        """The loss of ``count`` >= 1 independent runs."""
        return self._map(lambda pmf: pmf.composed(count))

    def composed_length(self, count: int) -> int:
        """How many grid points `composed` would take in its longer direction."""
        return max(self.remove.composed_length(count), self.add.composed_length(count))

    def mixed(self, probability: float) -> "Loss":
        """This loss with ``probability``, nothing otherwise, and which of the two is revealed."""
        return self._map(lambda pmf: pmf.mixed(probability))

    def convolved(self, other: "Loss") -> "Loss":
        """The loss of both."""
        remove = self.remove.convolved(other.remove)
        if self.remove is self.add and other.remove is other.add:
            return Loss(remove, remove)
        return Loss(remove, self.add.convolved(other.add))

    def delta(self, epsilon: float) -> float:
        """The worse of the two hockey-stick divergences."""
        return max(self.remove.delta(epsilon), self.add.delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """The worse of the two epsilons."""
        return max(self.remove.epsilon(delta), self.add.epsilon(delta))

    def _map(self, change: Callable[[LossPmf], LossPmf]) -> "Loss":
        remove = change(self.remove)
        return Loss(remove, remove if self.add is self.remove else change(self.add))

"""Privacy loss distributions on a grid: rounded up, composed by FFT, read one-sided.

The privacy loss of a pair (P, Q) is log(dP/dQ) under P. Doroshenko, Ghazi, Kamath, Kumar,
Manurangsi (2022), "Connect the dots: tighter discrete approximations of privacy loss
distributions", replaces it by masses on the grid ``interval * integers`` whose hockey-stick curve
lies on or above the true one, so every epsilon read from it is an upper bound. This is
dp-accounting's estimate too, and tests compare the two; here it is built from the masses P and Q of
every grid cell, accurate also on the fine grids that small sampling rates need, and composed by one
cached transform, because a run asks for a new count after every round.

With z the noise multiplier and q the sampling probability, the pair of a Gaussian release is
``(1 - q) N(0, z^2) + q N(1, z^2)`` against ``N(0, z^2)`` when an example is removed, and the
reverse when one is added (Zhu, Dong, Wang 2022).

Guarantee: every ``epsilon`` is an upper bound, up to the rounding that `_roundoff` adds.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special as _scipy_special

Array = npt.NDArray[np.float64]
_TAIL = 1e-16
"""Mass that a composition may cut off, per side; it counts as an infinite loss."""
_Complex = npt.NDArray[np.complex128]
_LARGEST_LOSS = 600.0
"""Finite losses above this count as infinite (their exponentials leave float64)."""
_REACH = 8.9
"""Standard deviations kept of a Gaussian: what lies above, < 3e-19, is an infinite loss."""
special: Any = _scipy_special
"""Scipy's special functions, which ship no stubs."""


def _power(values: _Complex, count: int) -> _Complex:
    """Values ** count by repeated squaring: faster and rounder than a complex logarithm."""
    result = np.ones_like(values)
    while count:
        if count & 1:
            result = result * values
        values = values * values
        count >>= 1
    return result


def _transform_size(length: int) -> int:
    """A power of two >= length: transforms of a growing count share their sizes."""
    return 1 << max(length - 1, 1).bit_length()


def _roundoff(count: int) -> float:
    """Bound on what float64 transforms can move: each factor of a power adds one rounding."""
    return 1e-15 * (8 + count)


@dataclass(frozen=True, eq=False)
class LossPmf:
    """A loss distribution in one direction: masses at ``interval * (lowest + i)`` and infinity."""

    interval: float
    lowest: int
    masses: Array
    infinity: float

    def composed(self, count: int) -> "LossPmf":
        """Returns the loss of ``count`` independent runs."""
        if count == 1:
            return self
        low, high = self.composed_range(count)
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

    def convolved(self, other: "LossPmf") -> "LossPmf":
        """Returns the loss of both releases, which must share the grid."""
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

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon >= 0 whose hockey-stick divergence is at most delta."""
        losses, upper, lower, infinity = self._tails
        if infinity > delta:
            return math.inf
        at_losses = infinity + upper[1:] - np.exp(losses) * lower[1:]
        index = int(np.searchsorted(-at_losses, -delta)) if len(losses) else 0
        if lower[index] <= 0.0:
            return 0.0
        excess = infinity + float(upper[index]) - delta
        return max(0.0, math.log(excess / float(lower[index]))) * (1 + 1e-12) if excess > 0 else 0.0

    @cached_property
    def _tails(self) -> tuple[Array, Array, Array, float]:
        """Losses in (0, _LARGEST_LOSS], sums over losses >= i of p and of p exp(-loss), a 0 after.

        And the mass of larger losses.
        """
        first = max(0, 1 - self.lowest)
        points = np.arange(self.lowest + first, self.lowest + len(self.masses), dtype=np.float64)
        losses = self.interval * points
        masses = self.masses[first:]
        stop = int(np.searchsorted(losses, _LARGEST_LOSS))
        infinity = self.infinity + float(masses[stop:].sum())
        losses = losses[:stop]
        masses = masses[:stop]
        sums = [np.cumsum(a[::-1])[::-1] for a in (masses, masses * np.exp(-losses))]
        return losses, np.append(sums[0], 0.0), np.append(sums[1], 0.0), infinity

    def _spectrum(self, size: int) -> _Complex:
        """The Fourier transform of the masses, wrapped to ``size``; cached by size."""
        if size not in self._spectra:
            padded = np.zeros(-(-len(self.masses) // size) * size)
            padded[: len(self.masses)] = self.masses
            self._spectra[size] = np.fft.rfft(padded.reshape(-1, size).sum(0))
        return self._spectra[size]

    @cached_property
    def _spectra(self) -> dict[int, Any]:
        return {}

    def composed_range(self, count: int) -> tuple[int, int]:
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
    """A pair of loss distributions: an example removed and, if it differs, one added."""

    sides: tuple[LossPmf, ...]

    def composed(self, count: int) -> "Loss":
        """Returns the loss of ``count`` >= 1 independent runs."""
        return Loss(tuple(side.composed(count) for side in self.sides))

    def composed_length(self, count: int) -> int:
        """Returns the number of grid points that `composed` would take in its longer direction."""
        ranges = (side.composed_range(count) for side in self.sides)
        return max(high - low + 1 for low, high in ranges)

    def mixed(self, probability: float) -> "Loss":
        """This loss with ``probability``, nothing otherwise, and which of the two is revealed."""
        return Loss(tuple(side.mixed(probability) for side in self.sides))

    def convolved(self, other: "Loss") -> "Loss":
        """Returns the loss of both releases."""
        ends = range(max(len(self.sides), len(other.sides)))
        return Loss(tuple(self.sides[-i].convolved(other.sides[-i]) for i in ends))

    def epsilon(self, delta: float) -> float:
        """Returns the larger of the epsilons of the two directions."""
        return max(side.epsilon(delta) for side in self.sides)


# -- one release -----------------------------------------------------------------------------
@lru_cache(maxsize=16)
def gaussian_loss(z: float, q: float, interval: float) -> Loss:
    """Returns the loss of one Gaussian release of Poisson-sampled units under add-or-remove.

    Probability 1 is a release of all units.

    ``z`` is the noise multiplier, ``q`` the sampling probability.
    """
    remove = _removed(z, q, interval)
    return Loss((remove,) if q == 1 else (remove, _added(z, q, interval)))


@lru_cache(maxsize=16)
def laplace_loss(noise_multiplier: float, interval: float) -> Loss:
    """One Laplace release: Lap(0, b) against Lap(1, b), the same in both directions.

    The loss is (|x - 1| - |x|) / b: an atom at either end, +-1/b, and an exponential in between.
    """
    end = 1 / noise_multiplier
    points = _grid(interval, -end, end)
    low = np.maximum(points[:-1] * interval, -end)
    high = np.minimum(points[1:] * interval, end)
    upper = 0.5 * np.exp((low - end) / 2) * np.expm1((high - low) / 2)
    lower = 0.5 * np.exp(-(end + low) / 2) * -np.expm1((low - high) / 2)
    upper[[0, -1]] += 0.5 * math.exp(-end), 0.5
    lower[[0, -1]] += 0.5, 0.5 * math.exp(-end)
    return Loss((_split(interval, points, upper, lower, 0.0, 0.0),))


def _removed(z: float, q: float, interval: float) -> LossPmf:
    """Upper distribution: the mixture; the loss rises with x."""
    top = min(_REACH * z + 1.0, float(_place(np.array([_LARGEST_LOSS]), z, q)[0]))
    points = _grid(interval, max(_loss(-_REACH * z, z, q), -_LARGEST_LOSS), _loss(top, z, q))
    cuts = np.minimum(_place(points * interval, z, q), top)
    cuts[-1] = top
    null = _masses(cuts / z)
    shifted = _masses((cuts - 1) / z)
    below = (1 - q) * special.ndtr(cuts[0] / z) + q * special.ndtr((cuts[0] - 1) / z)
    above = (1 - q) * special.ndtr(-top / z) + q * special.ndtr(-(top - 1) / z)
    return _split(interval, points, (1 - q) * null + q * shifted, null, below, above)


def _added(z: float, q: float, interval: float) -> LossPmf:
    """Upper distribution: N(0, z^2); the loss falls with x, from at most -log(1 - q)."""
    lowest = max(-_loss(_REACH * z, z, q), -_LARGEST_LOSS)
    points = _grid(interval, lowest, min(-_loss(-_REACH * z, z, q), _LARGEST_LOSS))
    cuts = _place(-points * interval, z, q)[::-1]
    null = _masses(cuts / z)[::-1]
    shifted = _masses((cuts - 1) / z)[::-1]
    below = special.ndtr(-cuts[-1] / z)
    above = special.ndtr(cuts[0] / z)
    return _split(interval, points, null, (1 - q) * null + q * shifted, below, above)


def _loss(x: float, z: float, q: float) -> float:
    """log(1 - q + q exp((x - 1/2) / z^2)): the loss of the mixture against N(0, z^2) at x."""
    exponent = (x - 0.5) / z**2
    if q == 1 or exponent > 700:
        return math.log(q) + exponent
    return math.log1p(q * math.expm1(exponent))


def _place(losses: Array, z: float, q: float) -> Array:
    """The x of a loss, its inverse; -inf at or below log(1 - q)."""
    if q == 1:
        return z**2 * losses + 0.5
    with np.errstate(divide="ignore"):
        return z**2 * np.log1p(np.maximum(np.expm1(losses) / q, -1.0)) + 0.5


def _grid(interval: float, lowest: float, highest: float) -> Array:
    """Grid points from the one at or below ``lowest`` to the one at or above ``highest``."""
    first = math.floor(lowest / interval)
    last = math.ceil(highest / interval)
    return np.arange(first, max(last, first + 1) + 1, dtype=np.float64)


def _masses(cuts: Array) -> Array:
    """Standard normal masses between consecutive cuts, accurate in both tails."""
    left = cuts[:-1]
    right = cuts[1:]
    return np.where(
        left > 0,
        special.ndtr(-left) - special.ndtr(-right),
        special.ndtr(right) - special.ndtr(left),
    )


def _split(
    interval: float, points: Array, upper: Array, lower: Array, below: float, above: float
) -> LossPmf:
    """Connect the dots: each cell's masses (upper P, lower Q) go to its two ends.

    The end at l + h takes b = (P - e^l Q) / (1 - e^-h) and the end at l takes P - b, which keeps
    both P and Q of the cell and so the hockey-stick curve at every grid point. The mass ``below``
    the grid moves up to its lowest point, the mass ``above`` it to infinity.
    """
    high = (upper - np.exp(points[:-1] * interval) * lower) / -math.expm1(-interval)
    high = np.clip(high, 0.0, upper)
    masses = np.zeros(len(points))
    masses[1:] += high
    masses[:-1] += upper - high
    masses[0] += below
    return LossPmf(interval, int(points[0]), masses, float(above))

r"""Vectors as integers of bounded norm, whose exact sum is released under discrete noise.

A vector of norm at most C, in isometric coordinates of its tangent space, is multiplied by R / C
and rounded to integers at random, so that its mean stays as it is. The sum of such vectors, with a
share of integer noise from each node, never wraps modulo 2^b, so that it is the same integer
wherever it is added up (Kairouz, Liu, Steinke 2021, "The distributed discrete Gaussian mechanism
for federated learning with secure aggregation", without its flattening and its redraws).

Symbols: n nodes, of which D may drop out and c collude, h = n - D - c honest shares of variance
sigma^2, z noise multiplier, s sensitivity in vectors, B bound of an integer vector's norm, R inner
bound before it is rounded, M most vectors in a sum, b bits, d coordinates.

    B = min(2^16, floor((2^(b-1) - 1) / ceil(M + 9 z s sqrt(n / h)))),   R = B - ceil(d / 8B) - 3
    sigma^2 = ceil(((z s B)^2 + 4) / h)

Guarantee: the integers of a vector have the norm B at most, whatever the vector holds. A coordinate
of the sum wraps with a probability of 2e-19, which costs no privacy.
"""

import math
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from manifed.errors import ConfigError
from manifed.fields import Frozen, NonNegative, Positive, WholeNumber
from manifed.privacy.events import NeighboringRelation, PrivacyUnit

_Bits = Literal[32, 64]
_Whole = NDArray[np.signedinteger[Any]]
_LARGEST_BOUND = 2**16
_LEAST_VARIANCE = 16
"""Of a node's share, in squared integers; with less the sum of shares has another law."""
_LARGEST_EXCESS = 0.01


class Coding(NamedTuple):
    """How vectors of ``size`` coordinates become integers in one sum over ``nodes`` nodes."""

    nodes: int
    size: int
    bits: _Bits
    bound: int
    """B."""
    inner: int
    """R."""
    variance: int
    """sigma^2, of the noise that each node adds to each coordinate."""
    clip: float
    """C."""
    sensitivity: int
    """s."""

    def encode(self, coords: Tensor, seeds: Tensor) -> Tensor:
        """Returns integers, in float64, of the mean coords R / C, shape ``(..., size)``.

        ``seeds`` (...) are float64, one a vector, from which the uniforms of its coordinates are
        hashed. A coordinate is rounded down, or up with the probability of its fraction; where the
        norm is then above B, all are rounded towards zero. A vector that is not finite, or longer
        than B still, becomes zero.

        Guarantees: sum q^2 <= B^2 whatever coords and seeds hold; the integers of a vector are a
        function of that vector and its seed.

        Raises:
            ValueError: there is not one seed for each vector of that size.
        """
        if tuple(coords.shape) != (*seeds.shape, self.size):
            raise ValueError(
                f"Expected coordinates of shape {(*seeds.shape, self.size)}, got "
                f"{tuple(coords.shape)}"
            )
        with np.errstate(all="ignore"):
            given = coords.detach().to(torch.float64).numpy()
            scaled = given * (np.float64(self.inner) / np.float64(self.clip))
        is_near = (np.abs(scaled) <= self.bound).all(-1)  # no NaN is
        scaled[~is_near] = 0.0
        rounded = np.floor(scaled)
        rounded += _uniforms(seeds, self.size) < scaled - rounded
        for shorter in (np.trunc, np.zeros_like):
            # exact: sums of squares are exact to 2^53, and no greater one is rounded below B^2
            is_long = np.vecdot(rounded, rounded) > self.bound**2
            rounded[is_long] = shorter(scaled[is_long])
        return torch.from_numpy(rounded)

    def wrap(self, total: _Whole) -> _Whole:
        """Returns what ``total`` is modulo 2^b, as signed integers of b bits."""
        return total.astype(np.int32 if self.bits == 32 else np.int64)

    def decode(self, total: _Whole) -> Tensor:
        """Returns the sum of coordinates, in float64, that a sum of integers stands for."""
        return torch.from_numpy(total.astype(np.float64)) * (self.clip / self.inner)

    def multiplier(self, honest: int) -> float:
        """Returns sqrt(honest sigma^2 - 4) / (s B), rounded down: what ``honest`` shares pay for.

        It is the noise multiplier of the Gaussian mechanism of which the sum is a post-processing.
        """
        square = Fraction(honest * self.variance - 4, (self.sensitivity * self.bound) ** 2)
        found = math.sqrt(square) * (1 + 2.0**-50)
        while Fraction(found) ** 2 > square:
            found = math.nextafter(found, 0.0)
        return found


class SumNumbers(Frozen):
    """What nodes declare of a hidden sum, from which each computes the same integers."""

    unit: PrivacyUnit
    """Whose vectors are summed: examples', each rounded by itself, or clients'."""
    neighboring_relation: NeighboringRelation
    l2_norm_clip: Positive
    multiplier: Annotated[float, Field(gt=0, le=1e6)]
    """z, of the noise in the sum with ``max_dropped`` nodes gone, that colluding nodes know."""
    max_dropped: NonNegative = 0.0
    """So many nodes, or below 1 that share of them, may drop out."""
    collusion: WholeNumber = 0
    """So many nodes may tell what they know, or add no noise."""
    most: Annotated[int, Field(ge=1, le=2**36)]
    """M, most vectors in a sum: all clients' examples, or the number of clients."""
    scheduled: tuple[float, ...] = ()
    """z of the first and the last round, where it changes. b is the same in all rounds."""

    @property
    def sensitivity(self) -> int:
        """How many vectors' bounds the sum moves by when a unit changes."""
        return 1 if self.neighboring_relation == "add-or-remove" else 2

    def dropped(self, n: int) -> int:
        """Returns D, how many of n nodes may drop out."""
        share = self.max_dropped * n if self.max_dropped < 1 else self.max_dropped
        return math.floor(share + 1e-9)  # 0.29 of 100 are 29

    def honest(self, n: int) -> int:
        """Returns h = n - D - c, the shares of noise that are unknown in the worst case."""
        return n - self.dropped(n) - self.collusion

    def is_safe(self, n: int) -> bool:
        """Returns whether `check` takes a sum over n nodes."""
        return 2 * self.dropped(n) + self.collusion < n

    def check(self, n: int) -> None:
        """Refuses a sum over n nodes whose noise could not be guaranteed.

        Raises:
            ConfigError: naming the field.
        """
        if self.max_dropped >= 1 and self.max_dropped % 1:
            raise ConfigError(
                f"max_dropped: expected a whole number of nodes, or a share below 1, got "
                f"{self.max_dropped:g}"
            )
        dropped = self.dropped(n)
        if not self.is_safe(n):
            raise ConfigError(
                f"max_dropped, collusion: expected 2 max_dropped + collusion < {n} nodes, got "
                f"{dropped} and {self.collusion}; lower one of them, or ask more nodes"
            )

    def bits(self, size: int) -> _Bits:
        """Returns b for vectors of ``size`` coordinates: 32 where the sum is 1 % noisier at most.

        It holds for every number of nodes that `check` takes, as n / h <= max(2, c + 1) for these.
        """
        kappa = max(2, self.collusion + 1)
        for z in self.scheduled or (self.multiplier,):
            spread = z * self.sensitivity
            bound = bound_of(32, self.most, spread * math.sqrt(kappa))
            if _excess(bound, size, self.most, spread) >= _LARGEST_EXCESS:
                return 64
        return 32

    def of(self, n: int, size: int) -> Coding:
        """Returns the integers of a sum over n nodes of vectors with ``size`` coordinates.

        Raises:
            ConfigError: as `check`; or the noise is finer than integers, or vectors are too long.
        """
        self.check(n)
        h = self.honest(n)
        spread = self.multiplier * self.sensitivity
        bits = self.bits(size)
        bound = bound_of(bits, self.most, spread * math.sqrt(n / h))
        square = (Fraction(self.multiplier) * self.sensitivity * bound) ** 2
        variance = math.ceil((square + 4) / h)
        if variance < _LEAST_VARIANCE:
            raise ConfigError(
                f"multiplier: expected noise of a variance from {_LEAST_VARIANCE} integers a node "
                f"on, got {variance} from {self.multiplier:g} over {h} honest nodes; raise it"
            )
        inner = inner_of(bound, size)
        return Coding(n, size, bits, bound, inner, variance, self.l2_norm_clip, self.sensitivity)


def bound_of(bits: int, most: int, spread: float) -> int:
    """Returns B, where the noise of a sum is ``spread`` times B."""
    return min(_LARGEST_BOUND, max(1, (2 ** (bits - 1) - 1) // math.ceil(most + 9 * spread)))


def inner_of(bound: int, size: int) -> int:
    """Returns R."""
    return bound - math.ceil(size / (8 * bound)) - 3


def _excess(bound: int, size: int, most: int, spread: float) -> float:
    """Returns by how much a sum is noisier than under Gaussian noise, at most, as a share."""
    inner = inner_of(bound, size)
    if inner < 1:
        return math.inf
    of_noise = (bound / inner) ** 2 * (1 + 4 / (spread * bound) ** 2)
    return of_noise - 1 + most / (2 * spread * inner) ** 2


# -- one seed a vector, one uniform a coordinate -------------------------------------------------
def _uniforms(seeds: Tensor, count: int) -> NDArray[np.floating[Any]]:
    """Uniforms of [0, 1) with 53 bits, (..., count): SplitMix64 from the bits of each seed."""
    start = seeds.to(torch.float64).contiguous().numpy().view(np.uint64)[..., None].copy()
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words = _mixed(_mixed(start) + steps)
    words >>= np.uint64(11)
    return words * 2.0**-53


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies SplitMix64's permutation of words (Steele, Lea, Flood 2014), in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words

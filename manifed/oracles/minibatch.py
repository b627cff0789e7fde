"""How a client draws its minibatch: the sampling scheme is part of the privacy event.

``num_examples`` is the public size N_i of a shard: it fixes the rate of a Poisson batch and the
*expected* batch size, by which the mean divides, so that adding or removing one example changes the
sum by one clipped gradient. The oracle draws from the very `Sampling` that is charged.
"""

from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from manifed.privacy.events import (
    Frozen,
    PoissonSampled,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
)

Array = npt.NDArray[Any]


class Full(Frozen):
    """Every example, every step: the exact Gaussian (GDP) accounting applies."""

    kind: Literal["full"] = "full"

    def expected_size(self, num_examples: int) -> float:
        """The normaliser of the mean gradient."""
        return float(num_examples)

    def sampling(self, num_examples: int) -> Sampling:
        """The sampling of the privacy event."""
        return Unsampled()


class Poisson(Frozen):
    """Each example independently, with probability ``batch_size / num_examples``."""

    kind: Literal["poisson"] = "poisson"
    batch_size: float = Field(gt=0)
    """Expected number of examples in a batch."""

    def expected_size(self, num_examples: int) -> float:
        """The normaliser of the mean gradient: the expected, not the drawn, batch size."""
        return min(self.batch_size, float(num_examples))

    def sampling(self, num_examples: int) -> Sampling:
        """The sampling of the privacy event."""
        probability = self.expected_size(num_examples) / num_examples
        return PoissonSampled(sampling_probability=probability)


class WithoutReplacement(Frozen):
    """A uniform subset of exactly ``batch_size`` examples (Algorithm 2, line 3)."""

    kind: Literal["without-replacement"] = "without-replacement"
    batch_size: int = Field(ge=1)
    """Examples of a batch, exactly."""

    def expected_size(self, num_examples: int) -> float:
        """The normaliser of the mean gradient."""
        return float(min(self.batch_size, num_examples))

    def sampling(self, num_examples: int) -> Sampling:
        """The sampling of the privacy event."""
        size = min(self.batch_size, num_examples)
        return SampledWithoutReplacement(sample_size=size, population=num_examples)


Minibatch = Annotated[Full | Poisson | WithoutReplacement, Field(discriminator="kind")]


# -- which rows are in a batch ------------------------------------------------------------------
def rows_of(chosen: Array) -> tuple[Array, Array] | None:
    """Positions (..., b) of what is ``chosen`` (..., n), ascending, and weights of 0 and 1.

    b is the largest batch of the cohort; shorter ones repeat their last row with weight 0. None
    where that would be more than half of the rows: no row is left out then.
    """
    counts = np.count_nonzero(chosen, axis=-1)
    size = max(int(counts.max()), 1)
    if 2 * size > chosen.shape[-1]:
        return None
    found = np.flatnonzero(chosen) % chosen.shape[-1]
    if not len(found):
        found = np.zeros(1, dtype=np.int64)
    slot, count = np.arange(size), counts[..., None]
    first = (np.cumsum(counts) - counts).reshape(counts.shape)[..., None]
    places = np.clip(first + np.minimum(slot, count - 1), 0, len(found) - 1)
    return found[places], (slot < count).astype(np.float64)


def rows_of_least(words: Array, present: Array, size: int) -> tuple[Array, Array]:
    """Positions (..., size), ascending, of the least of i.i.d. words (..., n), and weights.

    A uniform subset of the rows that are ``present``; where those are fewer, all of them and others
    with weight 0.
    """
    keys = np.where(present, words >> np.uint64(1), np.uint64(1 << 63))
    positions = np.sort(np.argpartition(keys, size - 1, axis=-1)[..., :size], axis=-1)
    return positions, np.take_along_axis(present, positions, axis=-1).astype(np.float64)

"""Minibatch rules and oracle queries: the sampling scheme is part of the privacy event.

``num_examples`` is the public size N_i of a shard: it fixes the rate of a Poisson batch and the
*expected* batch size, by which the mean divides, so that adding or removing one example changes the
sum by one clipped gradient. The oracle draws from the very `Sampling` that is charged.
"""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from manifed.fields import BY_KIND, Frozen, Positive, PositiveCount
from manifed.privacy.events import (
    PoissonSampled,
    Releases,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
)
from manifed.privacy.mechanism import ExampleMechanism

_Array = npt.NDArray[Any]


class Full(Frozen):
    """Every example in every step. Gaussian accounting is exact."""

    kind: Literal["full"] = "full"

    def expected_size(self, num_examples: int) -> float:
        """Returns the number of examples, by which the mean gradient is normalised."""
        return float(num_examples)

    def sampling(self, num_examples: int) -> Sampling:
        """Returns the sampling of the privacy event: every example takes part."""
        return Unsampled()


class Poisson(Frozen):
    """Each example independently, with probability ``batch_size / num_examples``."""

    kind: Literal["poisson"] = "poisson"
    batch_size: Positive
    """Expected examples per batch."""

    def expected_size(self, num_examples: int) -> float:
        """Returns the expected (not the drawn) batch size, which normalises the mean gradient."""
        return min(self.batch_size, float(num_examples))

    def sampling(self, num_examples: int) -> Sampling:
        """Returns the sampling of the privacy event: Poisson."""
        probability = self.expected_size(num_examples) / num_examples
        return PoissonSampled(sampling_probability=probability)


class WithoutReplacement(Frozen):
    """A uniform subset of ``batch_size`` examples (PriRFed, Algorithm 2, line 3)."""

    kind: Literal["without-replacement"] = "without-replacement"
    batch_size: PositiveCount
    """Examples per batch."""

    def expected_size(self, num_examples: int) -> float:
        """Returns the batch size, by which the mean gradient is normalised."""
        return float(min(self.batch_size, num_examples))

    def sampling(self, num_examples: int) -> Sampling:
        """Returns the sampling of the privacy event: a subset of fixed size."""
        size = min(self.batch_size, num_examples)
        return SampledWithoutReplacement(sample_size=size, population=num_examples)


Minibatch = Annotated[Full | Poisson | WithoutReplacement, BY_KIND]


# -- which rows are in a batch ------------------------------------------------------------------
def rows_of(chosen: _Array) -> tuple[_Array, _Array] | None:
    """Returns positions (..., b) of what is ``chosen`` (..., n), ascending, and 0-1 weights.

    b is the largest batch of the cohort; shorter ones repeat their last row with weight 0. None
    where that would be more than half of the rows: no row is left out then.
    """
    counts = np.count_nonzero(chosen, axis=-1, keepdims=True)
    size = max(int(counts.max()), 1)
    if 2 * size > chosen.shape[-1]:
        return None
    found = np.argsort(~chosen, kind="stable")[..., :size]
    slot = np.arange(size)
    places = np.minimum(slot, np.maximum(counts - 1, 0))
    return np.take_along_axis(found, places, axis=-1), (slot < counts).astype(np.float64)


def rows_of_least(words: _Array, present: _Array, size: int) -> tuple[_Array, _Array]:
    """Returns positions (..., size), ascending, of the least of i.i.d. words (..., n), and weights.

    A uniform subset of the rows that are ``present``; where those are fewer, all of them and others
    with weight 0.
    """
    keys = np.where(present, words >> np.uint64(1), np.uint64(1 << 63))
    positions = np.sort(np.argpartition(keys, size - 1)[..., :size])
    return positions, np.take_along_axis(present, positions, axis=-1).astype(np.float64)


UNNOISED = "-unnoised"
"""What the label of a query ends with where nothing was added to its answer."""

_Form = Literal["gradient", "difference", "each", "below"]
"""What one example adds to a mean: its clipped gradient; its correction, clipped as one vector; its
correction with each of the two gradients clipped (so that it moves the mean by two bounds); or 1/2
where its gradient is not clipped, and -1/2 where it is."""


class WrongSize(ValueError):
    """Error: a shard's number of rows is not its public size, although the price needs that."""


class Ask(NamedTuple):
    """What an algorithm asks of a client's records in a round: how often, of which batch."""

    batch: Minibatch = Full()
    count: int = 1
    label: str = "gradient"
    form: _Form = "gradient"
    apart: float = 2.0
    """How many clip norms the vectors of two examples are apart at most."""


@dataclass(frozen=True, eq=False)
class Query:
    """A question with the numbers that scale its noise and its charge, made once for a setup."""

    label: str
    mechanism: ExampleMechanism
    num_examples: int
    """The public size N_i of the shard."""
    sampling: Sampling
    """How a batch is drawn, and charged."""
    form: _Form
    expected_size: float
    """What the sum over the batch is divided by."""
    clip: float | None
    """Bound of one example's vector, in the metric at the point; None: nothing is clipped."""
    sensitivity: float
    """L2 change of the mean when one example changes."""
    stddev: float
    """What is charged."""
    drawn: float | None
    """What is added to an answer; None: nothing, because noise of another query covers it."""
    count: int
    """How many are charged in one round."""
    needs_exact_size: bool
    """Whether the shard must hold exactly ``num_examples`` rows, because neighbours have as many.

    Under add-or-remove the two may differ by any amount: that is the relation itself.
    """
    whole_clip: float | None = None
    """Bound of the mean itself, where a client is the unit; None: the mean is not clipped."""
    first: int | None = None
    """The row at which the batch begins, where rows are used in their order, and then from the
    start; None: the batch is drawn."""
    lipschitz: float | None = None
    """A record whose gradient can be steeper counts as zero; None: any may be as it likes."""
    mask_stddev: float = 0.0
    """What masks of unit deviation are multiplied by before they are added to an answer."""

    @staticmethod
    def of(mechanism: ExampleMechanism, ask: Ask, num_examples: int) -> "Query":
        """Makes the query that a mechanism noises by its own rule, for a shard of that size.

        Where a client is the unit of masked noise its batch amplifies nothing: the whole mean is
        clipped.
        """
        clip = mechanism.l2_norm_clip
        if ask.form != "gradient":
            clip = mechanism.correction_l2_norm_clip or clip
        size = ask.batch.expected_size(num_examples)
        is_clipped = mechanism.l2_norm_clip is not None
        masked, mask_stddev = mechanism.masks() or (None, 0.0)
        is_client = masked == "client"
        relation = mechanism.neighboring_relation
        is_replaced = is_clipped and masked is None and relation == "replace-one"
        sensitivity = stddev = 0.0
        if clip is not None:
            terms = 2 if ask.form == "each" else 1
            sensitivity = mechanism.sensitivity(clip, size, terms=terms, apart=ask.apart)
            stddev = mechanism.noise.stddev(sensitivity, num_examples)
        return Query(
            ask.label, mechanism, num_examples, ask.batch.sampling(num_examples), ask.form, size,
            None if is_client else clip, sensitivity, stddev,
            drawn=stddev if is_clipped else None, count=ask.count,
            needs_exact_size=is_replaced or ask.batch.kind == "without-replacement",
            whole_clip=clip if is_client else None,
            mask_stddev=mask_stddev,
        )  # fmt: skip

    def release(self) -> Releases:
        """Returns the releases that the query is charged as; none without clip or count."""
        if self.mechanism.l2_norm_clip is None or self.count == 0:
            return ()
        return (
            self.mechanism.release(
                label=self.label,
                count=self.count,
                stddev=self.stddev,
                sensitivity=self.sensitivity,
                sampling=self.sampling if self.whole_clip is None else Unsampled(),
            ),
        )


@cache
def say_that_nothing_counts(name: str) -> None:
    """Writes a line into this process's own log, never a message, as it depends on records."""
    logging.getLogger("manifed").warning(
        "%s: no record of a batch has a finite gradient at the point that came down, so the answer "
        "is noise alone; check features, labels and the model on a few records of this site",
        name,
    )

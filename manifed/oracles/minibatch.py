"""How a client draws its minibatch: the sampling scheme is part of the privacy event.

``num_examples`` is the public size N_i of a shard: it fixes the rate of a Poisson batch and the
*expected* batch size, by which the mean divides, so that adding or removing one example changes the
sum by one clipped gradient. The oracle draws from the very `Sampling` that is charged.
"""

from typing import Annotated, Literal

from pydantic import Field

from manifed.privacy.events import (
    Frozen,
    PoissonSampled,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
)


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

    def expected_size(self, num_examples: int) -> float:
        """The normaliser of the mean gradient."""
        return float(min(self.batch_size, num_examples))

    def sampling(self, num_examples: int) -> Sampling:
        """The sampling of the privacy event."""
        size = min(self.batch_size, num_examples)
        return SampledWithoutReplacement(sample_size=size, population=num_examples)


Minibatch = Annotated[Full | Poisson | WithoutReplacement, Field(discriminator="kind")]

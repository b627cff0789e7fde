"""How a client draws its minibatch: the sampling scheme is part of the privacy event.

A batch is index positions (..., b) into the shard and weights (..., b) of zeros and ones; padding
weighs zero. The mean divides by the *expected* batch size, a public constant, so that adding or
removing one example changes the sum by one clipped gradient and nothing else.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.oracles.draws import Draws
from manifed.privacy.events import (
    Frozen,
    PoissonSampled,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
)
from manifed.privacy.noise import Stream

Batch = tuple[Tensor | None, Tensor]
"""(positions or None for the whole shard, weights)."""


def _present(num_examples: Tensor, longest: int) -> Tensor:
    """1 for the examples a client has, 0 for padding, shape (..., longest)."""
    positions = torch.arange(longest, device=num_examples.device)
    return positions < num_examples.unsqueeze(-1)


class Full(Frozen):
    """Every example, every step: the exact Gaussian (GDP) accounting applies."""

    kind: Literal["full"] = "full"

    def expected_size(self, num_examples: int) -> float:
        """The normaliser of the mean gradient."""
        return float(num_examples)

    def sampling(self, num_examples: int) -> Sampling:
        """The sampling of the privacy event."""
        return Unsampled()

    def draw(self, num_examples: Tensor, longest: int, draws: Draws, step: int) -> Batch:
        """The whole shard."""
        return None, _present(num_examples, longest).to(torch.float64)


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

    def draw(self, num_examples: Tensor, longest: int, draws: Draws, step: int) -> Batch:
        """A Poisson batch, padded to the largest of the cohort."""
        probability = (self.batch_size / num_examples.to(torch.float64)).clamp_max(1.0)
        drawn = draws.uniforms((longest,), Stream.MINIBATCH, step) < probability.unsqueeze(-1)
        chosen = drawn & _present(num_examples, longest)
        size = max(int(chosen.sum(-1).max()), 1)
        if 2 * size > longest:
            return None, chosen.to(torch.float64)
        weights, positions = torch.topk(chosen.to(torch.float64), size, dim=-1, sorted=False)
        return positions, weights


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

    def draw(self, num_examples: Tensor, longest: int, draws: Draws, step: int) -> Batch:
        """The positions of the ``batch_size`` smallest of i.i.d. uniforms."""
        uniforms = draws.uniforms((longest,), Stream.MINIBATCH, step)
        absent = ~_present(num_examples, longest)
        size = min(self.batch_size, longest)
        keys, positions = torch.topk(
            uniforms.masked_fill(absent, 2.0), size, dim=-1, largest=False, sorted=False
        )
        return positions, (keys < 1.5).to(torch.float64)


Minibatch = Annotated[Full | Poisson | WithoutReplacement, Field(discriminator="kind")]

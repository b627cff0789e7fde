"""Rules that draw the cohort of a round, by partition, from this library's own stream.

Flower's node ids are fresh random numbers in every run and its strategies sample with the global
random module; both would make a run unrepeatable and its sampling rate unaccountable.
"""

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from manifed.errors import ConfigError
from manifed.fields import BY_KIND, Frozen, PositiveCount, Probability
from manifed.privacy.events import (
    PoissonSampled,
    SampledWithoutReplacement,
    Sampling,
    Unsampled,
)
from manifed.privacy.random_numbers import NoiseSource, Stream

_Probabilities = tuple[Probability, ...]
"""p_i of every client, where they differ; () where one number says them all."""


class _Cohort(Frozen):
    """A rule that draws some of ``num_clients`` partitions in a round."""

    kind: Any

    def rate(self, num_clients: int) -> float:
        """Probability that a given client takes part in a given round, the largest of any."""
        raise NotImplementedError

    def sampling(self, num_clients: int) -> Sampling:
        """The sampling event at client level, of the client that it protects least."""
        return PoissonSampled(sampling_probability=self.rate(num_clients))

    def expected_size(self, num_clients: int) -> float:
        """Expected number of participants."""
        return self.rate(num_clients) * num_clients

    def check(self, num_clients: int) -> None:
        """Refuse a number of clients that the rule was not written for.

        Raises:
            ConfigError: with both numbers.
        """

    def draw(
        self, num_clients: int, server_round: int, attempt: int, source: NoiseSource
    ) -> tuple[int, ...]:
        """The partitions that take part, in order.

        Raises:
            ConfigError: for another number of clients than of probabilities.
        """
        uniforms = source.uniforms(
            (num_clients,),
            stream=Stream.COHORT,
            partition=0,  # its streams are never a client's
            server_round=server_round,
            attempt=attempt,
        )
        return tuple(sorted(self.chosen(uniforms).tolist()))

    def chosen(self, uniforms: Tensor) -> Tensor:
        """The partitions that one uniform each chooses; each whose coin falls."""
        return (uniforms < self.rate(len(uniforms))).nonzero()[:, 0]


class _Alike(_Cohort):
    """A rule under which all clients take part with one probability."""

    probabilities: ClassVar[_Probabilities] = ()


class Everyone(_Alike):
    """All clients take part in every round."""

    kind: Literal["all"] = "all"

    def rate(self, num_clients: int) -> float:
        """The participation probability, one."""
        return 1.0

    def sampling(self, num_clients: int) -> Sampling:
        """The sampling event: none, every client takes part."""
        return Unsampled()

    def draw(
        self, num_clients: int, server_round: int, attempt: int, source: NoiseSource
    ) -> tuple[int, ...]:
        """Returns all partitions without a draw."""
        return tuple(range(num_clients))


class FixedSize(_Alike):
    """A uniform subset of ``cohort_size`` clients (PriRFed, Algorithm 1, line 2)."""

    kind: Literal["fixed-size"] = "fixed-size"
    cohort_size: PositiveCount
    """Clients per round."""

    def check(self, num_clients: int) -> None:
        """Refuses a cohort that is larger than the number of clients."""
        if self.cohort_size > num_clients:
            raise ConfigError(
                "federation.cohort.cohort_size: expected at most federation.num_clients = "
                f"{num_clients}, got {self.cohort_size}"
            )

    def chosen(self, uniforms: Tensor) -> Tensor:
        """The partitions of the ``cohort_size`` smallest of i.i.d. uniforms."""
        return torch.argsort(uniforms)[: self.cohort_size]

    def expected_size(self, num_clients: int) -> float:
        """The number of participants."""
        return float(self.cohort_size)

    def rate(self, num_clients: int) -> float:
        """The participation probability rho = s / N."""
        return self.cohort_size / num_clients

    def sampling(self, num_clients: int) -> Sampling:
        """The sampling event: a subset of fixed size."""
        return SampledWithoutReplacement(sample_size=self.cohort_size, population=num_clients)


class PoissonCohort(_Alike):
    """Each client independently, with one probability. A round may be empty."""

    kind: Literal["poisson"] = "poisson"
    sampling_probability: Probability
    """Probability that a client takes part in a round."""

    def rate(self, num_clients: int) -> float:
        """The participation probability rho."""
        return self.sampling_probability


class PoissonEach(_Cohort):
    """Each client independently, with its own probability. A round may be empty.

    One client's privacy is amplified by its own probability alone, so prices are those of the
    client with the largest where one number must do, and never of a mean. A server that divides a
    sum of uploads by their expected number leans to those who come often; ``rfedags`` divides each
    upload by its own p_i.
    """

    kind: Literal["poisson-each"] = "poisson-each"
    probabilities: _Probabilities = Field(min_length=1)
    """The public p_i of every client."""

    def chosen(self, uniforms: Tensor) -> Tensor:
        """Returns the partitions whose uniform lies below their own probability."""
        self.check(len(uniforms))
        return (uniforms < torch.tensor(self.probabilities, dtype=torch.float64)).nonzero()[:, 0]

    def check(self, num_clients: int) -> None:
        """Refuses a number of probabilities that is not the number of clients."""
        if len(self.probabilities) != num_clients:
            raise ConfigError(
                "federation.cohort.probabilities: expected one for each of federation.num_clients "
                f"= {num_clients}, got {len(self.probabilities)}"
            )

    def expected_size(self, num_clients: int) -> float:
        """The expected number of participants."""
        return math.fsum(self.probabilities)

    def rate(self, num_clients: int) -> float:
        """The largest participation probability of any client."""
        return max(self.probabilities)


Cohort = Annotated[Everyone | FixedSize | PoissonCohort | PoissonEach, BY_KIND]

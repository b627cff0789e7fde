"""Riemannian SGD whose step, noise and batch change with the round, by public rules.

Round r of `ScheduledRSGD` is Algorithm 2 of PriRFed (manifed/algorithms/rsgd.py) with step size
step_size * s_r, noise multiplier z * z_r and expected batch batch_size * b_r, where s, z_r and b
are the schedules of a config and z is the multiplier that the mechanism has: the config's own, or
the least one with which the *whole* schedule meets a target.

Composition is exact: each round is charged as its own release. Without sampling that is one
Gaussian release of mu^2 = sum_r 1 / (z z_r)^2 (Dong, Roth, Su: Gaussian Differential Privacy,
2022, Corollary 3.3), so a target fixes z = sqrt(sum_r z_r^-2) / mu, and a budget with a given z
fixes the number of rounds: the filter stops at the round that it does not pay.

Which noise is best for the last iterate of x <- x - s (h (x - x*) + noise): its error is
sum_r a_r noise_r with a_r = s (1 - s h)^(T - r), and by Cauchy and Schwarz
sum_r a_r^2 z_r^2 * sum_r z_r^-2 >= (sum_r |a_r|)^2, with equality for z_r proportional to
|a_r|^(-1/2): geometric noise of ratio (1 - s h)^(1/2).
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from manifed.algorithms.rsgd import RSGD
from manifed.oracles.minibatch import Minibatch, Poisson
from manifed.oracles.query import Query
from manifed.privacy.mechanism import ExampleMechanism
from manifed.schedules.schedule import AnySchedule

LARGEST_FACTOR = 1e9
"""Of a schedule in any round; the smallest is one over it."""


class ScaledRSGD(RSGD):
    """RSGD whose noise is ``noise_factor`` times that of the mechanism."""

    noise_factor: float = Field(default=1.0, gt=0)

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """``local_steps`` gradients, drawn and charged with the scaled noise."""
        return super().queries(mechanism.scaled(self.noise_factor), num_examples)


class ScheduledRSGD(RSGD):
    """RSGD by schedules of k = r - 1; each is a factor on what the config says, and None is 1."""

    # frozen, so another literal in the place of the base's is sound
    kind: Literal["scheduled-rsgd"] = "scheduled-rsgd"  # pyright: ignore[reportIncompatibleVariableOverride]
    step_sizes: AnySchedule | None = None
    noise_multipliers: AnySchedule | None = None
    batch_sizes: AnySchedule | None = None

    @model_validator(mode="after")
    def _grows_poisson_batches(self) -> Self:
        if self.batch_sizes is not None and self.minibatch.kind != "poisson":
            raise ValueError(
                "training.batch_sizes: goes with training.minibatch.kind = 'poisson', got "
                f"{self.minibatch.kind!r}"
            )
        return self

    def in_round(self, server_round: int) -> ScaledRSGD:
        """Algorithm 2 as it is run, and charged, in a round.

        Raises:
            ValueError: for a factor beyond 1e9, or below one over it.
        """
        return ScaledRSGD(
            step_size=self.step_size * _factor("step_sizes", self.step_sizes, server_round),
            local_steps=self.local_steps,
            minibatch=self._minibatch(server_round),
            output=self.output,
            maps=self.maps,
            noise_factor=_factor("noise_multipliers", self.noise_multipliers, server_round),
        )

    def _minibatch(self, server_round: int) -> Minibatch:
        if self.batch_sizes is None:
            return self.minibatch
        assert isinstance(self.minibatch, Poisson)
        factor = _factor("batch_sizes", self.batch_sizes, server_round)
        return Poisson(batch_size=self.minibatch.batch_size * factor)


def _factor(field: str, rule: AnySchedule | None, server_round: int) -> float:
    if rule is None:
        return 1.0
    factor = rule(server_round - 1)
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        raise ValueError(
            f"training.{field}: expected factors between {1 / LARGEST_FACTOR:g} and "
            f"{LARGEST_FACTOR:g}, got {factor:g} in round {server_round}"
        )
    return factor

"""Riemannian SGD and projected steps whose step, noise and batch change with the round, by rules.

Round r of `GrowingRSGD` is Algorithm 2 of PriRFed (manifed/algorithms/rsgd.py) with step size
step_size * s_r, noise multiplier z * z_r and expected batch batch_size * b_r, where s, z_r and b
are the schedules of a config and z is the multiplier that the mechanism has: the config's own, or
the least one with which the *whole* schedule meets a target. `GrowingProjected` is Algorithm 1 of
projected federated learning (manifed/algorithms/projected.py) with the same schedules.

Composition is exact: each round is charged as its own release. Without sampling that is one
Gaussian release of mu^2 = sum_r 1 / (z z_r)^2 (Dong, Roth, Su: Gaussian Differential Privacy,
2022, Corollary 3.3), so a target fixes z = sqrt(sum_r z_r^-2) / mu, and a budget with a given z
fixes the number of rounds: the filter stops at the round that it does not pay.

Which noise is best for the last iterate of x <- x - s (h (x - x*) + noise): its error is
sum_r a_r noise_r with a_r = s (1 - s h)^(T - r), and by Cauchy and Schwarz
sum_r a_r^2 z_r^2 * sum_r z_r^-2 >= (sum_r |a_r|)^2, with equality for z_r proportional to
|a_r|^(-1/2): geometric noise of ratio (1 - s h)^(1/2).

Rounds without end: sum_r z_r^-2 is finite for z_r = r^zeta, zeta > 1/2, and where b_r grows at
least as fast the noise of the mean does not grow (growing_manifolds.md).
"""

from typing import Any, Literal, Self

import numpy as np
from pydantic import PositiveFloat, model_validator
from torch import Tensor

from manifed.algorithms.algorithm import ClientUpdate
from manifed.algorithms.projected import Projected
from manifed.algorithms.rsgd import RSGD
from manifed.fields import Positive
from manifed.oracles.minibatch import Full, Minibatch, Poisson, Query, WithoutReplacement
from manifed.privacy.mechanism import ExampleMechanism
from manifed.schedules import AnySchedule, factor_of, whole


class Schedules(ClientUpdate):
    """Schedules of k = r - 1; each is a factor on what the config says, and None is 1."""

    step_sizes: AnySchedule | None = None
    """Factor on ``step_size``."""
    noise_multipliers: AnySchedule | None = None
    """Factor on the noise multiplier."""
    batch_sizes: AnySchedule | None = None
    """Factor on the batch size."""

    def step_factor(self, server_round: int) -> float:
        """s_r."""
        return factor_of("training.step_sizes", self.step_sizes, server_round)

    def noise_factor(self, server_round: int) -> float:
        """z_r."""
        return factor_of("training.noise_multipliers", self.noise_multipliers, server_round)

    def batch(self, first: Minibatch, server_round: int) -> Minibatch:
        """``first`` with b_r times its size; rounded up where batches are subsets."""
        factor = factor_of("training.batch_sizes", self.batch_sizes, server_round)
        if isinstance(first, Full):
            return first
        size = first.batch_size * factor
        if isinstance(first, Poisson):
            return Poisson(batch_size=size)
        return WithoutReplacement(batch_size=int(whole(np.array([size]))[0]))

    def check_batches(self, first: Minibatch) -> None:
        """Refuse to schedule the size of full batches.

        Raises:
            ValueError: naming what has a size.
        """
        if self.batch_sizes is not None and isinstance(first, Full):
            raise ValueError(
                "training.batch_sizes: goes with training.minibatch.kind = 'poisson' or "
                f"'without-replacement', got {first.kind!r}"
            )

    def check(self, setting: Any) -> None:
        """Refuse noise of clients where the server adds it, and factors that no round can have."""
        for server_round in (1, setting.federation.num_rounds):  # every schedule is monotone
            self.in_round(server_round)
        super().check(setting)
        if setting.privacy.kind == "client-level" and self.noise_multipliers:
            raise ValueError(
                "training.noise_multipliers: scales the noise of clients, and with privacy.kind = "
                "'client-level' the server adds it; remove it, or use 'example-level'"
            )


class ScaledRSGD(RSGD):
    """RSGD whose noise is ``noise_factor`` times that of the mechanism."""

    noise_factor: PositiveFloat = 1.0

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """``local_steps`` gradients, drawn and charged with the scaled noise."""
        return super().queries(mechanism.scaled(self.noise_factor), num_examples)


class GrowingRSGD(RSGD, Schedules):
    """RSGD by schedules."""

    # frozen, so another literal in the place of the base's is sound
    kind: Literal["manifed_extras.growing:GrowingRSGD"] = (  # pyright: ignore[reportIncompatibleVariableOverride]
        "manifed_extras.growing:GrowingRSGD"
    )

    @model_validator(mode="after")
    def _has_batches_to_grow(self) -> Self:
        self.check_batches(self.minibatch)
        return self

    def in_round(self, server_round: int) -> ScaledRSGD:
        """Algorithm 2 as it is run, and charged, in a round.

        Raises:
            ValueError: for a factor beyond 1e9, or below one over it.
        """
        return ScaledRSGD(
            step_size=self.step_size * self.step_factor(server_round),
            local_steps=self.local_steps,
            minibatch=self.batch(self.minibatch, server_round),
            output=self.output,
            maps=self.maps,
            noise_factor=self.noise_factor(server_round),
        )


class ScaledProjected(Projected):
    """Projected steps with scaled noise, after a round whose step size was another one."""

    noise_factor: PositiveFloat = 1.0
    last_step_size: Positive
    """Eta of the round before, by which line 17 undoes that round's step."""

    def queries(self, mechanism: ExampleMechanism, num_examples: int) -> tuple[Query, ...]:
        """``local_steps`` gradients, drawn and charged with the scaled noise."""
        return super().queries(mechanism.scaled(self.noise_factor), num_examples)

    def correction(self, x: Tensor, memory: Any) -> Tensor:
        """c_i^r by line 17, which is about the round before."""
        last = self.model_copy(update={"step_size": self.last_step_size})
        return super(ScaledProjected, last).correction(x, memory)


class GrowingProjected(Projected, Schedules):
    """Projected federated learning with drift correction, by schedules."""

    # frozen, so another literal in the place of the base's is sound
    kind: Literal["manifed_extras.growing:GrowingProjected"] = (  # pyright: ignore[reportIncompatibleVariableOverride]
        "manifed_extras.growing:GrowingProjected"
    )

    @model_validator(mode="after")
    def _has_batches_to_grow(self) -> Self:
        self.check_batches(self.minibatch)
        return self

    def in_round(self, server_round: int) -> ScaledProjected:
        """Algorithm 1 as it is run, and charged, in a round.

        Raises:
            ValueError: for a factor beyond 1e9, or below one over it.
        """
        return ScaledProjected(
            step_size=self.step_size * self.step_factor(server_round),
            last_step_size=self.step_size * self.step_factor(max(1, server_round - 1)),
            local_steps=self.local_steps,
            minibatch=self.batch(self.minibatch, server_round),
            server_step_size=self.server_step_size,
            tube_radius=self.tube_radius,
            upload=self.upload,
            noise_factor=self.noise_factor(server_round),
        )

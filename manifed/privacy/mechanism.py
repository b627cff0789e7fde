"""Mechanisms: where clipping and noise act, and which release they must be charged as.

A mechanism acts at three places, identity by default: `gradient` (a client's oracle, per example),
`upload` (before a message leaves; nothing shipped uses it) and `aggregate` (the server, per
client). Algorithms never ask whether they are private: they call the oracle and the aggregator, and
these apply the mechanism. The same object that scales the noise states the event, so the two cannot
drift apart.
"""

from typing import Annotated, Literal

from pydantic import Field

from manifed.privacy.events import (
    Frozen,
    GaussianRelease,
    NeighboringRelation,
    Sampling,
    Unsampled,
)


class RelativeNoise(Frozen):
    """Noise of ``multiplier`` times the sensitivity of whatever is released."""

    kind: Literal["relative"] = "relative"
    multiplier: float = Field(ge=0)

    def stddev(self, sensitivity: float, num_examples: int) -> float:
        """Standard deviation per orthonormal coordinate."""
        return self.multiplier * sensitivity


class PublishedNoise(Frozen):
    r"""The papers' calibration, sigma_i = coefficient / N_i (spec 000 §3.3), whatever is released.

    coefficient = tau * sqrt(o * K * log(1/delta)) / epsilon for DP-RSGD, and sqrt(m) times that for
    DP-RSVRG.
    It is *not* relative to the sensitivity; the accountant prices what it really buys.
    """

    kind: Literal["published"] = "published"
    coefficient: float = Field(gt=0)

    def stddev(self, sensitivity: float, num_examples: int) -> float:
        """Standard deviation per orthonormal coordinate."""
        return self.coefficient / num_examples


Noise = Annotated[RelativeNoise | PublishedNoise, Field(discriminator="kind")]


class ExampleMechanism(Frozen):
    """Per-example clipping and tangent Gaussian noise inside a client (unit: example)."""

    l2_norm_clip: float | None = Field(default=None, gt=0)
    """Bound in the metric at the point, of one example's gradient; None clips nothing."""
    correction_l2_norm_clip: float | None = Field(default=None, gt=0)
    """Bound of the variance-reduced part (RSVRG); None means ``l2_norm_clip``."""
    neighboring_relation: NeighboringRelation = "add-or-remove"
    noise: Noise = RelativeNoise(multiplier=0.0)

    @property
    def correction_clip(self) -> float | None:
        """The bound in force for corrections."""
        return self.correction_l2_norm_clip or self.l2_norm_clip

    def sensitivity(self, l2_norm_clip: float, expected_size: float, *, terms: int = 1) -> float:
        """L2 change of a mean of ``terms`` clipped vectors a batch when one example changes.

        Add-or-remove moves it by clip / size, replace-one by twice that.
        """
        change = 1.0 if self.neighboring_relation == "add-or-remove" else 2.0
        return terms * change * l2_norm_clip / expected_size

    def stddev(self, sensitivity: float, num_examples: int) -> float:
        """Noise standard deviation of one release."""
        return self.noise.stddev(sensitivity, num_examples)

    def release(
        self,
        *,
        label: str,
        count: int,
        stddev: float,
        sensitivity: float,
        sampling: Sampling,
    ) -> GaussianRelease:
        """The event that a query of that sensitivity, noised with ``stddev``, is charged as."""
        return GaussianRelease(
            unit="example",
            neighboring_relation=self.neighboring_relation,
            noise_multiplier=stddev / sensitivity,
            sampling=sampling,
            count=count,
            label=label,
        )


class AdaptiveClip(Frozen):
    """The clip norm follows a quantile of the uploads' norms, found privately.

    Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping
    (2021), Algorithm 1. b_i = 1 if the norm of upload i is at most the clip norm C; the cohort's
    noised mean of b_i - 1/2 moves C by exp(-learning_rate * (mean + 1/2 - target_quantile)).
    """

    target_quantile: float = Field(default=0.5, gt=0, lt=1)
    learning_rate: float = Field(default=0.2, gt=0)
    quantile_noise_multiplier: float = Field(gt=0)
    """Noise of the sum of b_i - 1/2, relative to its sensitivity of 1/2."""


class ClientMechanism(Frozen):
    """Per-client clipping and Gaussian noise in the server's average (unit: client).

    The uploaded vector is clipped in the metric at the broadcast point, weights are uniform, and
    N_x(0, (noise_multiplier * clip / expected cohort size)^2) is added once.
    """

    l2_norm_clip: float = Field(gt=0)
    """The clip norm C, or where an adaptive one starts."""
    noise_multiplier: float = Field(ge=0)
    """Of the whole round; with an adaptive clip the quantile takes its part of it."""
    neighboring_relation: NeighboringRelation = "add-or-remove"
    adaptive: AdaptiveClip | None = None

    @property
    def change(self) -> float:
        """How many bounds the sum moves by when one client comes or goes, or is replaced."""
        return 1.0 if self.neighboring_relation == "add-or-remove" else 2.0

    @property
    def upload_noise_multiplier(self) -> float:
        """(z^-2 - z_b^-2)^(-1/2): quantile and average together are one release of z.

        Andrew et al. 2021, Theorem 1.

        Raises:
            ValueError: when the quantile alone would cost as much as the whole round.
        """
        if self.adaptive is None or self.noise_multiplier == 0:
            return self.noise_multiplier
        z, z_b = self.noise_multiplier, self.adaptive.quantile_noise_multiplier
        if z_b <= z:
            raise ValueError(
                f"Expected quantile_noise_multiplier > the round's noise multiplier {z:g}, got "
                f"{z_b:g}; raise it"
            )
        return (z**-2 - z_b**-2) ** -0.5

    def stddev(self, expected_cohort: float, l2_norm_clip: float | None = None) -> float:
        """Noise standard deviation of the average, per orthonormal coordinate."""
        bound = self.l2_norm_clip if l2_norm_clip is None else l2_norm_clip
        return self.upload_noise_multiplier * self.change * bound / expected_cohort

    def quantile_stddev(self, expected_cohort: float) -> float:
        """Noise standard deviation of the mean of b_i - 1/2."""
        if self.adaptive is None or self.noise_multiplier == 0:
            return 0.0
        return self.adaptive.quantile_noise_multiplier * self.change * 0.5 / expected_cohort

    def release(self, *, count: int = 1, sampling: Sampling | None = None) -> GaussianRelease:
        """The event of ``count`` noised averages."""
        return GaussianRelease(
            unit="client",
            neighboring_relation=self.neighboring_relation,
            noise_multiplier=self.noise_multiplier,
            sampling=sampling or Unsampled(),
            count=count,
            label="upload",
        )

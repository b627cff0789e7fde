"""Mechanisms: each clips, states its noise, and states the release that it is charged as.

A mechanism acts at three places, identity by default: `gradient` (a client's oracle, per example),
`upload` (before a message leaves; nothing shipped uses it) and `aggregate` (the server, per
client). Algorithms never ask whether they are private: they call the oracle and the aggregator, and
these apply the mechanism. The same object that scales the noise states the event, so the two cannot
drift apart.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from manifed.fields import Fraction, Frozen, NonNegative, Positive, PositiveCount
from manifed.manifolds.base import Manifold, clipped
from manifed.manifolds.euclidean import Euclidean
from manifed.privacy.events import (
    NeighboringRelation,
    PrivacyUnit,
    Release,
    Sampling,
    Unsampled,
)

_LARGEST_CLIP = 1e100
"""An adapted clip norm stays between 1e-100 and 1e100, the sizes that a config may name."""
_STEEPEST = 2 * math.log(_LARGEST_CLIP)

_Normals = Callable[[tuple[int, ...], int], Tensor]
"""``normals(shape, step)``: standard normals of one address; another ``step`` is another draw."""


class Noise(Frozen):
    """The size of a release's noise, as the sum of three ways to state it."""

    multiplier: NonNegative = 0.0
    """Times the sensitivity of whatever is released."""
    coefficient: NonNegative = 0.0
    """Over N_i, whatever is released: the papers' calibration, tau *
    sqrt(o * K * log(1/delta)) / epsilon for DP-RSGD, and sqrt(m) times that for DP-RSVRG. It is
    *not* relative to the sensitivity; the accountant prices what it really buys."""
    value: NonNegative = 0.0
    """A standard deviation of its own, whatever is released."""

    def stddev(self, sensitivity: float, num_examples: int) -> float:
        """Returns the standard deviation per orthonormal coordinate."""
        return self.multiplier * sensitivity + self.coefficient / num_examples + self.value


class ExampleMechanism(Frozen):
    """Per-example clipping and noise inside a client (unit: example).

    Tangent Gaussian noise, or with ``l1_norm_clip`` Laplace noise in every coordinate of R^d. There
    ``noise``, a "standard deviation" and a sensitivity are scale and change in L1.
    """

    l2_norm_clip: Positive | None = None
    """Bound in the metric at the point, of one example's gradient; None clips nothing."""
    correction_l2_norm_clip: Positive | None = None
    """Bound of the variance-reduced part (RSVRG); None means ``l2_norm_clip``."""
    l1_norm_clip: Positive | None = None
    """Bound of one example's gradient in L1, on R^d, under Laplace noise; ``l2_norm_clip`` is then
    the same number, which bounds the L2 norm too."""
    neighboring_relation: NeighboringRelation = "add-or-remove"
    noise: Noise = Noise()
    unit: PrivacyUnit = "example"
    """What a record is: an example, or all rows of a person."""
    sites_per_person: PositiveCount = 1
    """How many clients' releases a person is charged for, because she may have rows at so many."""

    def masks(self) -> tuple[PrivacyUnit, float] | None:
        """The unit that masks hide, and the deviation of one mask; None without masks."""
        return None

    def sensitivity(
        self, l2_norm_clip: float, expected_size: float, *, terms: int = 1, apart: float = 2.0
    ) -> float:
        """Returns the L2 change of a mean of ``terms`` clipped vectors when one example changes.

        Add-or-remove moves it by clip / size, replace-one by ``apart`` times that: 2 for vectors
        that may be opposite, less where no two can be (who says so proves it).
        """
        change = 1.0 if self.neighboring_relation == "add-or-remove" else apart
        return terms * change * l2_norm_clip / expected_size

    def scaled(self, factor: float) -> "ExampleMechanism":
        """Returns the mechanism with ``factor`` times the noise, charged accordingly."""
        noise = Noise(**{name: factor * size for name, size in self.noise})
        return self.model_copy(update={"noise": noise})

    def release(
        self,
        *,
        label: str,
        count: int,
        stddev: float,
        sensitivity: float,
        sampling: Sampling,
    ) -> Release:
        """Returns the release that a query of that sensitivity, noised with ``stddev``, is.

        Of Laplace noise no sampling is counted on.
        """
        is_laplace = self.l1_norm_clip is not None
        return Release(
            kind="laplace" if is_laplace else "gaussian",
            unit=self.unit,
            neighboring_relation=self.neighboring_relation,
            noise_multiplier=stddev / sensitivity,
            sampling=Unsampled() if is_laplace else sampling,
            count=count * self.sites_per_person,
            label=label,
        )


class AdaptiveClip(Frozen):
    """A clip that follows a privately estimated quantile of the upload norms.

    Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping
    (2021), Algorithm 1. b_i = 1 if the norm of upload i is at most the clip norm C; the cohort's
    noised mean of b_i - 1/2 moves C by exp(-learning_rate * (mean + 1/2 - target_quantile)).
    """

    target_quantile: Fraction = 0.5
    """Share of uploads that should not be clipped."""
    learning_rate: Positive = 0.2
    """Step size of the adaptation."""
    quantile_noise_multiplier: Positive
    """Noise multiplier of the quantile estimate."""


class RisingClip(Frozen):
    """A clip of example gradients that rises to a private quantile of their norms.

    `manifed.algorithms.adaptive_clip` says how, and what it costs.
    """

    start: Fraction = 0.05
    """Clip norm of the first round, as a share of ``l2_norm_clip``."""
    target_quantile: Fraction = 0.5
    """Share of gradients that should not be clipped."""
    learning_rate: Positive = 0.2
    """Step size of the adaptation."""
    budget_share: Fraction = 0.05
    """Share of a round's budget that pays for the count of gradients below the clip."""


class ClientMechanism(Frozen):
    """Per-client clipping and Gaussian noise in the server's average (unit: client).

    The uploaded vector is clipped in the metric at the broadcast point, weights are uniform, and
    N_x(0, (noise_multiplier * clip / expected cohort size)^2) is added once.
    """

    l2_norm_clip: Positive
    """The clip norm C, or where an adaptive one starts."""
    noise_multiplier: NonNegative
    """The noise multiplier of the whole round; an adaptive clip's quantile takes its part of it."""
    neighboring_relation: NeighboringRelation = "add-or-remove"
    adaptive: AdaptiveClip | None = None

    @property
    def change(self) -> float:
        """The number of clip bounds by which the sum moves between neighbouring data sets."""
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
        z = self.noise_multiplier
        z_b = self.adaptive.quantile_noise_multiplier
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

    def release(self, sampling: Sampling) -> Release:
        """Returns the release of one noised average."""
        return Release(
            unit="client",
            neighboring_relation=self.neighboring_relation,
            noise_multiplier=self.noise_multiplier,
            sampling=sampling,
            label="upload",
        )

    def noised_mean(
        self,
        uploads: Tensor,
        base: Tensor,
        manifold: Manifold,
        normals: _Normals,
        *,
        expected_cohort: float,
        is_tangent: bool = True,
        l2_norm_clip: float | None = None,
    ) -> tuple[Tensor, float]:
        """Returns the noised mean of clipped ``uploads`` (clients, *point), and the next clip norm.

        Each is clipped in the metric at ``base``, or by its ambient norm; the sum is divided by the
        *expected* cohort size, and noised once. An empty cohort still releases its noise.
        ``l2_norm_clip`` is an adapted clip norm; None takes the mechanism's.

        Guarantees: adding or removing one client moves the un-noised mean by at most
        ``l2_norm_clip / expected_cohort`` (1 + 1e-9) in the norm at ``base``, by a tangent vector
        where uploads are tangent, whatever it uploads (zero where not finite); the result carries
        N(0, stddev^2) in every orthonormal coordinate of the space the uploads live in, computed in
        float64 and rounded to the uploads' type only after the noise. Mean and adapted clip norm
        together are one Gaussian release of ``noise_multiplier``.
        """
        stacked = uploads.to(torch.float64)
        base = base.to(torch.float64)
        clip = self.l2_norm_clip if l2_norm_clip is None else l2_norm_clip
        if is_tangent:
            norms = manifold.norm_bound(base.unsqueeze(0), stacked)
            drawn = normals(manifold.coords_shape(tuple(base.shape)), 0).to(base.device)
            noise = manifold.from_coords(base, drawn)
        else:
            flat = stacked.flatten(1)
            norms = Euclidean().norm_bound(flat, flat)
            noise = normals(tuple(base.shape), 0).to(base.device)
        total = clipped(stacked, norms, clip).sum(0)
        if is_tangent:
            total = manifold.tangent_part(base, total)
        mean = total / expected_cohort + self.stddev(expected_cohort, clip) * noise
        return mean.to(uploads.dtype), self._adapted(clip, norms, normals, expected_cohort)

    def _adapted(
        self, clip: float, norms: Tensor, normals: _Normals, expected_cohort: float
    ) -> float:
        """Andrew et al. 2021, Algorithm 1: the clip norm moves towards the target quantile."""
        if self.adaptive is None:
            return clip
        bits = (norms <= clip).to(torch.float64) - 0.5
        noise = self.quantile_stddev(expected_cohort) * float(normals((1,), 1)[0])
        share = float(bits.sum()) / expected_cohort + noise + 0.5
        exponent = -self.adaptive.learning_rate * (share - self.adaptive.target_quantile)
        after = clip * math.exp(min(max(exponent, -_STEEPEST), _STEEPEST))
        return min(max(after, 1 / _LARGEST_CLIP), _LARGEST_CLIP)

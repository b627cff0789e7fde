"""An attack on the server's noised mean: a client that takes part or is absent."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Space
from manifed.audit.bound import Attack
from manifed.federation.cohorts import PoissonCohort
from manifed.federation.rounds import ServerDraws
from manifed.manifolds.base import Manifold
from manifed.privacy import accountant
from manifed.privacy.events import PoissonSampled, Unsampled
from manifed.privacy.mechanism import ClientMechanism
from manifed.privacy.noise import NoiseSource


@dataclass(frozen=True)
class ClientAttack(Attack):
    """The server's noised mean, with a canary client that uploads ten times the clip norm.

    Everybody else uploads nothing; under replace-one the canary is replaced by its mirror image.
    The clip norm of the next round, where it adapts, is seen as well.
    """

    source: NoiseSource
    mechanism: ClientMechanism
    rate: float
    """The rate of a Poisson cohort; 1: everybody is asked."""
    manifold: Manifold
    base: Tensor
    space: Space = "tangent"
    num_clients: int = 8

    @property
    def _expected(self) -> float:
        return self.rate * self.num_clients

    def claim(self, delta: float) -> float:
        """Epsilon of one round at client level."""
        sampled = PoissonSampled(sampling_probability=self.rate) if self.rate < 1 else Unsampled()
        return accountant.epsilon([self.mechanism.release(sampling=sampled)], delta)

    def run(self, trials: tuple[int, ...], *, is_present: bool) -> Tensor:
        """The log likelihood ratio of the mean along the canary and of the clip's move.

        A trial is a round. Both are Gaussian around 0 or their sensitivity, given that the canary
        takes part; the sum of their log ratios is monotone in the likelihood ratio of a cohort
        that is drawn as well.
        """
        server_round, clip = 1 + trials[0], self.mechanism.l2_norm_clip
        is_removed = self.mechanism.neighboring_relation == "add-or-remove"
        sign = 1.0 if is_present else 0.0 if is_removed else -1.0
        cohort = PoissonCohort(sampling_probability=self.rate)
        drawn = cohort.draw(self.num_clients, server_round, 0, self.source)
        asked = [client for client in drawn if client or sign]
        uploads = torch.zeros(len(asked), *self.base.shape, dtype=torch.float64)
        if 0 in asked:
            uploads[0] = 10.0 * clip * sign * self._along
        done = self.mechanism.noised_mean(
            uploads, self.base, self.manifold, ServerDraws(self.source, server_round, 0).normals,
            expected_cohort=self._expected, is_tangent=self.space == "tangent",
        )  # fmt: skip
        shift_over_variance = clip / self._expected / self.mechanism.stddev(self._expected) ** 2
        score = shift_over_variance * self._inner(done.mean, self._along)
        return (score + self._of_clip(done.next_clip, len(asked) - (0 in asked))).reshape(1)

    @cached_property
    def _along(self) -> Tensor:
        """The direction of the canary's upload, of unit length."""
        along = self.manifold.tangent_gaussian(self.base, 1.0, torch.Generator().manual_seed(0))
        return along / self._inner(along, along).sqrt()

    def _inner(self, u: Tensor, v: Tensor) -> Tensor:
        """In the space that the uploads live in."""
        return (u * v).sum() if self.space == "ambient" else self.manifold.inner(self.base, u, v)

    def _of_clip(self, next_clip: float, others: int) -> float:
        """The log likelihood ratio of the noised count inside the clip norm: the canary's is not.

        Uploads of zero are inside; the coins of the others hide nobody else, and are taken off.
        """
        rule, expected = self.mechanism.adaptive, self._expected
        if rule is None:
            return 0.0
        moved = math.log(next_clip / self.mechanism.l2_norm_clip) / -rule.learning_rate
        seen = (moved + rule.target_quantile - 0.5) * expected - 0.5 * others
        stddev = self.mechanism.quantile_stddev(expected) * expected
        return -0.5 * seen / stddev**2

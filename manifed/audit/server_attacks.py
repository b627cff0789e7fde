"""Attacks on the server: a client that is absent, a cohort that gives itself away."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.interface import Space
from manifed.algorithms.rsgd import RSGD
from manifed.audit.client_attacks import SHORT_STEP, ExampleAttack, pole
from manifed.federation.aggregation import ServerDraws
from manifed.federation.cohorts import FixedSize, PoissonCohort
from manifed.manifolds.base import Manifold
from manifed.manifolds.sphere import Sphere
from manifed.oracles.minibatch import Full
from manifed.privacy import accountant, participation
from manifed.privacy.audit import Scores
from manifed.privacy.events import PoissonSampled, Unsampled
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism
from manifed.privacy.noise import NoiseSource


@dataclass(frozen=True)
class ClientAttack:
    """The server's noised mean, with a canary client that uploads ten times the clip norm.

    Everybody else uploads nothing; under replace-one the canary is replaced by its mirror image.
    The clip norm of the next round, where it adapts, is seen as well.
    """

    source: NoiseSource
    mechanism: ClientMechanism
    sampling_probability: float | None
    manifold: Manifold = field(default_factory=Sphere)
    base: Tensor = field(default_factory=pole)
    space: Space = "tangent"
    num_clients: int = 8

    def claim(self, delta: float) -> float:
        """Epsilon of one round at client level."""
        rate = self.sampling_probability
        sampling = Unsampled() if rate is None else PoissonSampled(sampling_probability=rate)
        return accountant.epsilon([self.mechanism.release(sampling=sampling)], delta)

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """The log likelihood ratio of the mean along the canary and of the clip's move.

        A trial is a round. Both are Gaussian around 0 or their sensitivity, given that the canary
        takes part; the sum of their log ratios is monotone in the likelihood ratio of a cohort
        that is drawn as well.
        """
        rate = self.sampling_probability or 1.0
        cohort = PoissonCohort(sampling_probability=rate)
        expected, first = rate * self.num_clients, 1 if is_present else 1 + trials
        along = self._along()
        sign = 1.0 if is_present else self._absent_sign
        found = np.empty(trials)
        for trial in range(trials):
            server_round = first + trial
            drawn = cohort.draw(self.num_clients, server_round, 0, self.source)
            others = len([client for client in drawn if client != 0])
            uploads = torch.zeros(others, *self.base.shape, dtype=torch.float64)
            if len(drawn) > others and sign:
                own = 10.0 * self.mechanism.l2_norm_clip * sign * along
                uploads = torch.cat([own.unsqueeze(0), uploads])
            draws = ServerDraws(self.source, server_round, 0)
            done = self.mechanism.noised_mean(
                uploads, self.base, self.manifold, draws.normals, expected_cohort=expected,
                is_tangent=self.space == "tangent",
            )  # fmt: skip
            found[trial] = self._ratio(done.mean, along, expected)
            found[trial] += self._of_clip(done.next_clip, others, expected)
        return found

    @property
    def _absent_sign(self) -> float:
        return 0.0 if self.mechanism.neighboring_relation == "add-or-remove" else -1.0

    def _along(self) -> Tensor:
        """A unit vector of the space the uploads live in, of the shape of a point."""
        if self.space == "ambient":
            flat = torch.zeros(self.base.numel(), dtype=torch.float64)
            flat[0] = 1.0
            return flat.reshape(self.base.shape)
        shape = self.manifold.coords_shape(tuple(self.base.shape))
        coords = torch.linspace(1.0, 2.0, math.prod(shape), dtype=torch.float64).reshape(shape)
        u = self.manifold.from_coords(self.base, coords)
        return u / self.manifold.norm(self.base, u)

    def _ratio(self, mean: Tensor, along: Tensor, expected: float) -> float:
        """Shift over variance times the mean along the canary."""
        if self.space == "ambient":
            y = float((mean * along).sum())
        else:
            y = float(self.manifold.inner(self.base, mean, along))
        shift = self.mechanism.l2_norm_clip / expected
        stddev = self.mechanism.stddev(expected)
        return y * shift / stddev**2

    def _of_clip(self, next_clip: float, others: int, expected: float) -> float:
        """The same for the noised count of uploads inside the clip norm: the canary's is not.

        Uploads of zero are inside; the coins of the others hide nobody else, and are taken off.
        """
        if self.mechanism.adaptive is None:
            return 0.0
        rule = self.mechanism.adaptive
        moved = math.log(next_clip / self.mechanism.l2_norm_clip) / -rule.learning_rate
        seen = (moved + rule.target_quantile - 0.5) * expected - 0.5 * others
        stddev = self.mechanism.quantile_stddev(expected) * expected
        return -0.5 * seen / stddev**2


@dataclass(frozen=True)
class ParticipationAttack:
    """Two clients, a cohort of one: the outsider sees from the model who took part."""

    source: NoiseSource
    mechanism: ExampleMechanism

    @property
    def _local(self) -> ExampleAttack:
        training = RSGD(step_size=SHORT_STEP, minibatch=Full())
        return ExampleAttack(training, self.mechanism, 20, 10.0, None, self.source)

    def claim(self, delta: float) -> float:
        """Epsilon of one round against the outsider: the participation mixture."""
        local = self._local
        releases = local.training.releases(self.mechanism, local.size)
        return participation.external_epsilon(
            releases, participation_probability=0.5, num_rounds=1, delta=delta
        )

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """The local score where the attacked client took part, else a score below all others."""
        local = self._local.scores(trials, is_present=is_present)
        cohort, first = FixedSize(cohort_size=1), 1 if is_present else 1 + trials
        took_part = np.array(
            [cohort.draw(2, first + i, 0, self.source) == (0,) for i in range(trials)]
        )
        return np.where(took_part, local, -1e9)

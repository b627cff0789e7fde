"""Neighbouring worlds for the server: a client that is absent, a cohort that gives itself away."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from app.audit.worlds import SHORT_STEP, ExampleWorlds, direction, pole
from clients.minibatch import Full
from clients.rsgd import RSGD
from manifolds.sphere import Sphere
from privacy import accountant, participation
from privacy.events import PoissonSampled, Unsampled
from privacy.mechanism import ClientLens, ExampleLens
from privacy.noise import NoiseSource
from strategies.aggregation import ServerDraws, private_mean
from strategies.cohort import FixedSize, PoissonCohort
from wire.payloads import Displacement

Scores = NDArray[np.float64]
_OTHERS = 7


@dataclass(frozen=True)
class ClientWorlds:
    """The server's noised mean, with a canary client that uploads ten times the clip norm."""

    source: NoiseSource
    multiplier: float
    sampling_probability: float | None

    @property
    def lens(self) -> ClientLens:
        """The lens under attack."""
        return ClientLens(l2_norm_clip=1.0, noise_multiplier=self.multiplier)

    def claim(self, delta: float) -> float:
        """Epsilon of one round at client level."""
        rate = self.sampling_probability
        sampling = Unsampled() if rate is None else PoissonSampled(sampling_probability=rate)
        return accountant.epsilon([self.lens.release(sampling=sampling)], delta)

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """The mean along the canary's direction; a trial is a round."""
        clients, rate = _OTHERS + 1, self.sampling_probability or 1.0
        cohort = PoissonCohort(sampling_probability=rate)
        found, first = np.empty(trials), 1 if is_present else 1 + trials
        for trial in range(trials):
            server_round = first + trial
            drawn = cohort.draw(clients, server_round, 0, self.source)
            uploads = torch.zeros(len(drawn), pole().numel(), dtype=torch.float64)
            if is_present and drawn and drawn[0] == 0:
                uploads[0] = 10.0 * direction()
            draws = ServerDraws(self.source, server_round, 0)
            mean = private_mean(
                Displacement(uploads), pole(), "tangent", Sphere(), self.lens, rate * clients, draws
            )
            found[trial] = float(mean.mean["u"] @ direction())
        return found


@dataclass(frozen=True)
class ParticipationWorlds:
    """Two clients, a cohort of one: the outsider sees from the model whose turn it was."""

    source: NoiseSource
    lens: ExampleLens

    @property
    def _local(self) -> ExampleWorlds:
        training = RSGD(step_size=SHORT_STEP, minibatch=Full())
        return ExampleWorlds(training, self.lens, 20, 10.0, None, self.source)

    def claim(self, delta: float) -> float:
        """Epsilon of one round against the outsider: the participation mixture."""
        local = self._local
        releases = local.training.releases(self.lens, local.size)
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

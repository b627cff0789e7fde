"""Attacks on noise that is correlated over rounds: an example that takes part in all of them.

The canary pulls the same way in every round, so that its changes add up as the price says they may.
The attacker undoes the correlation (it knows C) and weighs round t by the shift it expects there:
the log likelihood ratio, up to scale.
"""

from dataclasses import dataclass

import numpy as np
import torch

from manifed.audit.attacks import ExampleAttack
from manifed.privacy import epsilon_bounds
from manifed_extras.correlated import CorrelatedRSGD
from manifed_extras.correlation import sensitivity


@dataclass(frozen=True, eq=False)
class CorrelatedAttack(ExampleAttack):
    """`CorrelatedRSGD` over ``num_rounds`` rounds, clients with their histories."""

    def claim(self, delta):
        """Epsilon of all rounds, as they are charged."""
        return epsilon_bounds.epsilon(self._releases, delta)

    def claim_of_one(self, delta):
        """Epsilon if the canary took part in one round: the wrong participation count."""
        once = self._releases[0].noise_multiplier / sensitivity(self._column)
        first = self._releases[0].model_copy(update={"noise_multiplier": once})
        return epsilon_bounds.epsilon([first], delta)

    @property
    def _column(self):
        assert isinstance(self.training, CorrelatedRSGD)
        return self.training.correlation.strategy(self.num_rounds)

    @property
    def _releases(self):
        rounds = range(1, self.num_rounds + 1)
        size = len(self.shard)
        found = [self.training.in_round(r).releases(self.mechanism, size) for r in rounds]
        return [release for releases in found for release in releases]

    def score(self, uploads):
        """The uploads of all rounds, (clients, *upload) each, whitened along the canary's pull."""
        shifts, rounds = np.cumsum(self._column), range(self.num_rounds)  # C 1
        weights = [self._column[: self.num_rounds - t] @ shifts[t:] for t in rounds]  # C^T C 1
        y = torch.stack([super(CorrelatedAttack, self).score([u]) for u in uploads])
        return torch.tensor(np.array(weights), dtype=y.dtype) @ y

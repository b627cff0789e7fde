"""Attacks on noise that is correlated over rounds: an example that takes part in all of them.

The canary pulls the same way in every round, so that its changes add up as the price says they may.
The attacker undoes the correlation (it knows C) and weighs round t by the shift it expects there:
the log likelihood ratio, up to scale.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manifed.algorithms.correlated import CorrelatedRSGD
from manifed.algorithms.payloads import Point
from manifed.audit.client_attacks import (
    DIMENSION,
    SHORT_STEP,
    ExampleAttack,
    direction,
    pole,
    stack,
)
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.privacy import accountant
from manifed.privacy.correlation import sensitivity
from manifed.problems.base import Examples
from manifed.problems.pca import PrincipalEigenvector


@dataclass(frozen=True)
class CorrelatedAttack(ExampleAttack):
    """`CorrelatedRSGD` over ``num_rounds`` rounds, clients with their histories."""

    def claim(self, delta: float) -> float:
        """Epsilon of all rounds, as they are charged."""
        return accountant.epsilon(self._releases, delta)

    def claim_of_one(self, delta: float) -> float:
        """Epsilon if the canary took part in one round: the wrong participation count."""
        column = self._update.correlation.strategy(self.num_rounds)
        first = self._releases[0]
        once = first.noise_multiplier / sensitivity(column)
        return accountant.epsilon([first.model_copy(update={"noise_multiplier": once})], delta)

    @property
    def _update(self) -> CorrelatedRSGD:
        assert isinstance(self.training, CorrelatedRSGD)
        return self.training

    @property
    def _releases(self) -> list[Any]:
        rounds = range(1, self.num_rounds + 1)
        found = [self._update.in_round(r).releases(self.mechanism, self.size) for r in rounds]
        return [release for releases in found for release in releases]

    def score_of(self, uploads: list[Tensor]) -> Tensor:
        """The uploads of all rounds, (clients, *upload) each, whitened along the canary's pull."""
        column = self._update.correlation.strategy(self.num_rounds)
        shifts = np.cumsum(column)  # C 1
        weights = [  # C^T C 1
            float(column[: self.num_rounds - t] @ shifts[t:]) for t in range(self.num_rounds)
        ]
        y = torch.stack(uploads) @ direction()
        return torch.tensor(weights, dtype=y.dtype) @ y

    def _uploads(self, examples: Examples, partitions: tuple[int, ...]) -> list[Tensor]:
        """What these clients upload in each round, shape (clients, *upload)."""
        setup = ClientSetup(PrincipalEigenvector(), self.training, self.mechanism)
        down = Point(pole().expand(len(partitions), DIMENSION))
        stacked, sizes = stack(examples, len(partitions)), [self.size] * len(partitions)
        uploads, memory = list[Tensor](), None
        for server_round in range(1, self.num_rounds + 1):
            seat = Seat(partitions, server_round, 0, self.training.phases[0].name)
            done = run_update(setup, seat, down, memory, stacked, sizes, self.source)
            memory = done.memory
            uploads.append(done.up.tensors()["u"] / SHORT_STEP)
        return uploads

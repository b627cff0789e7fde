"""Two neighbouring worlds for a client: the same shard with and without a canary.

The broadcast point is the pole x = e_1 of a sphere, every other example has gradient zero there,
and the canary's gradient is as long as the clip norm allows. Steps are so short that the sphere is
flat for them: then the upload is the sum of the noised gradients and the canary is the worst case.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.local_training import LocalTraining
from clients.turn import ClientHalf, Seat, take_turn
from privacy.mechanism import ExampleLens
from privacy.noise import NoiseSource
from problems.base import Examples
from problems.linear import with_squared_norms
from problems.pca import PrincipalEigenvector
from wire.payloads import Payload, Point

DIMENSION = 4
SHORT_STEP = 1e-6
"""Step size of audited halves: curvature moves a score by less than 1e-5 of its noise."""
Scores = NDArray[np.float64]


def pole() -> Tensor:
    """e_1: the broadcast point."""
    x = torch.zeros(DIMENSION, dtype=torch.float64)
    x[0] = 1.0
    return x


def direction() -> Tensor:
    """e_2: the direction in which the canary pulls."""
    u = torch.zeros(DIMENSION, dtype=torch.float64)
    u[1] = 1.0
    return u


def canary(length: float, sign: float = 1.0) -> Tensor:
    """A row whose gradient -2 (z.x)(z - (z.x) x) at the pole is ``-sign * length * e_2``."""
    side = (length / 2.0) ** 0.5
    return side * (pole() + sign * direction())


def shard(size: int, first: Tensor | None) -> Examples:
    """``size`` rows: the canary (or an all-zero row) and copies of the pole, of gradient zero."""
    rows = pole().expand(size, DIMENSION).clone()
    rows[0] = 0.0 if first is None else first
    return with_squared_norms(Examples({"z": rows}, {"z": 1}), "z")


@dataclass(frozen=True)
class ExampleWorlds:
    """A client half under attack: which half, which lens, how large a shard, which canary."""

    training: LocalTraining
    lens: ExampleLens
    size: int
    canary_length: float
    absent_sign: float | None
    """None: the canary is removed. -1: it is replaced by its mirror image (replace-one)."""
    source: NoiseSource
    turns: int = 1
    score: Callable[[list[Tensor]], Tensor] | None = None
    """Score of the uploads of all turns; the default sums them along the canary's pull."""

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """One score a trial; trials are clients with addresses of their own."""
        mirrored = (
            None if self.absent_sign is None else canary(self.canary_length, self.absent_sign)
        )
        first = canary(self.canary_length) if is_present else mirrored
        chunk, found = 5000, list[Tensor]()
        for start in range(0, trials, chunk):
            size = min(chunk, trials - start)
            offset = start if is_present else start + trials
            found.append(self._run(shard(self.size, first), size, offset))
        return torch.cat(found).numpy()

    def _run(self, examples: Examples, trials: int, offset: int) -> Tensor:
        stacked = Examples(
            {k: t.expand(trials, *t.shape) for k, t in examples.tensors.items()},
            examples.feature_ndim,
        )
        half = ClientHalf(PrincipalEigenvector(), self.training, self.lens)
        partitions = tuple(range(offset, offset + trials))
        down = Point(pole().expand(trials, DIMENSION))
        uploads: list[Tensor] = []
        for turn in range(self.turns):
            seat = Seat(partitions, turn + 1, 0, self.training.phases[0].name)
            memory = self.training.initial_memory(down.x)
            up = self._turn(half, seat, down, memory, stacked, trials)
            uploads.append(up.tensors()["u"] / SHORT_STEP)
        score = self.score or _along_the_canary
        return score(uploads)

    def _turn(
        self,
        half: ClientHalf,
        seat: Seat,
        down: Payload,
        memory: object,
        stacked: Examples,
        trials: int,
    ) -> Payload:
        sizes = [self.size] * trials
        return take_turn(half, seat, down, memory, stacked, sizes, self.source).up  # type: ignore[arg-type]

    def with_lens(self, lens: ExampleLens) -> "ExampleWorlds":
        """The same attack on another lens (planted faults)."""
        return replace(self, lens=lens)


def _along_the_canary(uploads: list[Tensor]) -> Tensor:
    total = torch.stack(uploads).sum(0)
    return total @ direction()


@dataclass(frozen=True)
class CorrectionWorlds(ExampleWorlds):
    """Variance reduction under attack: a record whose gradient is another after the first step.

    All other rows pull the iterate along e_2 with the full clip norm. The canary is orthogonal to a
    point half a step ahead of the anchor (its gradient turns round), or a step behind it (its
    gradient grows), and so long that gradient and change exceed every clip norm. The others'
    gradients, clipped, stay what they are: their corrections are zero and hide nothing.
    """

    turns_round: bool = True
    """For two clips; where the change is clipped as one vector, the gradient grows along one."""

    def scores(self, trials: int, *, is_present: bool) -> Scores:
        """Displacement along e_2."""
        assert self.lens.l2_norm_clip is not None
        pull = self.lens.l2_norm_clip
        rows = canary(4.0 * pull).expand(self.size, -1).clone()
        rows[0] = 0.0
        if is_present:
            margin = SHORT_STEP * pull * (-0.5 if self.turns_round else 1.0)
            rows[0] = (direction() + margin * pole()) * (100.0 / SHORT_STEP) ** 0.5
        examples = with_squared_norms(Examples({"z": rows}, {"z": 1}), "z")
        found: list[Tensor] = []
        for start in range(0, trials, 1000):
            size = min(1000, trials - start)
            offset = start if is_present else start + trials
            found.append(self._run(examples, size, offset))
        return torch.cat(found).numpy()

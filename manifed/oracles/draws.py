"""The randomness of one client update, or of those of a stacked cohort.

A `Draws` fixes who (partition), when (round, attempt) and in which phase; an oracle adds the stream
and the step. So a draw depends on its address alone: not on the order of draws, not on the cohort
that happens to be stacked with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.privacy.noise import NoiseSource, Stream

STEPS_PER_PHASE = 1 << 20
"""Oracle queries that one phase of one update may ask."""


@dataclass(frozen=True)
class Draws:
    """Addressed randomness; ``partition`` an int for one client, a tuple for a cohort."""

    source: NoiseSource
    partition: int | tuple[int, ...]
    server_round: int
    attempt: int = 0
    phase_index: int = 0
    device: str = "cpu"

    def _step(self, step: int) -> int:
        if not 0 <= step < STEPS_PER_PHASE:
            raise ValueError(
                f"Expected 0 <= step < {STEPS_PER_PHASE}, got {step}; use fewer local steps"
            )
        return self.phase_index * STEPS_PER_PHASE + step

    def normals(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """Standard normals, shape ``shape`` or ``(C, *shape)``, float64."""
        return self.source.normals(
            tuple(shape),
            stream=stream,
            partition=self.partition,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self._step(step),
        ).to(self.device)

    def uniforms(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """Uniforms in (0, 1) with 53 bits, shape ``shape`` or ``(C, *shape)``."""
        return self.source.uniforms(
            tuple(shape),
            stream=stream,
            partition=self.partition,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self._step(step),
        ).to(self.device)

    def index(self, count: int, step: int = 0) -> Tensor:
        """A uniform index in 0..count-1, shape () or (C,): Option 2 of Algorithms 2 and 3."""
        drawn = self.uniforms((1,), Stream.ITERATE_CHOICE, step)[..., 0]
        return (drawn * count).to(torch.int64).clamp_max(count - 1)

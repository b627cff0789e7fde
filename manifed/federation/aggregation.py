"""From a cohort's uploads to one mean per field, and the server's randomness of an exchange."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.algorithms.payloads import Payload
from manifed.privacy.noise import NoiseSource, Stream


@dataclass(frozen=True)
class ServerDraws:
    """Addressed randomness of the server in one round."""

    source: NoiseSource
    server_round: int
    attempt: int
    phase_index: int = 0

    def normals(self, shape: tuple[int, ...], step: int) -> Tensor:
        """Standard normals of the server's noise stream."""
        return self.source.normals(
            shape,
            stream=Stream.SERVER_NOISE,
            partition=0,
            server_round=self.server_round,
            attempt=self.attempt,
            step=self.phase_index * 16 + step,
        )

    def uniform(self) -> float:
        """One uniform for Option 2's choice."""
        drawn = self.source.uniforms(
            (1,),
            stream=Stream.ITERATE_CHOICE,
            partition=0,
            server_round=self.server_round,
            attempt=self.attempt,
            step=(1 << 24) - 1,
        )
        return float(drawn[0])


@dataclass(frozen=True)
class Mean:
    """What became of the uploads of an exchange: an array a field, none where nothing is."""

    fields: Mapping[str, Tensor]
    next_clip: float | None = None
    """The adapted clip norm, where a mechanism noised the mean."""


def weighted_mean(uploads: Payload, weights: Tensor) -> dict[str, Tensor]:
    """sum_i w_i u_i of every field, with weights normalised to one."""
    share = weights / weights.sum()
    means: dict[str, Tensor] = {}
    for name, stacked in uploads.tensors().items():
        columns = stacked.to(share.dtype).flatten(1)
        mean = torch.matmul(share.unsqueeze(0).unsqueeze(0), columns.unsqueeze(0))
        means[name] = mean.reshape(stacked.shape[1:]).to(stacked.dtype)
    return means


def only_field(uploads: Payload) -> tuple[str, Tensor]:
    """Name and stacked array of a payload of one field, as client-level privacy takes it.

    Raises:
        ValueError: for a payload of several fields.
    """
    fields = uploads.tensors()
    if len(fields) != 1:
        raise ValueError(
            f"Expected a payload of one field under client-level privacy, got {list(fields)}; "
            "use output = 'last-iterate'"
        )
    (found,) = fields.items()
    return found

"""The server's side of the lens: from a cohort's uploads to one mean per field.

Identity mechanism: the weighted mean. Client-level mechanism: each upload is clipped in the metric
at the broadcast point (or in the ambient norm), summed with uniform weights, divided by the
*expected* cohort size, and noised once. An empty cohort still releases its noise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from manifolds.base import Manifold
from privacy.clipping import clip_factors
from privacy.mechanism import ClientLens
from privacy.noise import NoiseSource, Stream
from strategies.server_half import Space
from wire.payloads import Payload


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


def weighted_mean(uploads: Payload, weights: Tensor) -> dict[str, Tensor]:
    """sum_i w_i u_i of every field, with weights normalised to one."""
    share = weights / weights.sum()
    return {
        name: torch.tensordot(share, stacked, dims=([0], [0]))
        for name, stacked in uploads.tensors().items()
    }


def private_mean(
    uploads: Payload,
    base: Tensor,
    space: Space,
    manifold: Manifold,
    lens: ClientLens,
    expected_cohort: float,
    draws: ServerDraws,
) -> dict[str, Tensor]:
    """The noised mean of clipped uploads, for a payload of one field.

    Guarantees: adding or removing one client moves the un-noised mean by at most
    ``l2_norm_clip / expected_cohort`` in the norm at ``base``; the result carries
    N(0, stddev^2) in every orthonormal coordinate of the space the uploads live in.
    """
    fields = uploads.tensors()
    if len(fields) != 1:
        raise ValueError(
            f"Expected a payload of one field under client-level privacy, got {list(fields)}; "
            "use output = 'last-iterate'"
        )
    ((name, stacked),) = fields.items()
    if space == "tangent":
        norms = manifold.norm(base.unsqueeze(0), stacked)
        normals = draws.normals(manifold.coords_shape(tuple(base.shape)), step=0)
        noise = manifold.from_coords(base, normals)
    else:
        norms = stacked.flatten(1).norm(dim=1)
        noise = draws.normals(tuple(base.shape), step=0)
    factors = manifold.expand_scalar(clip_factors(norms, lens.l2_norm_clip))
    total = torch.where(factors > 0, factors * stacked, torch.zeros_like(stacked)).sum(0)
    return {name: total / expected_cohort + lens.stddev(expected_cohort) * noise}

"""The server's side of the mechanism: from a cohort's uploads to one mean per field.

Identity mechanism: the weighted mean. Client-level mechanism: each upload is clipped in the metric
at the broadcast point (or in the ambient norm), summed with uniform weights, divided by the
*expected* cohort size, and noised once. An empty cohort still releases its noise.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from manifed.algorithms.interface import Space
from manifed.algorithms.payloads import Payload
from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.privacy.clipping import clipped
from manifed.privacy.mechanism import ClientMechanism
from manifed.privacy.noise import NoiseSource, Stream

LARGEST_CLIP = 1e100
"""An adapted clip norm stays between 1e-100 and 1e100, the sizes that a config may name."""
_STEEPEST = 2 * math.log(LARGEST_CLIP)


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
        name: torch.einsum("c,c...->...", share, stacked.to(share.dtype)).to(stacked.dtype)
        for name, stacked in uploads.tensors().items()
    }


@dataclass(frozen=True)
class PrivateMean:
    """The noised mean of a cohort, and the clip norm of the next round."""

    mean: dict[str, Tensor]
    next_clip: float


def private_mean(
    uploads: Payload,
    base: Tensor,
    space: Space,
    manifold: Manifold,
    mechanism: ClientMechanism,
    expected_cohort: float,
    draws: ServerDraws,
    l2_norm_clip: float | None = None,
) -> PrivateMean:
    """The noised mean of clipped uploads, for a payload of one field.

    Guarantees: adding or removing one client moves the un-noised mean by at most
    ``l2_norm_clip / expected_cohort`` (1 + 1e-9) in the norm at ``base``, by a tangent vector where
    uploads are tangent, whatever it uploads (zero where not finite); the result carries
    N(0, stddev^2) in every orthonormal coordinate of the space the uploads live in, computed in
    float64 and rounded to the uploads' type only after the noise. Mean and
    adapted clip norm together are one Gaussian release of ``mechanism.noise_multiplier``.

    Raises:
        ValueError: for a payload of several fields.
    """
    fields = uploads.tensors()
    if len(fields) != 1:
        raise ValueError(
            f"Expected a payload of one field under client-level privacy, got {list(fields)}; "
            "use output = 'last-iterate'"
        )
    ((name, given),) = fields.items()
    stacked, base = given.to(torch.float64), base.to(torch.float64)
    clip = mechanism.l2_norm_clip if l2_norm_clip is None else l2_norm_clip
    if space == "tangent":
        norms = manifold.norm_bound(base.unsqueeze(0), stacked)
        normals = draws.normals(manifold.coords_shape(tuple(base.shape)), step=0).to(base.device)
        noise = manifold.from_coords(base, normals)
    else:
        flat = stacked.flatten(1)
        norms = Euclidean().norm_bound(flat, flat)
        noise = draws.normals(tuple(base.shape), step=0).to(base.device)
    total = clipped(stacked, norms, clip).sum(0)
    if space == "tangent":
        total = manifold.tangent_part(base, total)
    mean = total / expected_cohort + mechanism.stddev(expected_cohort, clip) * noise
    return PrivateMean(
        {name: mean.to(given.dtype)}, _adapted(mechanism, clip, norms, expected_cohort, draws)
    )


def _adapted(
    mechanism: ClientMechanism,
    clip: float,
    norms: Tensor,
    expected_cohort: float,
    draws: ServerDraws,
) -> float:
    """Andrew et al. 2021, Algorithm 1: the clip norm moves towards the target quantile."""
    if mechanism.adaptive is None:
        return clip
    bits = (norms <= clip).to(torch.float64) - 0.5
    noise = mechanism.quantile_stddev(expected_cohort) * float(draws.normals((1,), step=1)[0])
    share = float(bits.sum()) / expected_cohort + noise + 0.5
    exponent = -mechanism.adaptive.learning_rate * (share - mechanism.adaptive.target_quantile)
    after = clip * math.exp(min(max(exponent, -_STEEPEST), _STEEPEST))
    return min(max(after, 1 / LARGEST_CLIP), LARGEST_CLIP)

"""From a cohort's uploads to one mean per field, and the server's randomness of an exchange."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class Mean(NamedTuple):
    """What became of the uploads of an exchange: an array a field, none where nothing is."""

    fields: Mapping[str, Tensor]
    next_clip: float | None = None
    """The adapted clip norm, where a mechanism noised the mean."""


def weighted_mean(
    uploads: Payload,
    weights: Tensor,
    chunks: Sequence[int] = (),
    asked: Tensor | None = None,
) -> dict[str, Tensor]:
    """sum_i w_i u_i of every field, with weights normalised to one.

    Each of ``chunks`` (neighbouring rows; (): all) is summed first, and their sums in order: the
    same bits wherever a chunk was summed. There the weight of all that were ``asked`` is known, not
    of those that replied; so that is what divides, and the quotient of both mends it.
    """
    fields, total = uploads.tensors(), weights.sum()
    asked = total if asked is None else asked
    share = weights / asked
    many = len(chunks) > 1
    sums = summed(chunk_sums(fields, share, chunks)) if many else weighted_sum(fields, share)
    return mean_of(sums, fields, total, asked)


def mean_of_all(fields: Mapping[str, Tensor], share: Tensor) -> dict[str, Tensor]:
    """`weighted_mean` where everybody replied and nothing was in chunks, with shares of one."""
    return _in_types_of(fields, weighted_sum(fields, share))


def chunk_sums(
    fields: Mapping[str, Tensor], share: Tensor, chunks: Sequence[int]
) -> list[dict[str, Tensor]]:
    """`weighted_sum` of each of ``chunks``, whose rows stand in memory of their own."""
    each = zip(*[t.split(list(chunks)) for t in fields.values()], strict=True)
    stacks = [dict(zip(fields, [t.clone() for t in one], strict=True)) for one in each]
    shares = share.split(list(chunks))
    return [weighted_sum(*one) for one in zip(stacks, shares, strict=True)]


def weighted_sum(fields: Mapping[str, Tensor], share: Tensor) -> dict[str, Tensor]:
    """sum_i share_i u_i of every field, in the type of ``share``."""
    sums: dict[str, Tensor] = {}
    for name, stacked in fields.items():
        columns = stacked if stacked.dim() == 2 else stacked.flatten(1)
        if columns.dtype != share.dtype:
            columns = columns.to(share.dtype)
        total = torch.mv(columns.contiguous().t(), share)
        sums[name] = total if stacked.dim() == 2 else total.view(stacked.shape[1:])
    return sums


def summed(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sum of every field, one after the other in their order."""
    first, *others = parts
    sums = dict(first)
    for part in others:
        sums = {name: total + part[name] for name, total in sums.items()}
    return sums


def mean_of(
    sums: Mapping[str, Tensor], like: Mapping[str, Tensor], total: Tensor, asked: Tensor
) -> dict[str, Tensor]:
    """Means out of sums by the weight ``asked``, of those who weigh ``total``; types ``like``."""
    is_whole = bool(total == asked)
    scaled = sums if is_whole else {name: t * (asked / total) for name, t in sums.items()}
    return _in_types_of(like, scaled)


def _in_types_of(like: Mapping[str, Tensor], sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sums in the types of the fields ``like``."""
    return {k: t if t.dtype == like[k].dtype else t.to(like[k].dtype) for k, t in sums.items()}


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

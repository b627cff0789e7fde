"""From Flower replies (or the rows of a stacked payload) to usable uploads: every check, once."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from flwr.app import Message
from torch import Tensor

from manifolds.base import Manifold
from strategies.replies import Replies
from strategies.server_half import Space
from wire.letters import BadLetter, Header, check_tensor, read_header, read_payload
from wire.payloads import Payload

_TANGENCY = 1e-6
"""Relative size of a normal part that rounding may leave; anything larger is refused."""


@dataclass(frozen=True)
class Expectation:
    """What a usable reply looks like in this phase."""

    header: Header
    up: type[Payload]
    base: Tensor
    space: Space
    manifold: Manifold
    timeout: float

    def empty(self) -> Payload:
        """The stacked payload of nobody."""
        return self.up(*[self.base.new_zeros(0, *self.base.shape) for _ in self.up.names()])


def read_replies(
    expected: Expectation,
    down_bytes: int,
    partitions: tuple[int, ...],
    by_client: Mapping[int, Message],
) -> Replies:
    """The usable uploads in the order of ``partitions``, and a reason for each other client."""
    good: list[Payload] = []
    kept: list[int] = []
    failures: dict[int, str] = {}
    for i in partitions:
        try:
            good.append(_open(expected, i, by_client.get(i)))
            kept.append(i)
        except BadLetter as bad:
            failures[i] = str(bad)
    return Replies(
        partitions=tuple(kept),
        uploads=expected.up.stack(good) if good else expected.empty(),
        failures=failures,
        bytes_down=down_bytes * len(partitions),
        bytes_up=sum(payload.num_bytes() for payload in good),
    )


def _open(expected: Expectation, partition: int, reply: Message | None) -> Payload:
    if reply is None:
        raise BadLetter(f"no reply within {expected.timeout:g} s")
    if reply.has_error():
        raise BadLetter(f"error {reply.error.code}: {reply.error.reason}")
    theirs, ours = read_header(reply.content), expected.header
    mine = (ours.config_sha256, ours.server_round, ours.attempt, ours.phase, partition)
    got = (
        theirs.config_sha256,
        theirs.server_round,
        theirs.attempt,
        theirs.phase,
        theirs.partition_id,
    )
    if got != mine:
        raise BadLetter(f"Expected (config, round, attempt, phase, client) {mine}, got {got}")
    base = expected.base
    payload = read_payload(reply.content, expected.up, tuple(base.shape), base.dtype)
    for name, u in payload.tensors().items():
        if not bool(_is_tangent(expected, u.unsqueeze(0)).all()):
            raise BadLetter(f"Expected {name} tangent at the broadcast point, got a normal part")
    return payload


def refuse_bad_rows(expected: Expectation, replies: Replies) -> Replies:
    """The checks of `read_replies` on a stacked payload, row by row only where a row is bad."""
    stacked = replies.uploads.tensors()
    good = torch.ones(len(replies.partitions), dtype=torch.bool, device=expected.base.device)
    for u in stacked.values():
        good &= torch.isfinite(u).flatten(1).all(dim=1)
        good &= _is_tangent(expected, u)
    if bool(good.all()):
        return replies
    failures = dict(replies.failures)
    for row in (~good).nonzero()[:, 0].tolist():
        failures[replies.partitions[row]] = _row_failure(expected, stacked, row)
    rows = good.nonzero()[:, 0]
    kept = tuple(replies.partitions[i] for i in rows.tolist())
    uploads = replies.uploads.take(rows)
    return Replies(kept, uploads, failures, replies.bytes_down, uploads.num_bytes())


def _is_tangent(expected: Expectation, stacked: Tensor) -> Tensor:
    """Which rows of (C, *point) are tangent at the base, within rounding."""
    if expected.space != "tangent":
        return torch.ones(stacked.shape[0], dtype=torch.bool, device=stacked.device)
    rest = (expected.manifold.proju(expected.base, stacked) - stacked).flatten(1).norm(dim=1)
    return rest <= _TANGENCY * (1.0 + stacked.flatten(1).norm(dim=1))


def _row_failure(expected: Expectation, stacked: Mapping[str, Tensor], row: int) -> str:
    base = expected.base
    try:
        for name, u in stacked.items():
            check_tensor(name, u[row], tuple(base.shape), base.dtype)
    except BadLetter as bad:
        return str(bad)
    return "Expected an upload tangent at the broadcast point, got a normal part"

"""From Flower replies (or the rows of a stacked payload) to usable uploads: every check, once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.logger import log
from torch import Tensor

from manifed.algorithms.interface import Space
from manifed.algorithms.payloads import Payload
from manifed.federation.header import Header
from manifed.federation.replies import Replies, plain
from manifed.flower.records import (
    BadMessage,
    check_tensor,
    read_header,
    read_noise_origin,
    read_payload,
)
from manifed.manifolds.base import Manifold
from manifed.manifolds.defects import frobenius, largest_allowed, tolerance


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


def answers_by_node(
    messages: Sequence[Message], answers: Iterable[Message]
) -> dict[int, list[Message]]:
    """The answers to ``messages`` by the node that was asked, in the order they came.

    An answer counts only for the message it replies to and only from the node that was asked (or
    as an error of the SuperLink's own about that message); any other is logged and left out.
    """
    came = list(answers)  # a lazy grid sends, and so names the messages, only now
    asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    by_node: dict[int, list[Message]] = {}
    for answer in came:
        node, sender = _asked_node(answer, asked)
        if node is None:
            log(30, "A reply of node %s to no message of this phase is left out", plain(sender))
        elif sender == node or (sender == SUPERLINK_NODE_ID and answer.has_error()):
            by_node.setdefault(node, []).append(answer)
        else:
            log(30, "A reply of node %s to node %d's message is left out", plain(sender), node)
    return by_node


def _asked_node(answer: Message, asked: Mapping[str, int]) -> tuple[int | None, object]:
    """(the node that ``answer``'s message was for, the node that sent the answer)."""
    try:
        return asked.get(answer.metadata.reply_to_message_id), answer.metadata.src_node_id
    except Exception as error:
        return None, type(error).__name__


def read_replies(
    expected: Expectation,
    down_bytes: int,
    partitions: tuple[int, ...],
    by_client: Mapping[int, Sequence[Message]],
) -> Replies:
    """The usable uploads in the order of ``partitions``, and a reason for each other client.

    Of several replies of one client the first usable one counts.
    """
    good: list[Payload] = []
    kept: list[int] = []
    failures: dict[int, str] = {}
    origins: set[str] = set()
    for i in partitions:
        try:
            payload, origin = _first_usable(expected, i, by_client.get(i, ()))
            good.append(payload)
            kept.append(i)
            origins.add(origin)
        except BadMessage as bad:
            failures[i] = plain(bad)
    return Replies(
        partitions=tuple(kept),
        uploads=expected.up.stack(good) if good else expected.empty(),
        failures=failures,
        bytes_down=down_bytes * len(partitions),
        bytes_up=sum(payload.num_bytes() for payload in good),
        noise_origins=frozenset(origins),
    )


def _first_usable(
    expected: Expectation, partition: int, replies: Sequence[Message]
) -> tuple[Payload, str]:
    """The payload of the first usable reply, and where it says that its noise came from."""
    refusals: list[BadMessage] = []
    for reply in replies:
        try:
            return _open(expected, partition, reply), read_noise_origin(reply.content)
        except BadMessage as bad:
            refusals.append(bad)
        except Exception as error:  # whatever a reply can make a check do is that client's failure
            refusals.append(BadMessage(f"not readable: {type(error).__name__}: {error}"))
    raise refusals[0] if refusals else BadMessage(f"no reply within {expected.timeout:g} s")


def _open(expected: Expectation, partition: int, reply: Message) -> Payload:
    if reply.has_error():
        raise BadMessage(f"error {reply.error.code}: {plain(reply.error.reason)}")
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
        raise BadMessage(
            f"Expected (config, round, attempt, phase, client) {_brief(mine)}, got {_brief(got)}"
        )
    base = expected.base
    payload = read_payload(reply.content, expected.up, tuple(base.shape), base.dtype)
    for name, u in payload.tensors().items():
        if not bool(_is_tangent(expected, u.unsqueeze(0)).all()):
            raise BadMessage(_misfit(expected, name, u))
    return payload


def _brief(values: tuple[str | int, ...]) -> str:
    return "(" + ", ".join(str(value)[:12] for value in values) + ")"


def refuse_bad_rows(expected: Expectation, replies: Replies) -> Replies:
    """The checks of `read_replies` on a stacked payload, row by row only where a row is bad."""
    failures = {i: plain(reason) for i, reason in replies.failures.items()}
    stacked = replies.uploads.tensors()
    good = torch.ones(len(replies.partitions), dtype=torch.bool, device=expected.base.device)
    for u in stacked.values():
        good &= _fitting_rows(expected, u)
    if bool(good.all()):
        return replace(replies, failures=failures)
    for row in (~good).nonzero()[:, 0].tolist():
        failures[replies.partitions[row]] = plain(_row_failure(expected, stacked, row))
    rows = good.nonzero()[:, 0]
    kept = tuple(replies.partitions[i] for i in rows.tolist())
    uploads = replies.uploads.take(rows)
    return replace(
        replies,
        partitions=kept,
        uploads=uploads,
        failures=failures,
        bytes_up=uploads.num_bytes(),
    )


def _fitting_rows(expected: Expectation, stacked: Tensor) -> Tensor:
    """`_is_tangent`; a row that makes the check of the whole stack fail is bad alone."""
    try:
        return _is_tangent(expected, stacked)
    except Exception:
        if stacked.shape[0] == 1:
            return torch.zeros(1, dtype=torch.bool, device=stacked.device)
        return torch.cat([_fitting_rows(expected, row) for row in stacked.split(1)])


def _is_tangent(expected: Expectation, stacked: Tensor) -> Tensor:
    """Which rows of (C, *point) are finite, of sane size, and tangent at the base to rounding."""
    is_sane = stacked.flatten(1).norm(dim=1) <= largest_allowed(stacked.dtype)
    if expected.space != "tangent":
        return is_sane
    defect = expected.manifold.tangency_defect(expected.base, stacked)
    return is_sane & (defect <= tolerance(stacked.dtype))


def _misfit(expected: Expectation, name: str, u: Tensor) -> str:
    """Why one upload, of the right shape and type, is refused."""
    length, bound = float(frobenius(u, u.dim())), largest_allowed(u.dtype)
    if not length <= bound:
        return f"Expected {name} of Euclidean norm at most {bound:g}, got {length:.3g}"
    defect = float(expected.manifold.tangency_defect(expected.base, u))
    return (
        f"Expected {name} tangent at the broadcast point within {tolerance(u.dtype):g}, got a "
        f"relative normal part of {defect:.3g}; take manifold.proju of it"
    )


def _row_failure(expected: Expectation, stacked: Mapping[str, Tensor], row: int) -> str:
    base = expected.base
    for name, u in stacked.items():
        try:
            check_tensor(name, u[row], tuple(base.shape), base.dtype)
            if not bool(_is_tangent(expected, u[row].unsqueeze(0))):
                return _misfit(expected, name, u[row])
        except BadMessage as bad:
            return str(bad)
        except Exception as error:
            return f"not readable: {type(error).__name__}: {error}"
    raise AssertionError("unreachable: a refused row has a tensor that does not fit")

"""What came back in one phase, which of it the server takes, and when a round goes on without all.

An upload must be finite, of sane size and, where the phase says so, tangent or on the manifold.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.algorithm import UploadPlace
from manifed.algorithms.payloads import Payload
from manifed.manifolds.base import LARGEST, TOLERANCE, Manifold, frobenius
from manifed.privacy.events import Frozen

Kind = Literal["late", "unavailable", "absent", "unusable"]
"""What `Failure` says of each."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class BadMessage(ValueError):
    """A message that does not hold what it must; the text says which field and why."""


@dataclass(frozen=True)
class Header:
    """Which config, round, attempt and phase a payload belongs to, and whose it is."""

    config_sha256: str
    server_round: int
    attempt: int
    phase: str
    partition_id: int
    last_accepted_round: int = 0

    def continues(self, server_round: int, attempt: int) -> bool:
        """Whether memory that was written then is the one to go on with.

        It is when it was written in this attempt, or in the last round that the server accepted
        from this client; else the client starts from its initial memory.
        """
        is_this_attempt = (server_round, attempt) == (self.server_round, self.attempt)
        return is_this_attempt or server_round == self.last_accepted_round


@dataclass(frozen=True)
class Failure:
    """Why a client's reply is not used.

    "late": none came in time; "unavailable": its node is not there, or died; "absent": its node
    answered with an error (its own log says why); "unusable": what came is no upload of the phase.
    """

    kind: Kind
    text: str
    """One line; a client or a node may have chosen it."""


def plain(text: object) -> str:
    """A client's text in at most 200 printable characters, without line breaks."""
    start = str(text)[:200]
    return "".join(character if character.isprintable() else " " for character in start).strip()


class Replies(NamedTuple):
    """The usable uploads of a phase, stacked in the order of ``partitions``."""

    partitions: tuple[int, ...]
    uploads: Payload
    failures: Mapping[int, Failure] = MappingProxyType({})
    bytes_down: int = 0
    noise_origins: frozenset[str] = frozenset()
    """Where the keys of the clients' noise came from, as their replies say (flower/records.py)."""
    nodes: Mapping[int, int] = MappingProxyType({})
    """Which node answers for a client, where there are nodes: failures name it."""

    def of_rows(self, rows: Sequence[int]) -> "Replies":
        """Some of the replies, ``rows`` ascending."""
        device = next(iter(vars(self.uploads).values())).device
        uploads = self.uploads.take(torch.tensor(rows, dtype=torch.long, device=device))
        return self._replace(partitions=tuple(self.partitions[i] for i in rows), uploads=uploads)

    def without(self, failures: Mapping[int, Failure]) -> "Replies":
        """The replies of the others; who failed before keeps the failure that it has."""
        if not failures:
            return self
        left = [row for row, i in enumerate(self.partitions) if i not in failures]
        return self.of_rows(left)._replace(failures={**failures, **self.failures})

    def zero_filled(self, partitions: tuple[int, ...]) -> "Replies":
        """Returns the replies with a zero row for each of ``partitions`` that sent none."""
        if self.partitions == partitions:
            return self
        rows = torch.tensor([bisect_left(partitions, i) for i in self.partitions], dtype=torch.long)
        whole = [
            t.new_zeros(len(partitions), *t.shape[1:]).index_copy(0, rows.to(t.device), t)
            for t in vars(self.uploads).values()
        ]
        uploads = type(self.uploads)(*whole)
        return self._replace(partitions=partitions, uploads=uploads)

    def told(self, client: int, failure: Failure) -> Failure:
        """The failure in short printable words, with the client's node where it is known."""
        node = f" (node {self.nodes[client]})" if client in self.nodes else ""
        return replace(failure, text=plain(failure.text) + node)


class ReplyPolicy(Frozen):
    """When a round goes on without everybody.

    A reply that is an error, is missing, has another config hash, round or phase, another shape, an
    entry that is not finite, or is not tangent counts as a failure. Whoever was invited has paid
    (the ledger is charged before the messages leave), so a retry costs privacy and says so.

    Under client-level privacy none of this decides: whether a reply is usable is the client's own
    datum, so a failed one counts as the zero vector and the round goes on; only ``timeout`` is
    used, and "retry" and "abort" are refused.
    """

    on_failure: Literal["proceed", "retry", "abort"] = "proceed"
    """Go on with the others, send the round again (which is charged again), or stop."""
    min_fraction: float = Field(default=0.5, gt=0, le=1)
    """Proceed needs at least this share of the cohort."""
    max_attempts: int = Field(default=3, ge=1)
    """The most attempts of one round, the first one included."""
    timeout: float = Field(default=3600.0, gt=0)
    """Seconds to wait for the replies of one phase."""

    @property
    def attempts(self) -> int:
        """The most attempts of one round, no crash counted."""
        return self.max_attempts if self.on_failure == "retry" else 1

    def refusal(
        self, replies: Replies, cohort_size: int, *, needs_everyone: bool = False
    ) -> str | None:
        """Why the round may not use these replies, in one line; None: it may."""
        is_all = needs_everyone or self.on_failure != "proceed"
        count = len(replies.partitions)
        failures = replies.failures
        if not failures or not (is_all or count < self.min_fraction * cohort_size):
            return None
        some = "; ".join(f"client {i}: {failures[i].text}" for i in sorted(failures)[:3])
        more = f" and {len(failures) - 3} more" if len(failures) > 3 else ""
        needed = "all" if is_all else f"{self.min_fraction:g} of them"
        return (
            f"Expected replies from {cohort_size} clients (policy {self.on_failure!r}: {needed}), "
            f"got {count}; {some}{more}"
        )

    def check_client_level(self) -> None:
        """Refuse a policy by which one client's reply could end or repeat a round.

        Raises:
            ValueError: naming the field and what to use.
        """
        if self.on_failure != "proceed":
            raise ValueError(
                "federation.replies.on_failure: expected 'proceed' with privacy.kind = "
                f"'client-level', got {self.on_failure!r}; a failed reply counts as the zero "
                "vector there, because a stop or a retry would show it"
            )


class Expectation(NamedTuple):
    """Where the uploads of a phase live, by field; tangent ones at ``base``, shape (*point)."""

    base: Tensor
    places: Mapping[str, UploadPlace]
    manifold: Manifold

    def checked(self, replies: Replies) -> Replies:
        """The replies whose every field fits; a reason, and the node if known, for each other one.

        Reasons are made short and printable here, whatever a client or a node wrote into them.
        All rows are checked at once, and one by one only where a row is bad.
        """
        stacked = vars(replies.uploads)
        found = {i: replies.told(i, failure) for i, failure in replies.failures.items()}
        replies = replies._replace(failures=found) if found else replies
        try:
            if all(bool(self._fits(name, u).all()) for name, u in stacked.items()):
                return replies
        except Exception:  # a row may make the check of the whole stack fail
            pass
        bad: dict[int, Failure] = {}
        for row, i in enumerate(replies.partitions):
            try:
                flaws = (self._flaw(name, u[row]) for name, u in stacked.items())
                why = next((flaw for flaw in flaws if flaw is not None), None)
            except Exception as error:
                why = f"not readable: {type(error).__name__}: {error}"
            if why is not None:
                bad[i] = replies.told(i, Failure("unusable", why))
        return replies.without(bad)

    def _fits(self, name: str, stacked: Tensor) -> Tensor:
        """Which rows of (C, ...) are finite, of sane size, and where they belong to rounding."""
        place = self.places[name]
        if not stacked.is_floating_point():
            return torch.full((stacked.shape[0],), place == "any", device=stacked.device)
        is_sane = torch.linalg.vector_norm(stacked.flatten(1), dim=1) <= LARGEST[stacked.dtype]
        if place in ("ambient", "any") or self.manifold.is_whole_space:
            return is_sane
        return is_sane & (self._defect(place, stacked) <= TOLERANCE[stacked.dtype])

    def _defect(self, place: UploadPlace, u: Tensor) -> Tensor:
        """How far uploads are from where they belong."""
        if place == "point":
            return self.manifold.membership_defect(u)
        return self.manifold.tangency_defect(self.base, u)

    def _flaw(self, name: str, u: Tensor) -> str | None:
        """Why one field of one client's upload is refused; None: it is not."""
        if bool(self._fits(name, u.unsqueeze(0))):
            return None
        place = self.places[name]
        like = u if place == "any" else self.base
        found = flaw(name, u, tuple(like.shape), like.dtype)
        if found is not None:
            return found
        length = float(frobenius(u, u.dim()))
        bound = LARGEST[u.dtype]
        if not length <= bound:
            return f"Expected {name} of Euclidean norm at most {bound:g}, got {length:.3g}"
        within = TOLERANCE[u.dtype]
        defect = float(self._defect(place, u))
        if place == "point":
            return (
                f"Expected {name} on {self.manifold.name} within {within:g}, got a "
                f"relative distance of {defect:.3g}; take manifold.projx of it"
            )
        return (
            f"Expected {name} tangent at the broadcast point within {within:g}, got a "
            f"relative normal part of {defect:.3g}; take manifold.proju of it"
        )


def flaw(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
    """What is wrong with one array: its shape, its type, entries that are not finite; or None."""
    if tuple(tensor.shape) != tuple(shape):
        return f"Expected {name} of shape {tuple(shape)}, got {tuple(tensor.shape)}"
    if tensor.dtype != dtype:
        return f"Expected {name} of dtype {dtype}, got {tensor.dtype}"
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        return f"Expected finite entries in {name}, got {bad} of {tensor.numel()} not so"
    return None

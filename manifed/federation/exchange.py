"""One exchange: what is asked, the replies, and when a round goes on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.algorithm import Phase
from manifed.algorithms.payloads import Down, Partitions, Payload
from manifed.errors import one_line
from manifed.privacy.events import Frozen

Kind = Literal["late", "unavailable", "absent", "unusable"]
"""What `Failure` says of each."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class BadMessage(ValueError):
    """Error: a message lacks what it must hold; the text says which field and why."""


class Header(NamedTuple):
    """The address of a payload: its config, round, attempt, phase and client."""

    config_sha256: str
    server_round: int
    attempt: int
    phase: str
    partition_id: int
    last_accepted_round: int = 0

    def continues(self, server_round: int, attempt: int) -> bool:
        """Whether memory written under another header may be continued from under this one.

        It is when it was written in this attempt, or in the last round that the server accepted
        from this client; else the client starts from its initial memory.
        """
        return server_round == self.last_accepted_round or (server_round, attempt) == (
            self.server_round,
            self.attempt,
        )


@dataclass(frozen=True)
class Failure:
    """The reason why a client's reply is not used.

    "late": none came in time; "unavailable": its node is not there, or died; "absent": its node
    answered with an error (its own log says why); "unusable": what came is no upload of the phase.
    """

    kind: Kind
    text: str
    """One line; a client or a node may have chosen it."""


class Replies(NamedTuple):
    """The usable uploads of a phase, stacked in the order of ``partitions``."""

    partitions: Partitions
    uploads: Payload
    failures: Mapping[int, Failure] = MappingProxyType({})
    bytes_down: int = 0
    noise_origins: frozenset[str] = frozenset()
    """Where the keys of the clients' noise came from, as their replies say (flower/records.py)."""
    nodes: Mapping[int, int] = MappingProxyType({})
    """Which node answers for a client, where there are nodes: failures name it."""
    mean: Mapping[str, Tensor] | None = None
    """The weighted mean of every field, where uploads were judged and added up as they came: then
    ``uploads`` has no row."""

    def of_rows(self, rows: Sequence[int]) -> "Replies":
        """Returns the replies in the given ``rows``, ascending.

        Raises:
            ValueError: the uploads were added up, and none is kept.
        """
        if self.mean is not None:
            raise ValueError("Expected uploads to choose from, got their mean alone")
        device = self.uploads.point.device
        return self._replace(
            partitions=tuple(self.partitions[i] for i in rows),
            uploads=self.uploads.take(torch.tensor(rows, dtype=torch.long, device=device)),
        )

    def without(self, why: Mapping[int, str]) -> "Replies":
        """Returns the replies of the clients that ``why`` does not name; earlier failures stay."""
        left = [row for row, i in enumerate(self.partitions) if i not in why]
        failures = {i: Failure("unusable", text) for i, text in why.items()}
        return self.of_rows(left)._replace(failures={**failures, **self.failures})

    def told(self) -> "Replies":
        """Returns failures in short printable words, with a client's node where it is known."""
        found = dict[int, Failure]()
        for i, failure in self.failures.items():
            node = f" (node {self.nodes[i]})" if i in self.nodes else ""
            found[i] = replace(failure, text=one_line(failure.text, 200) + node)
        return self._replace(failures=found)


class Asked(NamedTuple):
    """One exchange with some clients: phase, clients, and what goes down."""

    header: Header
    """For nobody in particular."""
    phase: Phase
    down: Down
    """One payload for all, or a `PerClient` with a row for each of ``partitions``."""
    partitions: Partitions
    last_accepted: Mapping[int, int]
    """In which round the server last used a client's reply: a client whose memory is of another
    round starts from its initial one."""
    sums: Callable[[], Any] = lambda: None
    """Makes `manifed.federation.rounds.Sums` for a transport that does not keep uploads; None
    where somebody looks at each of them."""

    def gathered(self, parts: Sequence[Payload]) -> Payload:
        """Joins stacked uploads; without any, fields have their shapes after a leading 0."""
        up = self.phase.up
        if parts:
            return up.stack(parts, torch.cat)
        x = self.down.point
        layout = up.layout(tuple(x.shape), x.dtype).values()
        return up(*[x.new_zeros(0, *own, dtype=dtype) for own, dtype in layout])


class Transport(Protocol):
    """Interface of a transport, which sends a downlink to clients and returns their uploads."""

    def exchange(self, asked: Asked) -> Replies:
        """Returns the readable uploads in the clients' order, and a reason for each other one."""
        ...


class ReplyPolicy(Frozen):
    """What a round does when replies of clients are missing.

    A reply that is an error, is missing, has another config hash, round or phase, another shape, an
    entry that is not finite, or is not tangent counts as a failure. Whoever was invited has paid
    (the ledger is charged before the messages leave), so a retry costs privacy and says so.

    Under client-level privacy none of this decides: whether a reply is usable is the client's own
    datum, so a failed one counts as the zero vector and the round goes on; only ``timeout`` is
    used, and "retry" and "abort" are refused.
    """

    on_failure: Literal["proceed", "retry", "abort"] = "proceed"
    """Go on with the others, repeat the round (charged again), or stop."""
    min_fraction: float = Field(default=0.5, gt=0, le=1)
    """Least share of the cohort that lets a round proceed."""
    max_attempts: int = Field(default=3, ge=1)
    """Most attempts of one round, the first included."""
    timeout: float = Field(default=3600.0, gt=0)
    """Seconds to wait for the replies of one exchange."""

    @property
    def attempts(self) -> int:
        """The largest number of attempts of one round; crashes are not counted."""
        return self.max_attempts if self.on_failure == "retry" else 1

    def refusal(
        self, replies: Replies, cohort_size: int, *, needs_everyone: bool = False
    ) -> str | None:
        """Returns why the round may not go on although some failed, in one line; None if it may."""
        is_all = needs_everyone or self.on_failure != "proceed"
        count = len(replies.partitions)
        failures = replies.failures
        if not (is_all or count < self.min_fraction * cohort_size):
            return None
        some = "; ".join(f"client {i}: {failures[i].text}" for i in sorted(failures)[:3])
        more = f" and {len(failures) - 3} more" if len(failures) > 3 else ""
        needed = "all" if is_all else f"{self.min_fraction:g} of them"
        return (
            f"Expected replies from {cohort_size} clients (policy {self.on_failure!r}: {needed}), "
            f"got {count}; {some}{more}"
        )

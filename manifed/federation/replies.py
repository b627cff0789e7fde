"""What came back in one phase, and what to do when something is missing or wrong."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from manifed.algorithms.interface import Collected
from manifed.algorithms.payloads import Payload
from manifed.federation.kinds import Kind
from manifed.privacy.events import Frozen

LONGEST_REASON = 200
"""Characters kept of a text that a client chose."""


def plain(text: object) -> str:
    """A client's text, short enough and printable: no line breaks, no control characters."""
    start = str(text)[:LONGEST_REASON]
    return "".join(character if character.isprintable() else " " for character in start).strip()


@dataclass(frozen=True)
class Failure:
    """Why a client's reply is not used.

    "late": none came in time; "unavailable": its node is not there, or died; "absent": its node
    answered with an error (its own log says why); "unusable": what came is no upload of the phase.
    """

    kind: Kind
    text: str
    """One line; a client or a node may have chosen it."""


@dataclass(frozen=True)
class Summed:
    """Uploads that were checked and summed where they were made."""

    fields: Mapping[str, Tensor]
    """sum_i w_i u_i of every field over those that replied, by weights of all that were asked."""
    fetch: Callable[[], Payload]
    """Brings the rows themselves."""


class Fetched(Collected):
    """What was collected, whose uploads stay where they were summed until somebody looks."""

    _bring: Callable[[], Payload]

    def __init__(self, known: Collected, fetch: Callable[[], Payload]) -> None:
        own = {k: v for k, v in vars(known).items() if k != "uploads"}
        for name, value in {**own, "_bring": fetch}.items():
            object.__setattr__(self, name, value)

    @cached_property
    def uploads(self) -> Payload:  # pyright: ignore[reportIncompatibleVariableOverride]  # the same, later
        """The rows."""
        return self._bring()


class Replies(NamedTuple):
    """The usable uploads of a phase, stacked in the order of ``partitions``."""

    partitions: tuple[int, ...]
    uploads: Payload
    failures: Mapping[int, Failure] = MappingProxyType({})
    bytes_down: int = 0
    bytes_up: int = 0
    noise_origins: frozenset[str] = frozenset()
    """Where the keys of the clients' noise came from, as their replies say (flower/records.py)."""
    nodes: Mapping[int, int] = MappingProxyType({})
    """Which node answers for a client, where there are nodes: failures name it."""
    chunks: tuple[int, ...] = ()
    """How many neighbouring rows were computed together, and are summed first; (): all."""
    sums: Summed | None = None
    """What came instead of ``uploads``, which then have no row."""

    def with_rows(self) -> "Replies":
        """The same with the uploads themselves."""
        if self.sums is None:
            return self
        return self._replace(uploads=self.sums.fetch(), sums=None)

    def of_rows(self, rows: Sequence[int]) -> "Replies":
        """Some of the replies, ``rows`` ascending."""
        place = torch.tensor(rows, dtype=torch.long)
        uploads = self.uploads.take(place.to(next(iter(self.uploads.tensors().values())).device))
        ends = [0, *accumulate(self.chunks)]
        left = (bisect_left(rows, b) - bisect_left(rows, a) for a, b in pairwise(ends))
        return self._replace(
            partitions=tuple(self.partitions[row] for row in rows),
            uploads=uploads,
            bytes_up=uploads.num_bytes(),
            chunks=tuple(count for count in left if count),
        )

    def without(self, failures: Mapping[int, Failure]) -> "Replies":
        """The replies of the others; who failed before keeps the failure that it has."""
        if not failures:
            return self
        left = [row for row, i in enumerate(self.partitions) if i not in failures]
        return self.of_rows(left)._replace(failures={**failures, **self.failures})

    def zero_filled(self, partitions: tuple[int, ...]) -> "Replies":
        """The same replies with a zero row for each of ``partitions`` that has none."""
        if self.partitions == partitions:
            return self
        place = {i: row for row, i in enumerate(partitions)}
        stacked = list(self.uploads.tensors().values())
        rows = torch.tensor([place[i] for i in self.partitions], dtype=torch.long).to(
            stacked[0].device
        )
        whole = [t.new_zeros(len(partitions), *t.shape[1:]).index_copy(0, rows, t) for t in stacked]
        uploads = type(self.uploads)(*whole)
        return self._replace(partitions=partitions, uploads=uploads, chunks=())


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
    """Of one round, the first one included."""
    timeout: float = Field(default=3600.0, gt=0)
    """Seconds to wait for the replies of one phase."""

    def is_enough(self, replies: Replies, cohort_size: int, *, needs_everyone: bool) -> bool:
        """Whether the round may use these replies."""
        if not replies.failures:
            return True
        if needs_everyone or self.on_failure != "proceed":
            return False
        return len(replies.partitions) >= self.min_fraction * cohort_size

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

    def explain(self, replies: Replies, cohort_size: int, *, needs_everyone: bool = False) -> str:
        """One line for the error of a failed round."""
        some = [f"client {i}: {replies.failures[i].text}" for i in sorted(replies.failures)[:3]]
        more = f" and {len(replies.failures) - 3} more" if len(replies.failures) > 3 else ""
        is_all = needs_everyone or self.on_failure != "proceed"
        needed = "all" if is_all else f"{self.min_fraction:g} of them"
        return (
            f"Expected replies from {cohort_size} clients (policy {self.on_failure!r}: {needed}), "
            f"got {len(replies.partitions)}; " + "; ".join(some) + more
        )

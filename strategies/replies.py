"""What came back in one phase, and what to do when something is missing or wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from privacy.events import Frozen
from wire.payloads import Payload


class RoundFailed(RuntimeError):
    """Too few usable replies; the text names the clients and their reasons."""


@dataclass(frozen=True)
class Replies:
    """The usable uploads of a phase, stacked in the order of ``partitions``."""

    partitions: tuple[int, ...]
    uploads: Payload
    failures: Mapping[int, str] = field(default_factory=dict[int, str])
    bytes_down: int = 0
    bytes_up: int = 0


class ReplyPolicy(Frozen):
    """When a round goes on without everybody.

    A reply that is an error, is missing, has another config hash, round or phase, another shape, an
    entry that is not finite, or is not tangent counts as a failure. Whoever was invited has paid
    (the ledger is charged before the letters leave), so a retry costs privacy and says so.
    """

    on_failure: Literal["proceed", "retry", "abort"] = "proceed"
    min_fraction: float = Field(default=0.5, gt=0, le=1)
    """Proceed needs at least this share of the cohort."""
    max_attempts: int = Field(default=3, ge=1)
    timeout: float = Field(default=3600.0, gt=0)
    """Seconds to wait for the replies of one phase."""

    def is_enough(self, replies: Replies, cohort_size: int, *, needs_everyone: bool) -> bool:
        """Whether the round may use these replies."""
        if not replies.failures:
            return True
        if needs_everyone or self.on_failure != "proceed":
            return False
        return len(replies.partitions) >= self.min_fraction * cohort_size

    def explain(self, replies: Replies, cohort_size: int) -> str:
        """One line for the error of a failed round."""
        some = [f"client {i}: {reason}" for i, reason in sorted(replies.failures.items())[:3]]
        more = f" and {len(replies.failures) - 3} more" if len(replies.failures) > 3 else ""
        needed = f"{self.min_fraction:g} of them" if self.on_failure == "proceed" else "all"
        return (
            f"Expected replies from {cohort_size} clients (policy {self.on_failure!r}: {needed}), "
            f"got {len(replies.partitions)}; " + "; ".join(some) + more
        )

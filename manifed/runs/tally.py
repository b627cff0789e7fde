"""What replies and traffic add up to: since the last row of metrics.csv, and over a whole run.

Who replied is the server's own knowledge: under client-level privacy it is no part of what may be
published.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manifed.federation.kinds import KINDS
from manifed.federation.plan import RoundReport
from manifed.runs.checkpoint import Checkpoint

COLUMNS: tuple[str, ...] = ("bytes_down", "bytes_up", "participants", "failures", *KINDS)
"""Columns of metrics.csv; each is a sum over the rounds since the row before.

``failures`` is the sum of those after it, by kind (manifed/federation/replies.py).
"""
REASONS_A_CLIENT = 8
"""Different reasons kept for one client; all others count as ``OTHER``."""
OTHER = "other reasons"
STRETCHES_A_CLIENT = 64
"""Stretches of rounds kept for one client and kind; later rounds are counted, not listed."""

Rounds = list[list[int]]
"""Stretches of rounds, each [first, last]."""


@dataclass
class Tally:
    """Sums that survive a resumed run: they travel in its checkpoints."""

    pending: dict[str, int] = field(default_factory=dict[str, int])
    participants: int = 0
    failures: int = 0
    by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    by_client: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Reasons, each one bounded line, and how often."""
    missed: dict[str, dict[str, Rounds]] = field(default_factory=dict[str, dict[str, Rounds]])
    """By client and kind, the rounds that it missed."""
    told: int = 0
    """The round of the newest row."""

    def __post_init__(self) -> None:
        self.pending = dict.fromkeys(COLUMNS, 0) | self.pending
        self.by_kind = dict.fromkeys(KINDS, 0) | self.by_kind

    def add(self, report: RoundReport) -> None:
        """Count one round."""
        failed, participants = report.failures, len(report.participants)
        traffic = report.bytes_down, report.bytes_up, participants, len(failed)
        for column, count in zip(COLUMNS, traffic, strict=False):
            self.pending[column] += count
        self.participants += participants
        self.failures += len(failed)
        for i, failure in failed.items():
            client, kind = str(i), failure.kind
            self.pending[kind] += 1
            self.by_kind[kind] += 1
            reasons = self.by_client.setdefault(client, {})
            is_kept = failure.text in reasons or len(reasons) < REASONS_A_CLIENT
            key = failure.text if is_kept else OTHER
            reasons[key] = reasons.get(key, 0) + 1
            rounds = self.missed.setdefault(client, {}).setdefault(kind, [])
            if rounds and rounds[-1][1] == report.server_round - 1:
                rounds[-1][1] = report.server_round
            elif len(rounds) < STRETCHES_A_CLIENT:
                rounds.append([report.server_round] * 2)

    def take(self, server_round: int) -> dict[str, int]:
        """The columns of the row of ``server_round``; the next row counts from here."""
        row, self.pending = self.pending, dict.fromkeys(COLUMNS, 0)
        self.told = server_round
        return row

    def summary(self) -> dict[str, Any]:
        """The manifest's "replies": participations and failures; who missed which rounds, why."""
        return {
            "participants": self.participants,
            "failures": self.failures,
            "by_kind": dict(self.by_kind),
            "by_client": _copied(self.by_client),
            "missed": _copied(self.missed),
        }

    def state(self) -> dict[str, Any]:
        """Plain JSON for a checkpoint."""
        return {"pending": dict(self.pending), "told": self.told, **self.summary()}

    @classmethod
    def of(cls, saved: Checkpoint) -> "Tally":
        """The sums of a checkpoint; of one that holds none, zeros from its round on."""
        state = saved.meta.get("tally")
        return cls(told=saved.server_round) if state is None else cls(**state)


def _copied(by_client: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {client: dict(by_client[client]) for client in sorted(by_client, key=int)}

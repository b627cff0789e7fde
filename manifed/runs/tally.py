"""What replies and traffic add up to: since the last row of metrics.csv, and over a whole run.

Who replied is the server's own knowledge: under client-level privacy it is no part of what may be
published.
"""

from dataclasses import dataclass, field
from typing import Any

from manifed.federation.plan import RoundReport
from manifed.runs.checkpoint import Checkpoint

COLUMNS: tuple[str, ...] = ("bytes_down", "bytes_up", "participants", "failures")
"""Columns of metrics.csv; each is a sum over the rounds since the row before."""
REASONS_A_CLIENT = 8
"""Different reasons kept for one client; all others count as ``OTHER``."""
OTHER = "other reasons"


@dataclass
class Tally:
    """Sums that survive a resumed run: they travel in its checkpoints."""

    pending: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0))
    participants: int = 0
    failures: int = 0
    by_client: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    told: int = 0
    """The round of the newest row."""

    def add(self, report: RoundReport) -> None:
        """Count one round."""
        counts = (
            report.bytes_down,
            report.bytes_up,
            len(report.participants),
            len(report.failures),
        )
        for column, count in zip(COLUMNS, counts, strict=True):
            self.pending[column] += count
        self.participants += len(report.participants)
        self.failures += len(report.failures)
        for client, reason in report.failures.items():
            reasons = self.by_client.setdefault(str(client), {})
            key = reason if reason in reasons or len(reasons) < REASONS_A_CLIENT else OTHER
            reasons[key] = reasons.get(key, 0) + 1

    def take(self, server_round: int) -> dict[str, int]:
        """The columns of the row of ``server_round``; the next row counts from here."""
        row, self.pending = self.pending, dict.fromkeys(COLUMNS, 0)
        self.told = server_round
        return row

    def summary(self) -> dict[str, Any]:
        """The manifest's "replies": participations and failures, and why whom."""
        clients = sorted(self.by_client, key=int)
        return {
            "participants": self.participants,
            "failures": self.failures,
            "by_client": {client: dict(self.by_client[client]) for client in clients},
        }

    def state(self) -> dict[str, Any]:
        """Plain JSON for a checkpoint."""
        return {"pending": dict(self.pending), "told": self.told, **self.summary()}

    @classmethod
    def of(cls, saved: Checkpoint) -> "Tally":
        """The sums of a checkpoint; of one that holds none, zeros from its round on."""
        state = saved.meta.get("tally")
        return cls(told=saved.server_round) if state is None else cls(**state)

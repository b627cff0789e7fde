"""A checkpoint: round, named tensors and a little JSON in one safetensors file, written atomically.

The file carries a SHA-256 over everything in it, so a truncated or altered checkpoint is refused
instead of resumed from. Guarantee: ``load`` gives back bit for bit what ``save`` was given.
"""

import hashlib
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from manifed.durable import write_atomically
from manifed.federation.plan import RoundReport
from manifed.federation.replies import KINDS, Kind
from manifed.runs.folder import (
    Count,
    FolderDamaged,
    HeadText,
    Table,
    Words,
    checked,
    json_object,
    read_tensors,
    tensor_bytes,
)

Column = Literal["bytes_down", "bytes_up", "participants", "failures"] | Kind
COLUMNS: tuple[Column, ...] = ("bytes_down", "bytes_up", "participants", "failures", *KINDS)
"""Columns of metrics.csv; each is a sum over the rounds since the row before.

``failures`` is the sum of those after it, by kind (manifed/federation/replies.py).
"""
_MOST_REASONS = 8
"""Different reasons kept for one client; all others count as "other reasons"."""
_MOST_STRETCHES = 64
"""Stretches of rounds kept for one client and kind; later rounds are counted, not listed."""
_Key = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]
_Stretch = Annotated[list[Count], Field(min_length=2, max_length=2)]


# -- what replies and traffic add up to ------------------------------------------------------------
class Tally(Table):
    """Sums since the last row of metrics.csv, and over a whole run: they travel in checkpoints.

    Who replied is the server's own knowledge: under client-level privacy it is no part of what may
    be published.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    pending: dict[Column, Count] = Field(min_length=len(COLUMNS))
    told: Count
    """The round of the newest row."""
    participants: Count
    failures: Count
    by_client: dict[_Key, dict[str, Count]]
    """Reasons, each one bounded line, and how often."""
    by_kind: dict[Kind, Count] = Field(min_length=len(KINDS))
    missed: dict[_Key, dict[Kind, list[_Stretch]]]
    """By client and kind, the rounds that it missed, in stretches [first, last]."""

    @classmethod
    def of_nothing(cls) -> Self:
        """Before the first round."""
        return cls(
            pending=dict.fromkeys(COLUMNS, 0),
            told=0,
            participants=0,
            failures=0,
            by_client={},
            by_kind=dict.fromkeys(KINDS, 0),
            missed={},
        )

    def add(self, report: RoundReport) -> None:
        """Count one round."""
        failed = report.failures
        participants = len(report.participants)
        self.pending["bytes_down"] += report.bytes_down
        self.pending["bytes_up"] += report.bytes_up
        self.pending["participants"] += participants
        self.pending["failures"] += len(failed)
        self.participants += participants
        self.failures += len(failed)
        for i, failure in failed.items():
            client = str(i)
            kind = failure.kind
            self.pending[kind] += 1
            self.by_kind[kind] += 1
            reasons = self.by_client.setdefault(client, {})
            is_kept = failure.text in reasons or len(reasons) < _MOST_REASONS
            key = failure.text if is_kept else "other reasons"
            reasons[key] = reasons.get(key, 0) + 1
            rounds = self.missed.setdefault(client, {}).setdefault(kind, [])
            if rounds and rounds[-1][1] == report.server_round - 1:
                rounds[-1][1] = report.server_round
            elif len(rounds) < _MOST_STRETCHES:
                rounds.append([report.server_round] * 2)

    def take(self, server_round: int) -> Mapping[Column, int]:
        """The columns of the row of ``server_round``; the next row counts from here."""
        row = self.pending
        self.pending = dict.fromkeys(COLUMNS, 0)
        self.told = server_round
        return row

    def summary(self) -> dict[str, Any]:
        """The manifest's "replies": participations and failures; who missed which rounds, why."""
        return self.model_dump(exclude={"pending", "told"})


# -- the file --------------------------------------------------------------------------------------
class Meta(Table):
    """What a resumed run takes from its checkpoint beside tensors."""

    last_accepted: dict[_Key, Count]
    """The newest round that took each client's reply."""
    tally: Tally
    judged: dict[str, Any]
    """`manifed.experiment.evaluation.Judged`, of evaluations so far."""
    config_sha256: Words
    ledger_run_id: Words | None
    ledger_head: HeadText


@dataclass(frozen=True)
class Checkpoint:
    """The state after ``server_round`` finished rounds."""

    server_round: int
    tensors: Mapping[str, Tensor]
    meta: Meta


def save(path: Path, server_round: int, tensors: Mapping[str, Tensor], meta: Meta) -> None:
    """Replace the checkpoint at ``path``; a crash leaves the old one.

    Raises:
        ValueError: a tensor holds NaN or infinity.
    """
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"Expected finite tensors in a checkpoint, got {name} with others")
    metadata = {"round": str(server_round), "meta": meta.model_dump_json()}
    metadata["sha256"] = digest_of(tensors, metadata)
    write_atomically(path, tensor_bytes(tensors, metadata))


def load(path: Path) -> Checkpoint:
    """The checkpoint at ``path``.

    Raises:
        FolderDamaged: there is none, it is damaged, or no checkpoint of ours.
    """
    tensors, metadata = read_tensors(path, _WHOLE)
    if set(metadata) != {"round", "meta", "sha256"}:
        raise _damaged(path, f"one of another format, with metadata keys {sorted(metadata)}")
    if metadata["sha256"] != digest_of(tensors, metadata):
        raise _damaged(path, "content that does not match its SHA-256")
    if not re.fullmatch("[0-9]{1,9}", metadata["round"]):
        raise _damaged(path, f"the round {metadata['round'][:40]!r}")
    meta = checked(json_object(path, metadata["meta"]), Meta, path)
    return Checkpoint(int(metadata["round"]), tensors, meta)


def check(path: Path, saved: Checkpoint, like: Mapping[str, Tensor], num_clients: int) -> None:
    """Refuse the checkpoint of a run whose state has not the shapes and types of ``like``.

    Raises:
        FolderDamaged: also for values that are not finite.
    """

    def shown(tensors: Mapping[str, Tensor]) -> str:
        return ", ".join(f"{k} {x.dtype} {tuple(x.shape)}" for k, x in sorted(tensors.items()))

    if (found := shown(saved.tensors)) != (wanted := shown(like)):
        raise _damaged(path, f"the tensors {found or 'none'}, not {wanted}")
    for name, tensor in saved.tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise _damaged(path, f"a tensor {name} that is not finite")
    for client, server_round in saved.meta.last_accepted.items():
        if int(client) >= num_clients or server_round > saved.server_round:
            raise _damaged(path, f"client {client} in round {server_round}, which never was")
    if saved.meta.tally.told > saved.server_round:
        raise _damaged(path, "a row of metrics after its own round")


_WHOLE = "a whole checkpoint"


def _damaged(path: Path, found: str) -> FolderDamaged:
    return FolderDamaged(path, _WHOLE, f"{found}; start a new run or restore a copy")


def digest_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The SHA-256 over all of a checkpoint."""
    digest = hashlib.sha256(f"{metadata['round']}\n{metadata['meta']}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Pace:
    """When a checkpoint is due: every so many rounds, or ("auto") within 5 % of a run's time."""

    def __init__(self, every: int | Literal["auto"]) -> None:
        self._every = every
        self._began = time.perf_counter()
        self._spent, self._last = 0.0, 5e-3  # a guess of what the first one takes

    def is_due(self, server_round: int) -> bool:
        """Whether to save after ``server_round``."""
        if isinstance(self._every, int):
            return server_round % self._every == 0
        return self._spent + self._last <= 0.05 * (time.perf_counter() - self._began)

    @contextmanager
    def counted(self) -> Generator[None, None, None]:
        """Counts the time of one save."""
        began = time.perf_counter()
        yield
        self._last = time.perf_counter() - began
        self._spent += self._last

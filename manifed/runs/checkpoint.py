"""Checkpoints: round, named tensors and some JSON in one safetensors file, written atomically.

The file carries a SHA-256 over everything in it, so a truncated or altered checkpoint is refused
instead of resumed from. Guarantee: ``load`` gives back bit for bit what ``save`` was given.
"""

import hashlib
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

import torch
from pydantic import ConfigDict, Field

from manifed.durable import sync, write_atomically
from manifed.federation.exchange import KINDS, Kind
from manifed.federation.plan import RoundReport
from manifed.fields import Document
from manifed.manifolds.linalg import Tensors
from manifed.privacy.ledger import Ledger
from manifed.runs.folder import (
    Count,
    FolderDamaged,
    HeadText,
    Pairs,
    RunFolder,
    Table,
    Words,
    checked,
    json_object,
    read_tensors,
    tensor_bytes,
)

_Sum = Literal["bytes_down", "bytes_up", "participants", "failures"]
COLUMNS: tuple[_Sum | Kind, ...] = (*get_args(_Sum), *KINDS)
"""Columns of metrics.csv; each is a sum over the rounds since the row before.

``failures`` is the sum of those after it, by kind (manifed/federation/exchange.py).
"""
_Key = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")]


# -- what replies and traffic add up to ------------------------------------------------------------
class Tally(Table):
    """Counts of replies and bytes since the last row of metrics.csv, and over the whole run.

    Who replied is the server's own knowledge: under client-level privacy it is no part of what may
    be published.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    pending: dict[_Sum | Kind, Count] = Field(min_length=len(COLUMNS))
    told: Count
    """The round of the newest row."""
    participants: Count
    failures: Count
    by_client: dict[_Key, dict[str, Count]]
    """Reasons, each one bounded line, and how often."""
    by_kind: dict[Kind, Count] = Field(min_length=len(KINDS))
    missed: dict[_Key, dict[Kind, Pairs]]
    """By client and kind, the rounds that it missed, in stretches [first, last]."""

    @classmethod
    def of_nothing(cls) -> Self:
        """Makes the tally before the first round."""
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
        """Counts one round."""
        failed = report.failures
        self.pending["bytes_down"] += report.bytes_down
        self.pending["bytes_up"] += report.bytes_up
        self.pending["participants"] += len(report.participants)
        self.pending["failures"] += len(failed)
        self.participants += len(report.participants)
        self.failures += len(failed)
        for i, failure in failed.items():
            client = str(i)
            kind = failure.kind
            self.pending[kind] += 1
            self.by_kind[kind] += 1
            # different reasons, and stretches of rounds, are bounded: later ones are counted alone
            reasons = self.by_client.setdefault(client, {})
            is_kept = failure.text in reasons or len(reasons) < 8
            key = failure.text if is_kept else "other reasons"
            reasons[key] = reasons.get(key, 0) + 1
            rounds = self.missed.setdefault(client, {}).setdefault(kind, [])
            if rounds and rounds[-1][1] == report.server_round - 1:
                rounds[-1][1] = report.server_round
            elif len(rounds) < 64:
                rounds.append([report.server_round] * 2)

    def take(self, server_round: int) -> Mapping[_Sum | Kind, int]:
        """Returns the columns of the row of ``server_round``, and counts anew from there."""
        row = self.pending
        self.pending = dict.fromkeys(COLUMNS, 0)
        self.told = server_round
        return row

    def summary(self) -> Document:
        """Returns the manifest's "replies": participations, failures, who missed which rounds."""
        return self.model_dump(exclude={"pending", "told"})


# -- the file --------------------------------------------------------------------------------------
class Meta(Table):
    """The facts that a resumed run takes from its checkpoint beside tensors."""

    last_accepted: dict[_Key, Count]
    """The newest round that took each client's reply."""
    tally: Tally
    judged: Document
    """`manifed.experiment.evaluation.Judged`, of evaluations so far."""
    config_sha256: Words
    ledger_run_id: Words | None
    ledger_head: HeadText


class Checkpoint(NamedTuple):
    """The state of a run after ``server_round`` finished rounds."""

    server_round: int
    tensors: Tensors
    meta: Meta


def save(path: Path, server_round: int, tensors: Tensors, meta: Meta) -> None:
    """Replaces the checkpoint at ``path``; a crash leaves the old one.

    Raises:
        ValueError: a tensor holds NaN or infinity.
    """
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"Expected finite tensors in a checkpoint, got {name} with others")
    metadata = {"round": str(server_round), "meta": meta.model_dump_json()}
    metadata["sha256"] = digest_of(tensors, metadata)
    write_atomically(path, tensor_bytes(tensors, metadata))


def save_in(
    folder: RunFolder,
    server_round: int,
    tensors: Tensors,
    ledger: Ledger,
    digest: str,
    tally: Tally,
    accepted: Mapping[int, int] = MappingProxyType({}),
    judged: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Saves the checkpoint of a run folder after its rows; the arguments are keys of `Meta`.

    Raises:
        OSError: the disk refuses; the old checkpoint stays.
    """
    sync(folder.metrics_path)
    sync(folder.directory)
    meta = Meta(
        last_accepted={str(client): last for client, last in accepted.items()},
        tally=tally,
        judged={**judged},
        config_sha256=digest,
        ledger_run_id=ledger.run_id,
        ledger_head=str(ledger.head),
    )
    save(folder.checkpoint_path, server_round, tensors, meta)


def load(path: Path) -> Checkpoint:
    """Reads the checkpoint at ``path``.

    Raises:
        FolderDamaged: there is none, it is damaged, or no checkpoint of ours.
    """
    tensors, metadata = read_tensors(path, "a whole checkpoint")
    if set(metadata) != {"round", "meta", "sha256"}:
        raise _damaged(path, f"one of another format, with metadata keys {sorted(metadata)}")
    if metadata["sha256"] != digest_of(tensors, metadata):
        raise _damaged(path, "content that does not match its SHA-256")
    if not re.fullmatch("[0-9]{1,9}", metadata["round"]):
        raise _damaged(path, f"the round {metadata['round'][:40]!r}")
    return Checkpoint(
        int(metadata["round"]), tensors, checked(json_object(path, metadata["meta"]), Meta, path)
    )


def check(path: Path, saved: Checkpoint, like: Tensors, num_clients: int) -> None:
    """Refuses a checkpoint whose state has not the shapes and types of ``like``.

    Raises:
        FolderDamaged: also for values that are not finite.
    """

    def shown(tensors: Tensors) -> str:
        return ", ".join(f"{k} {x.dtype} {tuple(x.shape)}" for k, x in sorted(tensors.items()))

    if (found := shown(saved.tensors)) != (wanted := shown(like)):
        raise _damaged(path, f"the tensors {found or 'none'}, not {wanted}")
    for name, tensor in saved.tensors.items():
        if not torch.isfinite(tensor).all():
            raise _damaged(path, f"a tensor {name} that is not finite")
    for client, server_round in saved.meta.last_accepted.items():
        if int(client) >= num_clients or server_round > saved.server_round:
            raise _damaged(path, f"client {client} in round {server_round}, which do not exist")
    if saved.meta.tally.told > saved.server_round:
        raise _damaged(path, "a row of metrics after its own round")


def _damaged(path: Path, found: str) -> FolderDamaged:
    return FolderDamaged(path, "a whole checkpoint", f"{found}; start a new run or restore a copy")


def digest_of(tensors: Tensors, metadata: Mapping[str, str]) -> str:
    """Returns the SHA-256 over all of a checkpoint."""
    digest = hashlib.sha256(f"{metadata['round']}\n{metadata['meta']}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Pace:
    """The rule for when a checkpoint is due: every so many rounds, or "auto".

    "auto" takes at most 5 % of a run's time.
    """

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
    def counted(self) -> Generator[None]:
        """Counts the time of one save."""
        began = time.perf_counter()
        yield
        self._last = time.perf_counter() - began
        self._spent += self._last

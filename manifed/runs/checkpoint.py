"""A checkpoint: round, named tensors and a little JSON in one safetensors file, written atomically.

The file carries a SHA-256 over everything in it, so a truncated or altered checkpoint is refused
instead of resumed from. Guarantee: ``load`` gives back bit for bit what ``save`` was given.
"""

import hashlib
import json
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from manifed.durable import write_atomically
from manifed.errors import one_line
from manifed.runs.reading import (
    CheckpointMeta,
    FolderDamaged,
    check_regular,
    checked,
    object_of,
)


class CheckpointError(ValueError):
    """A checkpoint that cannot be resumed from."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after ``server_round`` finished rounds."""

    server_round: int
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Any]


def save(
    path: Path, server_round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Replace the checkpoint at ``path``; a crash leaves the old one.

    Raises:
        ValueError: ``server_round`` < 0, a tensor holds NaN or infinity, or ``meta`` is not JSON
            (NaN and infinity are not).
    """
    if server_round < 0:
        raise ValueError(f"Expected server_round >= 0 in a checkpoint, got {server_round}")
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"Expected finite tensors in a checkpoint, got {name} with others")
    try:
        text = json.dumps(meta, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected JSON values in a checkpoint's meta, got {error}") from error
    metadata = {"round": str(server_round), "meta": text}
    metadata["sha256"] = _digest(tensors, metadata)
    write_atomically(path, tensor_bytes(tensors, metadata))


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The safetensors encoding of ``tensors``; views and device tensors are copied to the CPU."""
    from safetensors.torch import save

    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return save(plain, dict(metadata) if metadata else None)


def load(path: Path) -> Checkpoint:
    """The checkpoint at ``path``.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it is damaged, or no checkpoint of ours.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"Expected a checkpoint at {path}, got no file; start a new run")
    try:
        check_regular(path, "a whole checkpoint", most=1 << 40)
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except FolderDamaged as error:
        raise CheckpointError(str(error)) from None
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise _damaged(path, str(error)) from error
    if set(metadata) != {"round", "meta", "sha256"}:
        raise _damaged(path, f"the metadata keys {sorted(metadata)}")
    if metadata["sha256"] != _digest(tensors, metadata):
        raise _damaged(path, "content that does not match its SHA-256")
    if not re.fullmatch("[0-9]{1,9}", metadata["round"]):
        raise _damaged(path, f"the round {metadata['round'][:40]!r}")
    try:
        meta = object_of(metadata["meta"], path)
    except FolderDamaged as error:
        raise CheckpointError(str(error)) from None
    return Checkpoint(int(metadata["round"]), tensors, meta)


def check(path: Path, saved: Checkpoint, like: Mapping[str, Tensor], num_clients: int) -> None:
    """Refuse the checkpoint of a run whose state has not the shapes and types of ``like``.

    Raises:
        CheckpointError: also for values that are not finite, and for words of other types.
    """
    try:
        checked(saved.meta, CheckpointMeta, path)
    except FolderDamaged as error:
        raise CheckpointError(str(error)) from None
    if (found := _shown(saved.tensors)) != (wanted := _shown(like)):
        raise _damaged(path, f"the tensors {found}, not {wanted}")
    for name, tensor in saved.tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise _damaged(path, f"a tensor {name} that is not finite")
    rounds: Mapping[str, int] = saved.meta["last_accepted"]
    for client, server_round in rounds.items():
        if int(client) >= num_clients or server_round > saved.server_round:
            raise _damaged(path, f"client {client} in round {server_round}, which never was")
    if (saved.meta.get("tally") or {"told": 0})["told"] > saved.server_round:
        raise _damaged(path, "a row of metrics after its own round")


def _shown(tensors: Mapping[str, Tensor]) -> str:
    said = (f"{name} {x.dtype} {tuple(x.shape)}" for name, x in sorted(tensors.items()))
    return ", ".join(said) or "none"


def _damaged(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        one_line(
            f"Expected a whole checkpoint in {path}, got {found}; start a new run or restore a copy"
        )
    )


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{metadata['round']}\n{metadata['meta']}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


SHARE = 0.05
"""How much of a run's time "auto" may spend on checkpoints."""
FIRST_GUESS = 5e-3
"""Seconds that the first one may take."""


class Pace:
    """When a checkpoint is due: every so many rounds, or ("auto") as often as time allows."""

    def __init__(self, every: int | Literal["auto"]) -> None:
        self._every = every
        self._began = time.perf_counter()
        self._spent, self._last = 0.0, FIRST_GUESS

    def is_due(self, server_round: int) -> bool:
        """Whether to save after ``server_round``: "auto" keeps within `SHARE` of the time."""
        if isinstance(self._every, int):
            return server_round % self._every == 0
        elapsed = time.perf_counter() - self._began
        return self._spent + self._last <= SHARE * elapsed

    @contextmanager
    def counted(self) -> Generator[None, None, None]:
        """Counts the time of one save."""
        began = time.perf_counter()
        yield
        self._last = time.perf_counter() - began
        self._spent += self._last

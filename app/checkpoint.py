"""A checkpoint: round, named tensors and a little JSON in one safetensors file, written atomically.

The file carries a SHA-256 over everything in it, so a truncated or altered checkpoint is refused
instead of resumed from. Guarantee: ``load`` gives back bit for bit what ``save`` was given.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app.durable import tensor_bytes, write_atomically


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
        ValueError: ``server_round`` < 0, or ``meta`` is not JSON (NaN and infinity are not).
    """
    if server_round < 0:
        raise ValueError(f"Expected server_round >= 0 in a checkpoint, got {server_round}")
    try:
        text = json.dumps(meta, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected JSON values in a checkpoint's meta, got {error}") from error
    metadata = {"round": str(server_round), "meta": text}
    metadata["sha256"] = _digest(tensors, metadata)
    write_atomically(path, tensor_bytes(tensors, metadata))


def load(path: Path) -> Checkpoint:
    """The checkpoint at ``path``.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it is damaged, or no checkpoint of ours.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"Expected a checkpoint at {path}, got no file; start a new run")
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise _damaged(path, str(error)) from error
    if set(metadata) != {"round", "meta", "sha256"}:
        raise _damaged(path, f"the metadata keys {sorted(metadata)}")
    if metadata["sha256"] != _digest(tensors, metadata):
        raise _damaged(path, "content that does not match its SHA-256")
    return Checkpoint(int(metadata["round"]), tensors, json.loads(metadata["meta"]))


def _damaged(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        f"Expected a whole checkpoint in {path}, got {found}; start a new run or restore a copy"
    )


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{metadata['round']}\n{metadata['meta']}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

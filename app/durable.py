"""Files that are either wholly there or not there at all, also after a power cut.

A reader of ``path`` sees the old bytes or the new ones: the new bytes go to a temporary file in the
same folder, are fsynced, renamed over ``path``, and the folder's entry is fsynced too.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``; on any error the old file is left as it was.

    Raises:
        OSError: the folder is missing or not writable, or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of ``folder`` (new names, renames) survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The safetensors encoding of ``tensors``; views and device tensors are copied to the CPU."""
    from safetensors.torch import save

    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return save(plain, dict(metadata) if metadata else None)

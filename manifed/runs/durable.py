"""Writing files so that a crash at any moment leaves the old bytes or the new ones.

New bytes go to a draft in the same folder, are fsynced, renamed over the file, and the folder's
entry is fsynced too. A draft that a crash left behind has one known name, so the next write takes
its place and `remove_drafts` finds it.
"""

import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from manifed.privacy import storage


def draft_of(path: Path) -> Path:
    """Where the next content of ``path`` is prepared."""
    return path.with_name(f".{path.name}.draft")


def is_draft(path: Path) -> bool:
    """Whether a file is what an unfinished write, of this module or of the ledger, left behind."""
    name = path.name
    return (name.startswith(".") and name.endswith(".draft")) or storage.is_draft(path)


def remove_drafts(folder: Path) -> None:
    """Remove what unfinished writes left; only for who holds the folder (`held`)."""
    for path in sorted(folder.iterdir()):
        if is_draft(path):
            path.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``; on any error the old file is left as it was.

    Raises:
        OSError: the folder is missing or not writable, or the disk is full.
    """
    draft = draft_of(path)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_whole(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Add ``line`` at the end of ``path``, which is made if need be; all of it or nothing.

    A kill in between may leave a part of the line, without its newline; the caller's reader drops
    it. Not fsynced: see `sync_file`.

    Raises:
        OSError: the disk refuses; the file is as long as before.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        length = os.fstat(descriptor).st_size
        try:
            write_whole(descriptor, line)
        except OSError:
            os.ftruncate(descriptor, length)
            raise
    finally:
        os.close(descriptor)


def write_whole(descriptor: int, data: bytes) -> None:
    """All of ``data``, in as many writes as the system wants."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync_file(path: Path) -> None:
    """Make what was appended to ``path``, and its name, survive a power cut."""
    _sync(path)
    _sync(path.parent)


@contextmanager
def held(folder: Path) -> Generator[None, None, None]:
    """Hold ``folder`` for this process; nothing is written, and a dead process holds nothing.

    Raises:
        BlockingIOError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the entries of ``folder`` (new names, renames) survive a power cut."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
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

"""Crash-safe writing and safe reading of files: after a crash there are old bytes or new ones.

New bytes go to a draft in the same folder, are fsynced and given their name at once, and the
folder's entry is fsynced too. `is_draft` knows a draft that a crash left behind.

Every file is its owner's alone (0600) whatever the umask, and so is a folder that is made (0700). A
folder or an appended file that was there keeps its mode, unless `close_to_writers` is asked for.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_OTHERS_WRITE = 0o022
_DRAFT = re.compile(r"\..*\.draft|.*\.jsonl(\.head|\.torn)?\.new-\d+")
"""What a draft is called; the second way is that of ledgers by earlier versions."""


def is_draft(path: Path) -> bool:
    """Whether a file is the remainder of an unfinished write of this module."""
    return _DRAFT.fullmatch(path.name) is not None


def remove_drafts(folder: Path) -> None:
    """Removes the remainders of unfinished writes; only for the holder of the folder (`held`)."""
    for path in sorted(folder.iterdir()):
        if is_draft(path):
            path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Makes ``folder`` with mode 0700 and its missing parents; an existing one stays as it is.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    try:
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def close_to_writers(folder: Path) -> None:
    """Takes the right to write in ``folder`` from everybody but its owner; readers stay.

    A folder of another user stays as it is: that user decides.
    """
    found = folder.stat()
    if found.st_mode & _OTHERS_WRITE and found.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``; on any error the old file is left as it was.

    Raises:
        OSError: the folder is missing or not writable, or the disk is full.
    """
    draft = path.with_name(f".{path.name}.draft")  # one name: the next write takes its place
    try:
        _write_draft(draft, content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def create_atomically(path: Path, content: bytes) -> None:
    """Creates a new file with all of ``content``, or no file.

    Raises:
        FileExistsError: it exists, or another process made it meanwhile.
        OSError: as `write_atomically`.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        _write_draft(draft, content)
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def append_durably(descriptor: int, data: bytes) -> None:
    """Appends ``data`` to an open file and syncs it; a crash may leave a part of it."""
    _write_whole(descriptor, data)
    os.fsync(descriptor)


def append_line(path: Path, line: bytes) -> None:
    """Appends ``line`` to ``path``, which is made if need be, whole or not at all.

    A kill in between may leave a part of the line, without its newline; the caller's reader drops
    it. Not fsynced: see `sync`.

    Raises:
        OSError: the disk refuses; the file is as long as before.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _PRIVATE_FILE)
    try:
        length = os.fstat(descriptor).st_size
        try:
            _write_whole(descriptor, line)
        except OSError:
            os.ftruncate(descriptor, length)
            raise
    finally:
        os.close(descriptor)


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Locks ``folder`` for this process without writing; the lock ends with the process.

    Raises:
        BlockingIOError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _write_whole(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _write_draft(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_FILE)
    try:
        os.fchmod(descriptor, _PRIVATE_FILE)  # a draft that a crash left keeps the mode it had
        append_durably(descriptor, content)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Flushes a file, or the entries of a folder (new names, renames), to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MOST_BYTES = 1 << 30
"""The most bytes of a file that is read whole."""


def check_regular(path: Path, most: int | None = None) -> None:
    """Refuses, before opening it, a path that is no regular file of at most ``most`` bytes.

    Raises:
        OSError: its ``strerror`` says why: no file, a folder, a pipe, a device, a loop of links, a
            name that no file can have.
    """
    try:
        found = os.stat(path)
    except ValueError:
        raise OSError(errno.EINVAL, "a name that no file can have") from None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file")
    if most is not None and found.st_size > most:
        raise OSError(errno.EFBIG, f"{found.st_size} bytes, more than {most}")


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """Reads a regular file; errors as `check_regular`, and where it cannot be read."""
    check_regular(path, most)
    return path.read_bytes()

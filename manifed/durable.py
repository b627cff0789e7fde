"""Writing files so that a crash at any moment leaves the old bytes or the new ones.

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
    """Whether a file is what an unfinished write of this module left behind."""
    return _DRAFT.fullmatch(path.name) is not None


def remove_drafts(folder: Path) -> None:
    """Remove what unfinished writes left; only for who holds the folder (`held`)."""
    for path in sorted(folder.iterdir()):
        if is_draft(path):
            path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make ``folder`` with mode 0700, its missing parents by the umask; one that is there stays.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    try:
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def close_to_writers(folder: Path) -> None:
    """Let nobody but the owner put files into ``folder`` or take them away; readers stay.

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
    """A new file with all of ``content``, or none.

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
    """``data`` at the end of an open file, on disk; a crash may leave a part of it."""
    _write_whole(descriptor, data)
    os.fsync(descriptor)


def append_line(path: Path, line: bytes) -> None:
    """Add ``line`` at the end of ``path``, which is made if need be; all of it or nothing.

    A kill in between may leave a part of the line, without its newline; the caller's reader drops
    it. Not fsynced: see `sync_file`.

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


def sync_file(path: Path) -> None:
    """Make what was appended to ``path``, and its name, survive a power cut."""
    sync(path)
    sync(path.parent)


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
    """Make a file, or the entries of a folder (new names, renames), survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MOST_BYTES = 1 << 30
"""The most bytes of a file that is read whole."""


def check_regular(path: Path, most: int | None = None) -> None:
    """Refuse what is no regular file of at most ``most`` bytes, before anything opens it.

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
    """The bytes of a regular file; errors as `check_regular`, and where it cannot be read."""
    check_regular(path, most)
    return path.read_bytes()

"""Reading regular files alone: a pipe would be waited for, and a device may never end."""

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 1 << 30
"""Of a file that is read whole."""


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

"""Where a command may write: judged before anything runs, and left as it was found."""

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from manifed.errors import ConfigError, one_line

_LONGEST = len(".checkpoint.safetensors.draft")
"""Characters of the longest name in a run folder."""


def real(option: str, path: Path) -> Path:
    """The path without links and dots.

    Raises:
        ConfigError: a loop of links, or a name that no system takes.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(option, path, "a path", _reason(error)) from None


def check_new(option: str, path: Path, is_fresh: Callable[[Path], bool] = lambda _: True) -> None:
    """Refuse a folder that is there and not ``is_fresh``, or cannot be made and written into.

    It is tried: folders that are missing are made, a file is written, and all that is removed.

    Raises:
        ConfigError: with the option and the path.
    """
    try:
        path.lstat()
        is_there = True
    except FileNotFoundError:
        is_there = False
    except (OSError, ValueError) as error:
        raise _refused(option, path, "a folder that can be made", _reason(error)) from None
    if is_there and not path.is_dir():
        raise ConfigError(f"{option}: expected a folder, got the file {str(path)!r}")
    try:
        if is_there and not is_fresh(path):
            raise ConfigError(f"{option}: expected a new or empty folder, got {str(path)!r}")
        _try_out(path)
    except OSError as error:
        raise _refused(option, path, "a folder that can be written", _reason(error)) from None


def check_file(option: str, path: Path) -> None:
    """Refuse a file that cannot be written or replaced; errors as `check_new`."""
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise _refused(option, path, "a file that can be made", _reason(error)) from None
    else:
        if path.is_dir() or not path.is_file():
            what = "a folder" if path.is_dir() else "no regular file"
            raise _refused(option, path, "a file that can be made", what)
    if len(os.fsencode(path.name)) > 255 - len("..draft"):
        raise _refused(option, path, "a file that can be made", os.strerror(errno.ENAMETOOLONG))
    check_new(option, path.absolute().parent)


def _try_out(path: Path) -> None:
    missing = [path, *path.parents]
    missing = [folder for folder in missing if not folder.exists()][::-1]
    made: list[Path] = []
    try:
        for folder in missing:
            folder.mkdir()
            made.append(folder)
        probe = (
            path / f".{secrets.token_hex(_LONGEST)[: _LONGEST - 7]}.draft"
        )  # an unfinished write
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, b"x")
        finally:
            os.close(descriptor)
            probe.unlink()
    finally:
        for folder in made[::-1]:
            with suppress(OSError):
                folder.rmdir()


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _refused(option: str, path: Path, expected: str, found: str) -> ConfigError:
    shown = one_line(repr(str(path)), 300)
    return ConfigError(one_line(f"{option}: expected {expected}, got {shown}: {found}"))

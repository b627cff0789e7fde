"""Checks, before anything runs, that a command may write to the given places."""

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from manifed.errors import ConfigError, one_line


@contextmanager
def _refused(option: str, path: Path, expected: str) -> Generator[None]:
    """Say of what the system refuses that it is not what the option needs."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        shown = one_line(repr(str(path)), 300)
        found = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option}: expected {expected}, got {shown}: {found}") from None


def real(option: str, path: Path) -> Path:
    """Returns the path without links and dots.

    Raises:
        ConfigError: a loop of links, or a name that no system takes.
    """
    with _refused(option, path, "a path"):
        return path.resolve()


def check_new(option: str, path: Path, is_fresh: Callable[[Path], bool] = lambda _: True) -> None:
    """Refuses a folder that exists and is not ``is_fresh``, or that cannot be written into.

    It is tried: folders that are missing are made, a file is written, and all that is removed.

    Raises:
        ConfigError: with the option and the path.
    """
    made = list[Path]()
    with _refused(option, path, "a folder that can be made and written"):
        try:
            if os.path.lexists(path) and not path.is_dir():
                raise ConfigError(f"{option}: expected a folder, got the file {str(path)!r}")
            for folder in [one for one in (path, *path.parents) if not one.exists()][::-1]:
                folder.mkdir()
                made.append(folder)
            if not is_fresh(path):
                raise ConfigError(f"{option}: expected a new or empty folder, got {str(path)!r}")
            # as long as ".checkpoint.safetensors.draft", and no reader takes it for more
            prefix = ".an-unfinished-"
            with tempfile.NamedTemporaryFile(dir=path, prefix=prefix, suffix=".draft") as probe:
                probe.write(b"x")
        finally:
            for folder in made[::-1]:
                with suppress(OSError):
                    folder.rmdir()


def check_file(option: str, path: Path) -> None:
    """Refuses a file that cannot be written or replaced; errors as `check_new`."""
    with _refused(option, path, "a file that can be made"):
        if os.path.lexists(path) and not path.is_file():
            raise OSError(None, "a folder" if path.is_dir() else "no regular file")
        if len(os.fsencode(path.name)) > 255 - len("..draft"):
            raise OSError(None, "a name that is too long")
    check_new(option, path.absolute().parent)

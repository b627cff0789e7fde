"""Putting bytes on disk so that a crash at any moment leaves the old state or the new one.

Everything here returns after fsync of the file and, where a name changed, of its directory.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GENESIS: Final = "0" * 64
_LONGEST_HEAD: Final = 4096
"""Bytes; a head has about 200."""


@dataclass(frozen=True)
class Head:
    """The last acknowledged line of a ledger; as text ``sequence:sha256``, an anchor to keep."""

    sequence: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.sequence}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """The head that ``str`` wrote.

        Raises:
            ValueError: for any other text.
        """
        found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip())
        if found is None:
            raise ValueError(
                f"Expected a ledger head like '41:<64 hex digits>', got {text[:80]!r}; "
                "copy it from the end of the run's output"
            )
        return cls(int(found[1]), found[2])


@dataclass(frozen=True)
class Torn:
    """The bytes of a line that a crash left unfinished."""

    line: int
    data: bytes


def head_file(path: Path) -> Path:
    """Where the head of the ledger at ``path`` lies."""
    return path.with_name(f"{path.name}.head")


def torn_file(path: Path) -> Path:
    """Where a recovery keeps the torn end of the ledger until it is paid for."""
    return path.with_name(f"{path.name}.torn")


def read_head(path: Path) -> tuple[Head, str | None] | None:
    """The head of the ledger at ``path`` and its tag; None when none is there or can be read."""
    try:
        file = head_file(path)
        if not file.is_file() or file.stat().st_size > _LONGEST_HEAD:
            return None
        found = json.loads(file.read_bytes())
        tag = found.get("tag")
        head = Head.parse(f"{found['sequence']}:{found['sha256']}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return head, None if tag is None else str(tag)


def write_head(path: Path, head: Head, tag: str | None = None) -> None:
    """Replace the head, atomically; ``tag`` signs it."""
    found: dict[str, int | str] = {"sequence": head.sequence, "sha256": head.sha256}
    if tag is not None:
        found["tag"] = tag
    replace_durably(head_file(path), json.dumps(found).encode("ascii") + b"\n")


def create_durably(path: Path, data: bytes) -> None:
    """A new file with all of ``data``, or none.

    Raises:
        FileExistsError: when it exists.
    """
    draft = _draft(path, data)
    try:
        os.link(draft, path)
    finally:
        draft.unlink()
    _sync_directory(path)


def replace_durably(path: Path, data: bytes) -> None:
    """The file with ``data`` instead of what it held."""
    _draft(path, data).replace(path)
    _sync_directory(path)


def append_durably(descriptor: int, data: bytes) -> None:
    """``data`` at the end of an open file."""
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)


def set_aside(path: Path, descriptor: int, length: int, torn: Torn) -> Torn | None:
    """Cut the file to ``length``, its torn end safe in `torn_file` first.

    Returns what lies in `torn_file`, from this call or an interrupted one; None when nothing does.
    """
    earlier = _read_torn(path)
    if torn.data:
        if earlier is not None and earlier.line == torn.line:
            torn = Torn(torn.line, earlier.data + torn.data)
        replace_durably(torn_file(path), b"%d\n" % torn.line + torn.data)
        os.ftruncate(descriptor, length)
        os.fsync(descriptor)
        return torn
    return earlier


def _read_torn(path: Path) -> Torn | None:
    """What an interrupted `set_aside` kept.

    Raises:
        ValueError: it is not what that wrote.
    """
    try:
        line, _, data = torn_file(path).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if re.fullmatch(rb"[0-9]{1,18}", line) is None:
        raise ValueError(f"Expected a line's number in {torn_file(path)}, got {line[:40]!r}")
    return Torn(int(line), data)


def check_torn(path: Path) -> bool:
    """Whether an interrupted recovery left something; errors as `_read_torn`."""
    try:
        return _read_torn(path) is not None
    except OSError as error:
        raise ValueError(f"Expected bytes in {torn_file(path)}, got {error.strerror}") from None


def forget_torn(path: Path) -> None:
    """Remove what `set_aside` kept."""
    torn_file(path).unlink()
    _sync_directory(path)


def is_draft(path: Path) -> bool:
    """Whether a file is the draft of a write that a crash left unfinished."""
    return re.search(r"\.jsonl(\.head|\.torn)?\.new-\d+$", path.name) is not None


def _draft(path: Path, data: bytes) -> Path:
    draft = path.with_name(f"{path.name}.new-{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        append_durably(descriptor, data)
    finally:
        os.close(descriptor)
    return draft


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The chain of a ledger: entries as lines of JSON, each bound to the one before by SHA-256."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from privacy import storage

RESTORE: Final = "restore it from a backup; without it nobody can say what was spent"
HEADER: Final = "header"
RECOVERED: Final = "recovered"


class LedgerDamaged(ValueError):
    """The ledger cannot be trusted from ``line`` on; the text says what to do."""

    def __init__(self, path: Path, line: int, what: str, remedy: str) -> None:
        super().__init__(f"{path}, line {line}: {what}; {remedy}")
        self.line = line


class LedgerTorn(LedgerDamaged):
    """The last line was never finished, hence never acknowledged."""


class LedgerLocked(LedgerDamaged):
    """Another process holds the ledger."""


@dataclass(frozen=True)
class Entry:
    """One line."""

    sequence: int
    kind: str
    body: Mapping[str, Any]
    previous: str
    sha256: str

    @classmethod
    def make(cls, sequence: int, kind: str, body: Mapping[str, Any], previous: str) -> "Entry":
        """The entry with its hash."""
        body = json.loads(_canonical(body))
        content = {"sequence": sequence, "kind": kind, "body": body, "previous": previous}
        return cls(sequence, kind, body, previous, hashlib.sha256(_canonical(content)).hexdigest())

    def line(self) -> bytes:
        """The line, newline included."""
        return _canonical(dataclasses.asdict(self)) + b"\n"


def verified(path: Path, data: bytes) -> tuple[Entry, ...]:
    """The entries of whole lines, every hash recomputed.

    Raises:
        LedgerDamaged: with the first line that is not what `Ledger.append` wrote.
    """
    entries: list[Entry] = []
    previous = storage.GENESIS
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        entry = _parsed(line)
        if entry is None or (entry.sequence, entry.previous) != (number - 1, previous):
            raise LedgerDamaged(path, number, "was changed, or one before it removed", RESTORE)
        if (entry.kind == HEADER) != (number == 1):
            raise LedgerDamaged(path, number, f"has kind {entry.kind!r} out of place", RESTORE)
        entries.append(entry)
        previous = entry.sha256
    if not entries:
        raise LedgerDamaged(path, 1, "the header is missing", RESTORE)
    return tuple(entries)


def _parsed(line: bytes) -> Entry | None:
    """The entry of a line; None unless it is exactly what `append` writes."""
    try:
        found = json.loads(line)
        entry = Entry.make(found["sequence"], found["kind"], found["body"], found["previous"])
    except (ValueError, KeyError, TypeError):
        return None
    return entry if entry.line() == line else None


def _canonical(value: Any) -> bytes:
    """One way to write a JSON value, so that hashes are reproducible."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")

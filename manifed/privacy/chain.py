"""The chain of a ledger: entries as lines of JSON, each bound to the one before by SHA-256.

A keyed ledger adds to each line ``tag``, the HMAC-SHA256 of the line's hash. The hashes detect
accidents; only the tags detect somebody who rewrites the file, because everybody can recompute a
hash.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

GENESIS: Final = "0" * 64
"""The hash that the first line is bound to."""
RESTORE: Final = "restore it from a backup; without it nobody can say what was spent"
HEADER: Final = "header"
RECOVERED: Final = "recovered"
FORMAT: Final = 2
"""What `Ledger.create` writes; a header without the key "format" is format 1."""
LEAST_KEY: Final = 16
"""Bytes that a key has at least."""

_END: Final = re.compile(rb',"sha256":"([0-9a-f]{64})"(?:,"tag":"([0-9a-f]{64})")?\}\n\Z')
_LONGEST_END: Final = 160


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
    tag: str | None = None


def written(
    sequence: int, kind: str, body: Mapping[str, Any], previous: str, key: bytes | None = None
) -> tuple[Entry, bytes]:
    """An entry with its hash and, under a key, its tag; and its line, newline included.

    Raises:
        ValueError, TypeError: for a body that is no JSON (NaN included).
    """
    content = _canonical({"sequence": sequence, "kind": kind, "body": body, "previous": previous})
    sha256 = hashlib.sha256(content).hexdigest()
    tag = None if key is None else mac(key, "line", sha256)
    end = f',"sha256":"{sha256}"' + ("" if tag is None else f',"tag":"{tag}"') + "}\n"
    return Entry(**json.loads(content), sha256=sha256, tag=tag), content[:-1] + end.encode()


@dataclass(frozen=True)
class Line:
    """A whole line that was read: its entry and its length in bytes."""

    entry: Entry
    length: int


def lines(path: Path, file: BinaryIO, key: bytes | None) -> Iterator[Line]:
    """The verified lines of an open ledger, one at a time; what follows the last newline is left.

    Raises:
        LedgerDamaged: with the first line that is not what `Ledger.append` wrote, for a wrong key,
            and for a key where the ledger has none.
    """
    previous, key_id, number = GENESIS, None, 0
    for raw in file:
        if not raw.endswith(b"\n"):
            break
        number += 1
        entry = _parsed(raw)
        if entry is None or (entry.sequence, entry.previous) != (number - 1, previous):
            raise LedgerDamaged(path, number, "was changed, or one before it removed", RESTORE)
        if (entry.kind == HEADER) != (number == 1):
            raise LedgerDamaged(path, number, f"has kind {entry.kind!r} out of place", RESTORE)
        if number == 1:
            _check_format(path, entry.body)
            key_id = entry.body.get("key_id")
            _check_key(path, key_id, key)
        _check_tag(path, entry, key, is_keyed=key_id is not None)
        yield Line(entry, len(raw))
        previous = entry.sha256
    if number == 0:
        raise LedgerDamaged(path, 1, "the header is missing", RESTORE)


def ends_with(data: bytes, sha256: str) -> bool:
    """Whether the end of a ledger's bytes is that of the line with this hash."""
    end = _END.search(data, max(0, len(data) - _LONGEST_END))
    return end is not None and end[1] == sha256.encode("ascii")


# -- keys --------------------------------------------------------------------------------------
def read_key(path: str | Path) -> bytes:
    """The key in a file, its bytes without white space around them.

    Raises:
        ValueError: for less than 16 bytes.
        OSError: when it cannot be read.
    """
    return checked_key(Path(path).read_bytes().strip(), f"the key file {path}")


def checked_key(key: bytes, name: str = "the ledger's key") -> bytes:
    """``key`` itself.

    Raises:
        ValueError: for less than 16 bytes.
    """
    if len(key) < LEAST_KEY:
        raise ValueError(
            f"Expected at least {LEAST_KEY} bytes in {name}, got {len(key)}; "
            "make one with: openssl rand -hex 32"
        )
    return key


def key_id_of(key: bytes) -> str:
    """A name for a key that tells nothing about it, 16 hex digits."""
    return mac(key, "id", "")[:16]


def mac(key: bytes, purpose: str, text: str) -> str:
    """HMAC-SHA256 of ``text``, 64 hex digits; tags of different purposes never meet."""
    return hmac.new(key, f"manifed ledger {purpose}\0{text}".encode(), hashlib.sha256).hexdigest()


def _check_format(path: Path, header: Mapping[str, Any]) -> None:
    found = header.get("format", 1)
    if type(found) is not int or not 1 <= found <= FORMAT:
        raise LedgerDamaged(
            path,
            1,
            f"has format {repr(found)[:40]}, known are 1 to {FORMAT}",
            "read it with a newer version",
        )


def _check_key(path: Path, key_id: Any, key: bytes | None) -> None:
    if key is None:
        return
    if key_id is None:
        raise LedgerDamaged(
            path,
            1,
            "a key was given and this ledger is not keyed (a rewrite may have dropped its tags)",
            "give no key if it never had one",
        )
    if key_id != key_id_of(key):
        raise LedgerDamaged(
            path, 1, f"was keyed with key {key_id}, got key {key_id_of(key)}", "give the run's key"
        )


def _check_tag(path: Path, entry: Entry, key: bytes | None, *, is_keyed: bool) -> None:
    number = entry.sequence + 1
    if (entry.tag is not None) != is_keyed:
        raise LedgerDamaged(
            path, number, f"has {'no' if is_keyed else 'a'} tag, unlike its header says", RESTORE
        )
    if key is None or entry.tag is None:
        return
    if not hmac.compare_digest(entry.tag, mac(key, "line", entry.sha256)):
        raise LedgerDamaged(path, number, "was rewritten by somebody without the key", RESTORE)


# -- lines -------------------------------------------------------------------------------------
def _parsed(line: bytes) -> Entry | None:
    """The entry of a line; None unless its hash is that of its bytes."""
    end = _END.search(line, max(0, len(line) - _LONGEST_END))
    if end is None:
        return None
    content = line[: end.start()] + b"}"
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256.encode("ascii") != end[1]:
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    match found:
        case {"sequence": int(), "kind": str(), "body": dict(), "previous": str(), **more} if (
            not more
        ):
            tag = None if end[2] is None else end[2].decode("ascii")
            return Entry(**found, sha256=sha256, tag=tag)
        case _:
            return None


def _canonical(value: Any) -> bytes:
    """One way to write a JSON value, so that hashes are reproducible."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")

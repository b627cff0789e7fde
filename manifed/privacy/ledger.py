"""The ledger: what was charged, one JSON line each, chained by hashes and on disk before use.

Line n holds ``sequence`` n - 1, ``kind``, ``body``, ``previous`` (the SHA-256 of line n - 1) and
``sha256`` (of the line without it); a keyed ledger adds ``tag`` (privacy/chain.py). Beside the
ledger lies ``<name>.head``, the number of lines that have been acknowledged and the last hash: a
chain alone cannot tell that its end was cut off. The header names the format, a random run
identifier and the key's name.

Guarantees: ``append`` returns only after the line and the head are on disk (fsync of the file and
of its directory), so whatever is released after it is in the ledger for ever. A line that a crash
tore was never acknowledged; a missing or changed one is found by `Ledger.open`, which says where.
One process at a time holds a ledger (flock; the kernel lets go when the process dies, also by
kill -9). A ledger that was moved, cut, replaced or written by others while it is open takes nothing
more: before every line, the file in its place must be the one that is held, as long as it was left,
with the last line and the head that were written. Memory does not grow with the lines: they are
verified and handed on one at a time.

Who can write the folder can rewrite an unkeyed ledger and its head consistently, and can put back
an older copy of both, keyed or not: the first needs a key to detect, the second an anchor, a
`Head` that was kept elsewhere.
"""

import fcntl
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from manifed.durable import append_durably, create_atomically, sync_folder, write_atomically
from manifed.privacy import chain
from manifed.privacy.chain import (
    FORMAT,
    GENESIS,
    HEADER,
    RECOVERED,
    RESTORE,
    Entry,
    LedgerDamaged,
    LedgerLocked,
    LedgerTorn,
    read_key,
)

__all__ = [
    "RECOVERED",
    "RESTORE",
    "Entry",
    "Head",
    "Ledger",
    "LedgerDamaged",
    "LedgerLocked",
    "LedgerTorn",
    "Verified",
    "head_file",
    "read_head",
    "read_key",
    "torn_file",
    "write_head",
]

Feed = Callable[[Entry], None]
"""What is handed every entry in order as it is verified; an error after it voids what it got."""
Body = Mapping[str, Any]

_NO_CHARGE: Final = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError
)  # fmt: skip
"""What a body that no run wrote may raise where it is counted."""
_RECOVER: Final = "resume the run, or call Ledger.recover with the charge it was writing"
_RESERVED_NAMES: Final = {"format", "run_id", "key_id"}
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
class Verified:
    """What the verification of a ledger found."""

    header: Body
    head: Head
    """Of the last whole line."""
    length: int
    """Bytes of the whole lines."""
    is_torn: bool
    """Whether a line is there that was never finished."""
    authenticity: Literal["unkeyed", "not checked", "verified"]
    """What the tags say: there are none, no key was given, or all are by the key."""

    def torn_error(self, path: str | Path) -> LedgerTorn:
        """What to raise where a torn line is no news."""
        return LedgerTorn(
            Path(path), self.head.sequence + 2, "was never finished (a crash?)", _RECOVER
        )

    @property
    def format(self) -> int:
        """The format's number; 1 has no reservations, run identifier or key."""
        return int(self.header.get("format", 1))

    @property
    def run_id(self) -> str | None:
        """The run that the ledger belongs to; None in format 1."""
        return self.header.get("run_id")

    @property
    def key_id(self) -> str | None:
        """The name of its key; None for an unkeyed ledger."""
        return self.header.get("key_id")


class Ledger:
    """An open, locked ledger; use it as a context manager or call `close`."""

    def __init__(self, path: Path, descriptor: int, found: Verified, key: bytes | None) -> None:
        """Use `create`, `open` or `recover`."""
        self._path, self._descriptor, self._key = path, descriptor, key
        self._header, self._head, self._run_id = found.header, found.head, found.run_id
        self._length = found.length
        self._is_broken = False

    @classmethod
    def create(cls, path: str | Path, header: Body, *, key: bytes | None = None) -> "Ledger":
        """A new ledger whose first line is ``header`` and format, run identifier, key's name.

        Raises:
            FileExistsError: a ledger is never overwritten.
            LedgerDamaged: when only the head of an earlier, longer ledger is left there.
            ValueError: for a short key, or a header with a reserved name.
        """
        path = Path(path)
        if taken := _RESERVED_NAMES & set(header):
            raise ValueError(f"Expected a header without {sorted(taken)}, which the ledger sets")
        own = {
            "format": FORMAT,
            "run_id": secrets.token_hex(16),
            "key_id": None if key is None else chain.key_id_of(chain.checked_key(key)),
        }
        first, line = chain.written(0, HEADER, {**own, **header}, GENESIS, key)
        if path.exists():
            raise FileExistsError(f"{path} exists; resume that run, or choose another folder")
        if (left := read_head(path)) is not None and left[0].sequence > 0:
            raise LedgerDamaged(path, 1, "the ledger is gone and only its head is left", RESTORE)
        head = Head(0, first.sha256)
        write_head(path, head, _head_tag(key, head))
        create_atomically(path, line)
        authenticity = "unkeyed" if key is None else "verified"
        found = Verified(first.body, head, len(line), is_torn=False, authenticity=authenticity)
        return cls(path, _locked(path), found, key)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        key: bytes | None = None,
        anchors: Iterable[Head] = (),
        feed: Feed | None = None,
    ) -> "Ledger":
        """The ledger at ``path``, its whole chain verified, locked for this process.

        Raises:
            FileNotFoundError: when there is none.
            LedgerDamaged: with the line at which trust ends (`LedgerTorn`: the last one was never
                finished; `LedgerLocked`: another process writes it), when an anchor is not in the
                chain, and for a wrong or missing key.
        """
        path = Path(path)
        descriptor = _locked(path)
        try:
            found = cls.verify(path, key=key, anchors=anchors, feed=feed)
            if found.is_torn:
                raise found.torn_error(path)
            _refuse_without_key(path, found)
            write_head(path, found.head, _head_tag(key, found.head))
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, found, key)

    @staticmethod
    def verify(
        path: str | Path,
        *,
        key: bytes | None = None,
        anchors: Iterable[Head] = (),
        feed: Feed | None = None,
    ) -> Verified:
        """What the chain holds, read once in a stream without lock and without writing anything.

        A torn last line is reported and not raised. Every anchor must be a line of the chain; a
        ledger that was rolled back behind it, or is another run's, is damaged.

        Raises:
            FileNotFoundError: when there is no ledger.
            LedgerDamaged: as `open`; a keyed ledger without the key is read, its tags unchecked.
        """
        path = Path(path)
        acknowledged = read_head(path)  # before the lines: a running ledger only grows
        wanted = [(anchor, "an anchor") for anchor in anchors]
        if acknowledged is not None:
            wanted.append((acknowledged[0], "its head"))
        header, last, length = None, None, 0
        if path.exists() and not path.is_file():
            raise LedgerDamaged(path, 1, "is no regular file", RESTORE)
        with path.open("rb") as file:
            for line in chain.lines(path, file, key):
                entry = last = line.entry
                header = entry.body if header is None else header
                length += line.length
                for head, name in wanted:
                    if head.sequence == entry.sequence and head.sha256 != entry.sha256:
                        raise LedgerDamaged(
                            path,
                            entry.sequence + 1,
                            f"is not the line that was written ({name} says so)",
                            RESTORE,
                        )
                if feed is not None:
                    _fed(feed, path, entry)
            is_torn = os.fstat(file.fileno()).st_size > length
        assert header is not None
        assert last is not None
        head = Head(last.sequence, last.sha256)
        _check_head(path, head, header, acknowledged, key)
        for anchor, _ in wanted:
            if anchor.sequence > head.sequence:
                raise LedgerDamaged(
                    path,
                    head.sequence + 2,
                    f"is missing: {anchor.sequence + 1} lines were written (rolled back?)",
                    RESTORE,
                )
        try:
            is_torn |= _check_torn(path)
        except ValueError as error:
            raise LedgerDamaged(path, head.sequence + 2, str(error), RESTORE) from None
        authenticity = "verified" if key is not None else "not checked"
        if header.get("key_id") is None:
            authenticity = "unkeyed"
        return Verified(header, head, length, is_torn, authenticity)

    @staticmethod
    def read(path: str | Path, *, key: bytes | None = None) -> tuple[Entry, ...]:
        """All entries at once, verified, without taking the lock; errors as `open`."""
        entries: list[Entry] = []
        found = Ledger.verify(path, key=key, feed=entries.append)
        if found.is_torn:
            raise found.torn_error(path)
        return tuple(entries)

    @classmethod
    def recover(
        cls,
        path: str | Path,
        *,
        charge: Body | Callable[[], Body],
        key: bytes | None = None,
        anchors: Iterable[Head] = (),
        feed: Feed | None = None,
    ) -> "Ledger":
        """Opens a ledger whose last line is torn, paying for what that line may have covered.

        ``charge`` is the body of the charge that was being written (a run knows it: it is its
        next one; a function is asked after the other lines were fed). It goes into the entry
        "recovered" with the torn bytes and counts as spent, although its messages cannot have
        left. Torn bytes that are seen to begin something that costs nothing (a note) are dropped.
        A sound ledger is opened as it is; damage anywhere else is not repaired. Interrupted
        itself, it can be called again.

        Raises:
            LedgerDamaged: when anything but the last, unfinished line is wrong.
        """
        path = Path(path)
        descriptor = _locked(path)
        try:
            found = cls.verify(path, key=key, anchors=anchors, feed=feed)
            _refuse_without_key(path, found)
            with path.open("rb") as file:
                file.seek(found.length)
                torn = Torn(found.head.sequence + 2, file.read())
            kept = _set_aside(path, descriptor, found.length, torn)
            write_head(path, found.head, _head_tag(key, found.head))
            ledger = cls(path, descriptor, found, key)
            if kept is not None:
                is_lost = kept.line > found.head.sequence + 1
                if is_lost and _may_be_charge(kept.data):
                    body = charge() if callable(charge) else charge
                    entry = ledger.append(RECOVERED, {"torn": kept.data.hex(), "charge": body})
                    if feed is not None:
                        feed(entry)
                _forget_torn(path)
        except BaseException:
            os.close(descriptor)
            raise
        return ledger

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything that was ever appended, the header first, read from disk."""
        return Ledger.read(self._path, key=self._key)

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    @property
    def header(self) -> Body:
        """The first line's body."""
        return self._header

    @property
    def run_id(self) -> str | None:
        """The run that it belongs to; None in format 1."""
        return self._run_id

    @property
    def head(self) -> Head:
        """The last line that is on disk; kept elsewhere, it is an anchor."""
        return self._head

    def append(self, kind: str, body: Body) -> Entry:
        """Add one line; returns it when it is on disk.

        Raises:
            ValueError: for a body that is no JSON (NaN included).
            OSError: when the disk refuses; the ledger then takes nothing more until reopened.
            LedgerDamaged: it is not as it was left, or an earlier write failed; the same holds.
        """
        if self._is_broken:
            raise LedgerDamaged(
                self._path, self._head.sequence + 2, "an earlier write failed", "reopen the ledger"
            )
        before = self._head
        entry, line = chain.written(before.sequence + 1, kind, body, before.sha256, self._key)
        head = Head(entry.sequence, entry.sha256)
        self._is_broken = True
        self._check_place()
        append_durably(self._descriptor, line)
        write_head(self._path, head, _head_tag(self._key, head))
        self._head, self._length = head, self._length + len(line)
        self._is_broken = False
        return entry

    def _check_place(self) -> None:
        """Refuse to go on in a file that is not the ledger as this process left it.

        Raises:
            LedgerDamaged: with what became of it.
        """
        mine, what = os.fstat(self._descriptor), None
        try:
            is_there = os.path.samestat(mine, os.stat(self._path))
        except OSError:
            is_there = False
        end = os.pread(self._descriptor, _LONGEST_HEAD, max(0, mine.st_size - _LONGEST_HEAD))
        if not is_there:
            what = "the file was moved, removed or replaced while this process held it"
        elif mine.st_size != self._length or not chain.ends_with(end, self._head.sha256):
            what = "the file was cut, overwritten or written by others while this process held it"
        elif read_head(self._path) != (self._head, _head_tag(self._key, self._head)):
            what = f"its head {head_file(self._path).name} was changed while this process held it"
        if what is not None:
            raise LedgerDamaged(self._path, self._head.sequence + 2, what, RESTORE)

    @property
    def is_broken(self) -> bool:
        """Whether a write failed, so that nothing more is taken."""
        return self._is_broken

    def close(self) -> None:
        """Let go of the lock; closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LedgerLocked(
            path, 1, "another process holds this ledger", "wait for that run, or stop it"
        ) from None
    return descriptor


def _fed(feed: Feed, path: Path, entry: Entry) -> None:
    try:
        feed(entry)
    except _NO_CHARGE as error:
        said = str(error) if isinstance(error, ValueError) else repr(error)
        what = " ".join(said.split())[:300]
        raise LedgerDamaged(
            path, entry.sequence + 1, f"is no charge that can be counted: {what}", RESTORE
        ) from error


_FIRST_KEY: Final = re.compile(rb'{"body":{"([a-z_]+)"')
_FREE: Final = (b"amends", b"cohorts", b"is_open", b"upto", b"noise_origins")
"""First keys of what costs nothing: amendments, consumptions, notes of where noise came from."""


def _may_be_charge(torn: bytes) -> bool:
    """Whether a torn line may have reserved or charged something; only a seen key says no."""
    seen = _FIRST_KEY.match(torn)
    return seen is None or seen.group(1) not in _FREE


def _refuse_without_key(path: Path, found: Verified) -> None:
    if found.authenticity == "not checked":
        raise LedgerDamaged(
            path, 1, f"is keyed with key {found.key_id} and no key was given", "give the run's key"
        )


def _check_head(
    path: Path,
    last: Head,
    header: Body,
    acknowledged: tuple[Head, str | None] | None,
    key: bytes | None,
) -> None:
    """Refuse a missing head, and one that was not signed by the key."""
    name = head_file(path).name
    if acknowledged is None:
        is_there = os.path.lexists(head_file(path))
        what = "no head that a run writes" if is_there else "missing"
        raise LedgerDamaged(path, last.sequence + 1, f"its head {name} is {what}", RESTORE)
    head, tag = acknowledged
    if (tag is not None) != (header.get("key_id") is not None):
        raise LedgerDamaged(
            path,
            last.sequence + 1,
            f"its head {name} has a tag where the header has no key, or none where it has one",
            RESTORE,
        )
    if key is not None and not hmac.compare_digest(str(tag), str(_head_tag(key, head))):
        raise LedgerDamaged(
            path, last.sequence + 1, f"its head {name} was rewritten without the key", RESTORE
        )


# -- the head beside it -----------------------------------------------------------------------
def head_file(path: Path) -> Path:
    """Where the head of the ledger at ``path`` lies."""
    return path.with_name(f"{path.name}.head")


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
    write_atomically(head_file(path), json.dumps(found).encode("ascii") + b"\n")


def _head_tag(key: bytes | None, head: Head) -> str | None:
    """What signs a head; None without a key."""
    return None if key is None else chain.mac(key, "head", str(head))


# -- the end that a crash tore ----------------------------------------------------------------
@dataclass(frozen=True)
class Torn:
    """The bytes of a line that a crash left unfinished."""

    line: int
    data: bytes


def torn_file(path: Path) -> Path:
    """Where a recovery keeps the torn end of the ledger until it is paid for."""
    return path.with_name(f"{path.name}.torn")


def _set_aside(path: Path, descriptor: int, length: int, torn: Torn) -> Torn | None:
    """Cut the file to ``length``, its torn end safe in `torn_file` first.

    Returns what lies in `torn_file`, from this call or an interrupted one; None when nothing does.
    """
    earlier = _read_torn(path)
    if torn.data:
        if earlier is not None and earlier.line == torn.line:
            torn = Torn(torn.line, earlier.data + torn.data)
        write_atomically(torn_file(path), b"%d\n" % torn.line + torn.data)
        os.ftruncate(descriptor, length)
        os.fsync(descriptor)
        return torn
    return earlier


def _read_torn(path: Path) -> Torn | None:
    """What an interrupted `_set_aside` kept.

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


def _check_torn(path: Path) -> bool:
    """Whether an interrupted recovery left something; errors as `_read_torn`."""
    try:
        return _read_torn(path) is not None
    except OSError as error:
        raise ValueError(f"Expected bytes in {torn_file(path)}, got {error.strerror}") from None


def _forget_torn(path: Path) -> None:
    """Remove what `_set_aside` kept."""
    torn_file(path).unlink()
    sync_folder(path.parent)

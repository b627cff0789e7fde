"""The ledger: what was charged, one JSON line each, chained by hashes and on disk before use.

Line n holds ``sequence`` n - 1, ``kind``, ``body``, ``previous`` (the SHA-256 of line n - 1) and
``sha256`` (of the line without it). Beside the ledger lies ``<name>.head``, the number of lines
that have been acknowledged and the last hash: a chain alone cannot tell that its end was cut off.

Guarantees: ``append`` returns only after the line and the head are on disk (fsync of the file and
of its directory), so whatever is released after it is in the ledger for ever. A line that a crash
tore was never acknowledged; a missing or changed one is found by `Ledger.open`, which says where.
One process at a time holds a ledger (flock; the kernel lets go when the process dies, also by
kill -9).
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from privacy import storage
from privacy.chain import (
    HEADER,
    RECOVERED,
    RESTORE,
    Entry,
    LedgerDamaged,
    LedgerLocked,
    LedgerTorn,
    verified,
)

__all__ = ["RECOVERED", "Entry", "Ledger", "LedgerDamaged", "LedgerLocked", "LedgerTorn"]

_RECOVER: Final = "resume the run, or call Ledger.recover with the charge it was writing"


class Ledger:
    """An open, locked ledger; use it as a context manager or call `close`."""

    def __init__(self, path: Path, descriptor: int, entries: tuple[Entry, ...]) -> None:
        """Use `create`, `open` or `recover`."""
        self._path, self._descriptor, self._entries = path, descriptor, entries
        self._is_broken = False

    @classmethod
    def create(cls, path: str | Path, header: Mapping[str, Any]) -> "Ledger":
        """A new ledger whose first line is ``header``.

        Raises:
            FileExistsError: a ledger is never overwritten.
            LedgerDamaged: when only the head of an earlier, longer ledger is left there.
        """
        path = Path(path)
        first = Entry.make(0, HEADER, header, storage.GENESIS)
        if path.exists():
            raise FileExistsError(f"{path} exists; resume that run, or choose another folder")
        if (head := storage.read_head(path)) is not None and head.sequence > 0:
            raise LedgerDamaged(path, 1, "the ledger is gone and only its head is left", RESTORE)
        storage.write_head(path, storage.Head(0, first.sha256))
        storage.create_durably(path, first.line())
        return cls(path, _locked(path), (first,))

    @classmethod
    def open(cls, path: str | Path) -> "Ledger":
        """The ledger at ``path``, its whole chain verified, locked for this process.

        Raises:
            FileNotFoundError: when there is none.
            LedgerDamaged: with the line at which trust ends (`LedgerTorn`: the last one was never
                finished; `LedgerLocked`: another process writes it).
        """
        path = Path(path)
        descriptor = _locked(path)
        try:
            entries = cls.read(path)
            storage.write_head(path, storage.Head(entries[-1].sequence, entries[-1].sha256))
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, entries)

    @staticmethod
    def read(path: str | Path) -> tuple[Entry, ...]:
        """All entries, verified, without taking the lock (for reports); errors as `open`."""
        path = Path(path)
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        entries = verified(path, whole)
        _check_head(path, entries)
        if len(whole) < len(data) or storage.torn_file(path).exists():
            raise LedgerTorn(path, len(entries) + 1, "was never finished (a crash?)", _RECOVER)
        return entries

    @classmethod
    def recover(cls, path: str | Path, *, charge: Mapping[str, Any]) -> "Ledger":
        """Opens a ledger whose last line is torn, paying for what that line may have covered.

        ``charge`` is the body of the charge that was being written (a run knows it: it is its
        next one). It goes into the entry "recovered" with the torn bytes and counts as spent,
        although its letters cannot have left. A sound ledger is opened as it is; damage anywhere
        else is not repaired. Interrupted itself, it can be called again.

        Raises:
            LedgerDamaged: when anything but the last, unfinished line is wrong.
        """
        path = Path(path)
        descriptor = _locked(path)
        try:
            data = path.read_bytes()
            length = data.rfind(b"\n") + 1
            entries = verified(path, data[:length])
            _check_head(path, entries)
            torn = storage.Torn(len(entries) + 1, data[length:])
            torn = storage.set_aside(path, descriptor, length, torn)
            ledger = cls(path, descriptor, entries)
            if torn is not None:
                if torn.line > len(entries):
                    ledger.append(RECOVERED, {"torn": torn.data.hex(), "charge": dict(charge)})
                storage.forget_torn(path)
        except BaseException:
            os.close(descriptor)
            raise
        return ledger

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything that was ever appended, the header first."""
        return self._entries

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    def append(self, kind: str, body: Mapping[str, Any]) -> None:
        """Add one line; returns when it is on disk.

        Raises:
            ValueError: for a body that is no JSON (NaN included).
            OSError: when the disk refuses; the ledger then takes nothing more until reopened.
        """
        if self._is_broken:
            raise LedgerDamaged(
                self._path, len(self._entries) + 1, "an earlier write failed", "reopen the ledger"
            )
        last = self._entries[-1]
        entry = Entry.make(last.sequence + 1, kind, body, last.sha256)
        self._is_broken = True
        storage.append_durably(self._descriptor, entry.line())
        storage.write_head(self._path, storage.Head(entry.sequence, entry.sha256))
        self._entries = (*self._entries, entry)
        self._is_broken = False

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


def _check_head(path: Path, entries: tuple[Entry, ...]) -> None:
    """Refuse a ledger shorter than what was acknowledged."""
    head = storage.read_head(path)
    if head is None:
        raise LedgerDamaged(
            path, len(entries), f"its head {storage.head_file(path).name} is missing", RESTORE
        )
    if head.sequence >= len(entries):
        raise LedgerDamaged(
            path, len(entries) + 1, f"is missing: {head.sequence + 1} lines were written", RESTORE
        )
    if entries[head.sequence].sha256 != head.sha256:
        raise LedgerDamaged(path, head.sequence + 1, "is not the line that was written", RESTORE)

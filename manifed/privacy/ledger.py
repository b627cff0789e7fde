"""The ledger: one JSON line for each charge, chained by hashes and on disk before use.

Every line is an `Entry`. It may *reserve* rounds, one line for one round or for a block of them: a
reservation stands on disk before any message of its rounds leaves, and its cohort bounds who takes
part in *each* of them. It may *settle* the reservation before it: its rounds up to r were run, with
the cohorts that are named, and unless it stays open the others never will be. Rule: a reservation
counts whole, every client of its cohort in every round, until an entry settles it. A crash leaves
none behind, so it counts the worst case for ever. At most one reservation is open. An entry may
also bring new terms and whatever is said without a price.

Line n is bound to line n - 1 by the SHA-256 of that line; a keyed ledger adds to each line a tag,
the HMAC-SHA256 of its hash. The hashes detect accidents; only the tags detect somebody who rewrites
the file, because everybody can recompute a hash. Beside the ledger lies ``<name>.head``, the number
of lines that have been acknowledged and the last hash: a chain alone cannot tell that its end was
cut off. It has two places, which the heads of the last two lines take in turn, so that a crash
tears at most the newer one. Who has no key cannot go back by a line either: beside the head of a
line belongs that of the line before, and it was overwritten. The first line names the format, a
random run identifier and the key's name.

Guarantees: ``append`` returns only after the line and the head are on disk (fsync of both files),
so whatever is released after it is in the ledger for ever. A line that a crash
tore was never acknowledged; a missing or changed one is found by `Ledger.verify`, which says where.
One process at a time holds a ledger (flock; the kernel lets go when the process dies, also by
kill -9). A ledger that was moved, cut, replaced or written by others while it is open takes nothing
more: before every line, the file in its place must be the one that is held, as long as it was left,
with the last line and the head that were written. Memory does not grow with the lines: they are
verified and handed on one at a time. A ledger or head of another format is refused by name.

Who can write the folder can rewrite an unkeyed ledger and its head consistently, and can put back
an older copy of both, keyed or not: the first needs a key to detect, the second an anchor, a
`Head` that was kept elsewhere.
"""

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Self

from pydantic import Field

from manifed.durable import append_durably, create_atomically, write_atomically
from manifed.errors import ConfigError, named_by
from manifed.fields import Document, Record, Values, WholeNumber
from manifed.privacy.tariff import Terms

FORMAT = 3
_GENESIS = "0" * 64
"""The hash that the first line is bound to."""
_LONGEST_END = 160
"""Bytes; what follows the content of a line, its hash among it, is shorter."""
_PLACES = (0, 4096)
"""Where the two places of a head begin; what a disk may lose of one write is no longer."""
_PLACE = 256
"""Bytes of each."""


class LedgerDamaged(ValueError):
    """Error: the ledger cannot be trusted from ``line`` on; the text says what to do."""

    exit_code = 2

    def __init__(
        self,
        path: Path,
        line: int,
        what: str,
        remedy: str = "restore it from a backup; it alone says what was spent",
    ) -> None:
        super().__init__(f"{path}, line {line}: {what}; {remedy}")
        self.line = line


# -- entries -----------------------------------------------------------------------------------
class Reserves(Record):
    """A reservation: one attempt of each of the rounds ``first`` to ``last``, paid in advance."""

    first: WholeNumber
    last: int = Field(le=10**9)
    attempt: WholeNumber = 0
    cohort: str
    """Who may be sent a message in each of them (manifed/privacy/tariff.py)."""


class Settles(Record):
    """A settlement: which rounds of the last reservation were run."""

    upto: int
    """The last of them; one less than the first reserved when none was."""
    cohorts: tuple[str, ...] | None = None
    """Who took part in each round since the last settlement; None: all who were reserved."""
    is_open: bool = False
    """Whether the other rounds stay reserved."""


class Entry(Record):
    """One line of a ledger: what it settles and reserves, and the terms from here on."""

    settles: Settles | None = None
    terms: Terms | None = None
    planned: tuple[Terms, ...] | None = None
    """All terms under which the run may draw cohorts, each with its ``planned_draws``, where they
    differ from round to round and an outsider sees no cohorts; None: as said before."""
    reserves: Reserves | None = None
    said: Mapping[str, Any] = {}
    """What costs nothing: of the first line format, run and key; where noise came from; the place
    of a site's answer; bytes of a line that a crash tore."""
    sequence: WholeNumber = 0
    previous: str = _GENESIS
    sha256: str = ""
    tag: str | None = None

    def content(self, **place: Any) -> bytes:
        """Returns the canonical JSON that is hashed, at another ``place`` in the chain."""
        found = self.model_dump(mode="json", exclude_none=True, exclude={"sha256", "tag", "said"})
        found |= place | ({"said": dict(self.said)} if self.said else {})
        text = json.dumps(found, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii")

    def after(self, before: "Head | None", key: bytes | None = None) -> tuple["Entry", bytes]:
        """Makes the entry that follows ``before``, and its line of text.

        Raises:
            ValueError, TypeError: ``said`` is no JSON (NaN included).
        """
        place = Document()
        if before is not None:
            place = {"sequence": before.sequence + 1, "previous": before.sha256}
        content = self.content(**place)
        sha256 = hashlib.sha256(content).hexdigest()
        tag = _mac(key, "line", sha256) if key else None
        end = f',"sha256":"{sha256}"' + ("" if tag is None else f',"tag":"{tag}"') + "}\n"
        said = json.loads(content)["said"] if self.said else {}
        entry = self.model_copy(update={**place, "said": said, "sha256": sha256, "tag": tag})
        return entry, content[:-1] + end.encode()


_Feed = Callable[[Entry], None]
"""What is handed every entry in order as it is verified; an error after it voids what it got."""


def _head_file(path: Path) -> Path:
    """Where the head of the ledger at ``path`` lies."""
    return path.with_name(f"{path.name}.head")


class Head(NamedTuple):
    """The last acknowledged line of a ledger; as text ``sequence:sha256``, an anchor to keep."""

    sequence: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.sequence}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Reads the head that ``str`` wrote.

        Raises:
            ConfigError: for any other text.
        """
        found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip())
        if found is None:
            raise ConfigError(
                f"ledger head: expected one like '41:<64 hex digits>', got {text[:80]!r}; "
                "copy it from the end of the run's output"
            )
        return cls(int(found[1]), found[2])

    @classmethod
    def read(cls, path: Path) -> "Acknowledged | None":
        """Reads the head of a ledger; None unless one of this format is there."""
        try:
            file = _head_file(path)
            if not file.is_file() or file.stat().st_size > _PLACES[1] + _PLACE:
                return None
            content = file.read_bytes()
        except OSError:
            return None
        is_alone = len(content) <= _PLACE
        found = [one for at in _PLACES if (one := _in_place(content[at : at + _PLACE], is_alone))]
        found.sort(key=lambda one: one.head.sequence)
        if not found or found[-1].head.sequence - found[0].head.sequence != len(found) - 1:
            return None
        head, _, purpose = found[-1]
        is_torn = len(found) == 1 and purpose == "place"  # for the next line, which was there
        return Acknowledged(head, head.sequence + is_torn, tuple(found))

    def write(self, path: Path, previous: str, key: bytes | None = None) -> bytes:
        """Replaces the head of the ledger at ``path``, atomically, by what it returns.

        Its places hold this head and that of the line before, whose hash is ``previous``.
        """
        both = sorted((self, Head(self.sequence - 1, previous)), key=lambda one: one.sequence % 2)
        first, second = (one.place(key) for one in both)
        content = first.ljust(_PLACES[1]) + second
        write_atomically(_head_file(path), content)
        return content

    def place(self, key: bytes | None) -> bytes:
        """Returns what stands in a place of the head's file, signed by ``key``."""
        found = {"format": FORMAT, "sequence": self.sequence, "sha256": self.sha256}
        found |= {} if key is None else {"tag": _mac(key, "place", str(self))}
        text = json.dumps(found).encode("ascii")
        end = b', "check": "%s"}' % _check_of(text)
        return (text[:-1] + end).ljust(_PLACE - 1) + b"\n"


class _Place(NamedTuple):
    """A head as it was read, its tag, and what the tag was made for."""

    head: Head
    tag: str | None
    purpose: Literal["place", "head"]
    """"head": by an earlier version, which wrote one head alone and replaced the file."""


class Acknowledged(NamedTuple):
    """The newest head that was read, and the sequence of the last line that must be there."""

    head: Head
    least: int
    places: tuple[_Place, ...]


def _in_place(raw: bytes, is_alone: bool) -> _Place | None:
    """What stands in a place; None where it is torn, of another format, or has no check beside."""
    text, _, check = raw.partition(b', "check": "')
    text = text + b"}" if check else text
    if check.rstrip() != _check_of(text) + b'"}' if check else not is_alone:
        return None
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            return None
        tag = found.get("tag")
        sequence = str(found["sequence"])
        sha256 = Head.parse(f"{sequence.removeprefix('-')}:{found['sha256']}").sha256
        head = Head(int(sequence), sha256)  # -1 stands before line 0
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return _Place(head, None if tag is None else str(tag), "place" if check else "head")


def _check_of(text: bytes) -> bytes:
    """What tells a torn place from a whole one, 16 hex digits."""
    return hashlib.sha256(text).hexdigest()[:16].encode()


@dataclass(frozen=True)
class Verified:
    """The result of verifying a ledger."""

    header: Values
    """What its first line says: format, ``run_id`` and ``key_id`` (None: unkeyed) among it."""
    head: Head
    """The head after the last whole line."""
    previous: str
    """The hash of the line before that."""
    length: int
    """Bytes of the whole lines."""
    is_torn: bool
    """Whether a line is there that was never finished."""
    authenticity: Literal["unkeyed", "not checked", "verified"]
    """What the tags say: there are none, no key was given, or all are by the key."""


class Ledger:
    """An open, locked ledger; use it as a context manager or call `close`."""

    def __init__(self, path: Path, descriptor: int, found: Verified, key: bytes | None) -> None:
        """Use `create` or `recover`."""
        self.path = path
        self.head = found.head
        self.run_id = found.header.get("run_id")
        self.is_broken = False
        """Whether a write failed, so that nothing more is taken."""
        self._descriptor = descriptor
        self._key = key
        self._length = found.length
        self._head_file = _head_file(path)
        self._places = -1
        """The open file of the head."""
        self._written = b""
        """What it holds."""

    @classmethod
    def create(cls, path: Path, header: Values, *, key: bytes | None = None) -> "Ledger":
        """Creates a ledger whose first line holds ``header``, format, run and the key's name.

        Raises:
            FileExistsError: a ledger is never overwritten.
            LedgerDamaged: when only the head of an earlier ledger is left there.
            ValueError: for a short key.
        """
        own = {
            "format": FORMAT,
            "run_id": secrets.token_hex(16),
            "key_id": None if key is None else _key_id(_checked(key)),
        }
        first, line = Entry(said={**own, **header}).after(None, key)
        if path.exists():
            raise FileExistsError(f"{path} exists; resume that run, or choose another folder")
        left = Head.read(path)
        if os.path.lexists(_head_file(path)) and (left is None or left.least > 0):
            raise LedgerDamaged(path, 1, "the ledger is gone and only its head is left")
        Head(0, first.sha256).write(path, _GENESIS, key)
        create_atomically(path, line)
        return cls.recover(path, key=key)

    @classmethod
    def recover(
        cls,
        path: Path,
        *,
        pays: Callable[[], Entry] | None = None,
        key: bytes | None = None,
        anchors: Iterable[Head] = (),
        feed: _Feed | None = None,
    ) -> "Ledger":
        """Opens the ledger at ``path``, its whole chain verified, locked for this process.

        A last line that a crash tore is replaced by what it may have covered: ``pays`` is asked
        for it after the other lines were fed, and it counts as spent although its messages cannot
        have left. Torn bytes that are seen to reserve nothing are dropped. Damage anywhere else is
        not repaired. Interrupted itself, it can be called again.

        Raises:
            FileNotFoundError: when there is none.
            LedgerDamaged: with the line at which trust ends, when another process writes it,
                when an anchor is not in the chain, and for a wrong or missing key.
        """
        descriptor = _locked(path)
        try:
            found = cls.verify(path, key=key, anchors=anchors, feed=feed)
            if found.authenticity == "not checked":
                what = f"is keyed with key {found.header['key_id']} and no key was given"
                raise LedgerDamaged(path, 1, what, "give the run's key")
            ledger = cls(path, descriptor, found, key)
            torn = os.pread(descriptor, os.fstat(descriptor).st_size - found.length, found.length)
            entry = pays() if torn and pays is not None and not _FREE.match(torn) else None
            end = b""
            if entry is not None:
                said = {**entry.said, "torn": torn.hex()}
                entry, end = entry.model_copy(update={"said": said}).after(found.head, key)
            if torn:  # the new end over the old one first, so that a crash still leaves a torn line
                os.pwrite(descriptor, end, found.length)
                os.fsync(descriptor)
                os.ftruncate(descriptor, found.length + len(end))
                os.fsync(descriptor)
                ledger._length += len(end)
            if entry is not None:
                ledger.head = Head(entry.sequence, entry.sha256)
                if feed is not None:
                    feed(entry)
            previous = found.previous if entry is None else entry.previous
            ledger._written = ledger.head.write(path, previous, key)
            ledger._places = os.open(ledger._head_file, os.O_RDWR)
        except BaseException:
            os.close(descriptor)
            raise
        return ledger

    @staticmethod
    def verify(
        path: Path,
        *,
        key: bytes | None = None,
        anchors: Iterable[Head] = (),
        feed: _Feed | None = None,
    ) -> Verified:
        """Verifies a ledger in one read, without a lock and without writing anything.

        A torn last line is reported and not raised. Every anchor must be a line of the chain; a
        ledger that was rolled back behind it, or is another run's, is damaged.

        Raises:
            FileNotFoundError: when there is no ledger.
            LedgerDamaged: as `recover`; a keyed ledger without the key is read, its tags unchecked.
        """
        acknowledged = Head.read(path)  # before the lines: a running ledger only grows
        wanted = [(anchor, "an anchor") for anchor in anchors]
        if acknowledged is not None:
            wanted.append((acknowledged.head, "its head"))
        last = None
        length = 0
        if path.exists() and not path.is_file():
            raise LedgerDamaged(path, 1, "is no regular file")
        header: Values = {}
        with path.open("rb") as file:
            for entry, size in _lines(path, file, key):
                header = header or entry.said
                last = entry
                length = length + size
                for head, name in wanted:
                    if head.sequence == entry.sequence and head.sha256 != entry.sha256:
                        what = f"is not the line that was written ({name} says so)"
                        raise LedgerDamaged(path, entry.sequence + 1, what)
                if feed is not None:
                    with _counting(path, entry.sequence + 1):
                        feed(entry)
            is_torn = os.fstat(file.fileno()).st_size > length
        if last is None:
            raise LedgerDamaged(path, 1, "the header is missing")
        head = Head(last.sequence, last.sha256)
        _check_head(path, head, header, acknowledged, key)
        for anchor, _ in wanted:
            if anchor.sequence > head.sequence:
                what = f"is missing: {anchor.sequence + 1} lines were written (rolled back?)"
                raise LedgerDamaged(path, head.sequence + 2, what)
        if acknowledged is not None and acknowledged.least > head.sequence:
            what = f"is missing, for which its head {_head_file(path).name} was torn (rolled back?)"
            raise LedgerDamaged(path, head.sequence + 2, what)
        authenticity = "verified" if key is not None else "not checked"
        if header.get("key_id") is None:
            authenticity = "unkeyed"
        return Verified(header, head, last.previous, length, is_torn, authenticity)

    def append(self, entry: Entry) -> Entry:
        """Adds one line; returns it when it is on disk.

        Raises:
            ValueError, TypeError: for what is no JSON (NaN included).
            OSError: when the disk refuses; the ledger then takes nothing more until reopened.
            LedgerDamaged: it is not as it was left, or an earlier write failed; the same holds.
        """
        if self.is_broken:
            raise LedgerDamaged(
                self.path, self.head.sequence + 2, "an earlier write failed", "reopen the ledger"
            )
        entry, line = entry.after(self.head, self._key)
        self.is_broken = True
        self._check_place()
        os.lseek(self._descriptor, self._length, os.SEEK_SET)
        append_durably(self._descriptor, line)
        self.head, self._length = Head(entry.sequence, entry.sha256), self._length + len(line)
        at, newest = _PLACES[entry.sequence % 2], self.head.place(self._key)
        os.lseek(self._places, at, os.SEEK_SET)
        append_durably(self._places, newest)
        self._written = self._written[:at] + newest + self._written[at + _PLACE :]
        self.is_broken = False
        return entry

    def _check_place(self) -> None:
        """Refuse to go on in a file that is not the ledger as this process left it.

        Raises:
            LedgerDamaged: with what became of it.
        """
        mine = os.fstat(self._descriptor)
        end = os.pread(self._descriptor, _LONGEST_END, max(0, mine.st_size - _LONGEST_END))
        last = f',"sha256":"{self.head.sha256}"'.encode()
        is_left = os.pread(self._places, len(self._written) + 1, 0) == self._written
        what = None
        if not _is_at(self._descriptor, self.path):
            what = "the file was moved, removed or replaced while this process held it"
        elif mine.st_size != self._length or last not in end or not end.endswith(b"}\n"):
            what = "the file was cut, overwritten or written by others while this process held it"
        elif not is_left or not _is_at(self._places, self._head_file):
            what = f"its head {self._head_file.name} was changed while this process held it"
        if what is not None:
            raise LedgerDamaged(self.path, self.head.sequence + 2, what)

    def close(self) -> None:
        """Releases the lock; closing twice is fine."""
        for descriptor in {self._descriptor, self._places} - {-1}:
            os.close(descriptor)
        self._descriptor = self._places = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- the chain ---------------------------------------------------------------------------------
_END = re.compile(rb',"sha256":"([0-9a-f]{64})"(?:,"tag":"([0-9a-f]{64})")?\}\n\Z')
_FREE = re.compile(rb'\{"previous":"[0-9a-f]{64}","s')
"""How a line begins that is seen to reserve nothing: its keys are in alphabetical order."""


def _lines(path: Path, file: BinaryIO, key: bytes | None) -> Iterator[tuple[Entry, int]]:
    """The verified entries of an open ledger and their lengths; a torn last line is left.

    Raises:
        LedgerDamaged: with the first line that is not what `Ledger.append` wrote, for another
            format, a wrong key, and a key where the ledger has none.
    """
    previous = _GENESIS
    is_keyed = False
    for number, raw in enumerate(file, 1):
        if not raw.endswith(b"\n"):
            return
        end = _END.search(raw, max(0, len(raw) - _LONGEST_END))
        content = b"" if end is None else raw[: end.start()] + b"}"
        sha256 = hashlib.sha256(content).hexdigest()
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if (
            end is None
            or sha256 != end[1].decode()
            or not isinstance(found, dict)
            or (found.get("sequence"), found.get("previous")) != (number - 1, previous)
        ):
            raise LedgerDamaged(path, number, "was changed, or one before it removed")
        if number == 1:
            is_keyed = _check_header(path, found, key)
        tag = None if end[2] is None else end[2].decode()
        if (tag is not None) != is_keyed:
            what = f"has {'no' if is_keyed else 'a'} tag, unlike its header says"
            raise LedgerDamaged(path, number, what)
        if tag and key and not hmac.compare_digest(tag, _mac(key, "line", sha256)):
            raise LedgerDamaged(path, number, "was rewritten by somebody without the key")
        with _counting(path, number):
            entry = Entry.model_validate({**found, "sha256": sha256, "tag": tag})
        yield entry, len(raw)
        previous = sha256


@contextmanager
def _counting(path: Path, line: int) -> Generator[None]:
    """Turn what a line raises that no run wrote into LedgerDamaged."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, ValueError) else repr(error)
        what = f"is no charge that can be counted: {' '.join(said.split())[:300]}"
        raise LedgerDamaged(path, line, what) from error


def _check_header(path: Path, found: Values, key: bytes | None) -> bool:
    """Whether a ledger is keyed, by its first line; refuses another format and another key."""
    said = found.get("said", found.get("body"))
    header: Values = said if isinstance(said, dict) else {}
    if (known := header.get("format", 1)) != FORMAT:
        what = f"has format {repr(known)[:40]}, this version reads and writes format {FORMAT} alone"
        remedy = "go on with the version of manifed that wrote it, or begin anew elsewhere"
        raise LedgerDamaged(path, 1, what, remedy)
    key_id = header.get("key_id")
    if key is not None and key_id is None:
        what = "a key was given and this ledger is not keyed (a rewrite may have dropped its tags)"
        raise LedgerDamaged(path, 1, what, "give no key if it never had one")
    if key is not None and key_id != _key_id(key):
        what = f"was keyed with key {key_id}, got key {_key_id(key)}"
        raise LedgerDamaged(path, 1, what, "give the run's key")
    return key_id is not None


def _check_head(
    path: Path,
    last: Head,
    header: Values,
    acknowledged: Acknowledged | None,
    key: bytes | None,
) -> None:
    """Refuse a missing head, one of another format, and one that was not signed by the key."""
    name = _head_file(path).name
    is_keyed = header.get("key_id") is not None
    places = () if acknowledged is None else acknowledged.places
    what = None
    if acknowledged is None:
        is_there = os.path.lexists(_head_file(path))
        what = f"is no head of format {FORMAT}" if is_there else "is missing"
    elif any((one.tag is not None) != is_keyed for one in places):
        what = "has a tag where the header has no key, or none where it has one"
    elif key is not None and not all(
        hmac.compare_digest(str(one.tag), _mac(key, one.purpose, str(one.head))) for one in places
    ):
        what = "was rewritten without the key"
    if what is not None:
        raise LedgerDamaged(path, last.sequence + 1, f"its head {name} {what}")


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LedgerDamaged(
            path, 1, "another process holds this ledger", "wait for that run, or stop it"
        ) from None
    return descriptor


# -- keys --------------------------------------------------------------------------------------
def ledger_key(path: Path | None = None) -> bytes | None:
    """Reads the key in ``path``, or in the file that the environment names; None for no key.

    White space around its bytes is no part of it.

    Raises:
        ConfigError: when the file cannot be read, or holds less than 16 bytes.
    """
    named = path or os.environ.get("MANIFED_LEDGER_KEY_FILE")
    if not named:
        return None
    with named_by("ledger key (MANIFED_LEDGER_KEY_FILE or --ledger-key)", OSError, ValueError):
        return _checked(Path(named).read_bytes().strip(), f"the key file {named}")


def _checked(key: bytes, name: str = "the ledger's key") -> bytes:
    if len(key) < 16:
        raise ValueError(
            f"Expected at least 16 bytes in {name}, got {len(key)}; "
            "make one with: openssl rand -hex 32"
        )
    return key


def _key_id(key: bytes) -> str:
    """A name for a key that tells nothing about it, 16 hex digits."""
    return _mac(key, "id", "")[:16]


def _mac(key: bytes, purpose: str, text: str) -> str:
    """HMAC-SHA256 of ``text``, 64 hex digits; tags of different purposes never meet."""
    return hmac.new(key, f"manifed ledger {purpose}\0{text}".encode(), hashlib.sha256).hexdigest()

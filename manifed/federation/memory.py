"""A client's memory between rounds, and a folder that keeps it through a restart.

A file holds the tensors of one client in one run: un-noised, computed from its records, for nobody
but this node. So folder and files are their owner's alone (0700, 0600), a SHA-256 stands before
everything that is parsed, and whatever is not what this client wrote in the round that the server
last accepted is no memory: the client starts from its initial one and its log says why.
"""

import hashlib
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from manifed.algorithms.payloads import Memory, layout_in
from manifed.durable import MOST_BYTES, write_atomically
from manifed.errors import one_line
from manifed.federation.exchange import Header
from manifed.manifolds.linalg import Tensors

log = logging.getLogger("manifed")

_MOST_RUNS: Final = 16
"""Files kept of one client: a new run removes those that were not written for longest."""
_MAGIC: Final = b"manifed-memory-2 "
_SUFFIX: Final = ".memory"
_TAG: Final = TypeAdapter(tuple[str, Header])
"""What stands before the tensors: the run, and the message that wrote them."""


@dataclass(frozen=True)
class Kept:
    """A client's memory, as tensors by name, and the message that wrote it."""

    header: Header
    tensors: Tensors


def remembered(blank: Memory, kept: Kept | None, header: Header, *, lasts: bool = False) -> Memory:
    """Returns ``kept`` if it is what the server counts on, else the initial memory ``blank``.

    It is of this config, of this attempt or of the last round that the server accepted from this
    client (of any, where it ``lasts``), and has the names, shapes and types of ``blank``, the
    initial memory.
    """
    written = None if kept is None else kept.header
    if kept is None or written is None:
        why = "there is none"
    elif written.config_sha256 != header.config_sha256:
        why = "it is of another config"
    elif not (lasts or header.continues(written.server_round, written.attempt)):
        why = f"it is of round {written.server_round}, attempt {written.attempt}"
    elif layout_in(kept.tensors) != layout_in(vars(blank)):
        why = "its tensors are not those of this algorithm"
    else:
        return type(blank)(**kept.tensors)
    if header.last_accepted_round > 0:
        log.warning(
            "client %d starts round %d, attempt %d from its initial memory: the server counts on "
            "that of round %d, and %s",
            *(header.partition_id, header.server_round, header.attempt),
            *(header.last_accepted_round, why),
        )
    return blank


class MemoryStore:
    """The memories of clients in a folder of the node's own, one file per run and client."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is made at the first write; one that is there becomes its owner's alone."""
        self.folder = folder

    def path(self, run: str, partition: int) -> Path:
        """Returns the file of a client in a run, whose name enters only as a hash."""
        name = hashlib.sha256(run.encode(errors="backslashreplace")).hexdigest()[:32]
        return self.folder / f"{partition}-{name}{_SUFFIX}"

    def read(self, run: str, partition: int) -> Kept | None:
        """Reads what this client kept in this run; returns None and logs a line on a fault."""
        path = self.path(run, partition)
        try:
            head, _, rest = _bytes_of(path).partition(b"\n")
            if head != _MAGIC + hashlib.sha256(rest).hexdigest().encode():
                raise ValueError("its content does not match its SHA-256")
            tag, _, tensors = rest.partition(b"\n")
            its_run, header = _TAG.validate_json(tag, strict=True)
            if (its_run, header.partition_id) != (run, partition):
                raise ValueError("it is of another run or another client")
            return Kept(header, load(tensors))
        except FileNotFoundError:
            return None
        except (SafetensorError, ValidationError) as error:  # whose text would show the file
            _tell("not used", path, ValueError(f"another format: {type(error).__name__}"))
        except (OSError, ValueError) as error:
            _tell("not used", path, error)
        return None

    def write(self, run: str, partition: int, kept: Kept, *, lasts: bool = False) -> None:
        """Replaces what this client kept; a disk that refuses leaves a line in the log.

        The round goes on: the file that stays is of an older round, and is not used later. Memory
        that ``lasts`` would be used, and would allow what was done once to be done again.

        Raises:
            OSError: the disk refuses memory that lasts.
        """
        path = self.path(run, partition)
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in kept.tensors.items()}
        content = _TAG.dump_json((run, kept.header)) + b"\n" + save(tensors)
        head = _MAGIC + hashlib.sha256(content).hexdigest().encode()
        try:
            self._make_room(path, partition)
            write_atomically(path, head + b"\n" + content)
        except OSError as error:
            _tell("not written", path, error)
            if lasts:
                raise

    def _make_room(self, path: Path, partition: int) -> None:
        """Make the folder, and remove the client's oldest files when ``path`` is one too many."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        if path.exists():
            return
        files = sorted(
            self.folder.glob(f"{partition}-*{_SUFFIX}"), key=lambda p: p.lstat().st_mtime
        )
        for old in files[: 1 - _MOST_RUNS]:
            old.unlink(missing_ok=True)


def _bytes_of(path: Path) -> bytes:
    """The content of a regular file that only this user may write.

    Raises:
        OSError, ValueError: a link, a device, a giant, or a file that another user may write.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            raise ValueError(f"it is no regular file of at most {MOST_BYTES} bytes")
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ValueError("another user owns it or may write it")
        return file.read(MOST_BYTES)


def _tell(what: str, path: Path, error: Exception) -> None:
    """One line of this node's own log; no number out of the file."""
    log.warning("client memory %s: %s: %s", path.name, what, one_line(str(error)))

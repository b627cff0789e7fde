"""The process of a site: a Unix socket, who may connect to it, and how long anybody may take.

A connection carries one question. Each has a thread of its own and one deadline for a whole frame,
so that nobody who is slow or talks garbage keeps others waiting; at most `MOST_PEERS` are served at
a time, the next one is closed unheard.
"""

import logging
import os
import pwd
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from manifed.errors import ConfigError, one_line
from manifed.site.protocol import BadFrame, Incoming, Refusal, Silent, reply_frame, send
from manifed.site.site import Site

log = logging.getLogger("manifed")

MOST_PEERS: Final = 16
SECONDS: Final = 30.0
"""For a whole question to come in, and for a whole reply to be taken."""
_CREDENTIALS: Final = struct.Struct("3i")
"""What SO_PEERCRED gives: process, user, group."""


def user_id(name: str) -> int:
    """The number of a user, who is given by name or number.

    Raises:
        ConfigError: there is none of that name.
    """
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(f"--allow-user: expected a user of this machine, got {name!r}") from None


def listening(path: Path, group: int | None) -> socket.socket:
    """A socket at ``path`` for its owner and ``group`` (0660), in a folder nobody else enters.

    A folder that is missing is made (0750); a socket that a dead process left is removed.

    Raises:
        ConfigError: another process listens there, or the folder is open to others.
    """
    folder = path.parent
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o750, parents=True)
            _give(folder, group, 0o750)
        if folder.stat().st_uid not in (0, os.geteuid()):
            raise ConfigError(
                f"--socket: expected a folder of this user or root, got {str(folder)!r} of user "
                f"{folder.stat().st_uid}, who could put another socket there"
            )
        if stat.S_IMODE(folder.stat().st_mode) & 0o027:
            raise ConfigError(
                f"--socket: expected a folder that only its owner and group enter (0750), got "
                f"{str(folder)!r} of mode {stat.S_IMODE(folder.stat().st_mode):04o}"
            )
        if path.exists():
            _remove_dead(path)
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            found.bind(str(path))
        finally:
            os.umask(before)
        _give(path, group, 0o660)
        found.listen(MOST_PEERS)
    except OSError as error:
        raise ConfigError(one_line(f"--socket: {str(path)!r}: {error}")) from None
    return found


def serve(site: Site, door: socket.socket, users: Iterable[int], seconds: float = SECONDS) -> None:
    """Answer whoever connects and is one of ``users``, until an exception ends it."""
    allowed, free = frozenset(users), threading.BoundedSemaphore(MOST_PEERS)
    while True:
        peer, _ = door.accept()
        if not free.acquire(blocking=False):
            peer.close()
            continue
        threading.Thread(
            target=_served, args=(site, peer, allowed, seconds, free.release), daemon=True
        ).start()


def _served(
    site: Site,
    peer: socket.socket,
    allowed: frozenset[int],
    seconds: float,
    done: Callable[[], None],
) -> None:
    try:
        with peer:
            user = _CREDENTIALS.unpack(
                peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )[1]
            if user not in allowed:
                log.warning("Refused: user %d may not connect", user)
                return
            frame = Incoming(peer, seconds)
            try:
                header = frame.header()
            except BadFrame as error:
                log.warning("Refused: %s", error)
                send(peer, reply_frame(Refusal(str(error)), {}), seconds)
                return
            if header is not None:
                send(peer, site.reply(header, frame.body), seconds)
    except Silent as error:
        log.warning("A connection ended: %s", error)
    except Exception as error:
        log.error("A connection failed: %s", type(error).__name__)
    finally:
        done()


def _give(path: Path, group: int | None, mode: int) -> None:
    if group is not None:
        os.chown(path, -1, group)
    path.chmod(mode)


def _remove_dead(path: Path) -> None:
    """Remove a socket at which nobody listens.

    Raises:
        ConfigError: somebody does, or it is no socket.
    """
    if not path.is_socket():
        raise ConfigError(f"--socket: expected a name for a socket, got the file {str(path)!r}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        raise ConfigError(f"--socket: another process listens at {str(path)!r}; stop it first")
    path.unlink()

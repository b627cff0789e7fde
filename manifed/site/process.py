"""The process of a site: its folder, its Unix socket, who may connect, and time limits.

A connection carries one question. Each has a thread of its own and one deadline for a whole frame,
so that nobody who is slow or talks garbage keeps others waiting; at most `_MOST_PEERS` are served
at a time, the next one is closed unheard.
"""

import grp
import logging
import os
import pwd
import re
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from manifed.durable import held, write_atomically
from manifed.errors import ConfigError, check_linux, named_by
from manifed.experiment.load import load
from manifed.experiment.schema import Experiment, sha256
from manifed.fields import Values
from manifed.privacy.ledger import Head
from manifed.problems.own_files import FileData
from manifed.site.account import LEDGER, Limits, Refused, SiteAccount
from manifed.site.protocol import Incoming, Silent, send
from manifed.site.site import IDENTITY, MEMORY, Site, Wanted, claim

log = logging.getLogger("manifed")

_BEGUN = "begun"
"""The file beside a ledger that says that there is one, also when it is gone."""
_MOST_PEERS = 16
_SHOWN = 20
"""Refused rows that `check` prints."""
_CREDENTIALS = struct.Struct("3i")
"""What SO_PEERCRED gives: process, user, group."""


def run(wanted: Wanted, on_ready: Callable[[Values], object]) -> None:
    """Answers until a signal ends this process; ``on_ready`` gets the facts of the ready line.

    Raises:
        ConfigError, LedgerDamaged: in one line, before anybody can connect.
    """
    check_linux("manifed site")
    users = {os.geteuid(), *(_id_of(name, "--allow-user") for name in wanted.users)}
    group = None if wanted.group is None else _id_of(wanted.group, "--socket-group")
    with opened(wanted) as site:
        with named_by("--config", Refused):
            site.open_all()
        door = listening(wanted.socket, group)
        try:
            told = {
                "socket": str(wanted.socket),
                "partition": wanted.partition,
                "label": site.account.label,
                "epsilon": site.account.spent,
                "max_epsilon": wanted.max_epsilon,
                "delta": wanted.delta,
                "ledger_head": str(site.account.head),
            }
            say(
                f"ready: {wanted.socket}, {told['label']}, spent epsilon {told['epsilon']:.6g} "
                f"of {wanted.max_epsilon:g} at delta {wanted.delta:g}, ledger head "
                f"{told['ledger_head']}"
            )
            on_ready(told)
            serve(site, door, users)
        finally:
            door.close()
            site.stop()
            with suppress(OSError):
                wanted.socket.unlink()
            say(f"stopped: ledger head {site.account.head}")


@contextmanager
def opened(wanted: Wanted) -> Generator[Site]:
    """Opens the site: its folder locked, its ledger open and its data set named.

    Raises:
        ConfigError: an option that cannot be; another process has the folder; another data file.
        LedgerDamaged: as `SiteAccount`.
    """
    limits = Limits(wanted.max_epsilon, wanted.delta)
    allowed = _allowed(wanted)
    folder = wanted.folder
    anchors = tuple(map(Head.parse, wanted.heads))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"--ledger: {str(folder)!r}: {error.strerror}") from None
    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder))
        except BlockingIOError:
            raise ConfigError(
                f"--ledger: another process answers for the data set in {str(folder)!r}; stop it "
                "first"
            ) from None
        account = stack.enter_context(_account(folder, limits, anchors))
        accepted = wanted.is_changed_data_accepted
        if wanted.data is not None and claim(folder, wanted.data, is_accepted=accepted):
            account.note("the data file changed; what was spent stays spent")
        yield Site(wanted, allowed, account)


def _account(folder: Path, limits: Limits, anchors: Collection[Head]) -> SiteAccount:
    """The account in ``folder``; a new one only where nothing shows that there was one.

    Raises:
        ConfigError: the ledger is gone; else as `SiteAccount`.
    """
    left = [name for name in (_BEGUN, IDENTITY, MEMORY) if (folder / name).exists()]
    is_new = not (folder / LEDGER).exists()
    if is_new and (left or anchors):
        shown = ", ".join(left) or "--ledger-head"
        raise ConfigError(
            f"--ledger: expected {LEDGER} in {str(folder)!r}, which answered before ({shown}), got "
            "none; restore it, since it alone says what was spent"
        )
    if is_new:
        log.warning(
            "NEW LEDGER: %r holds none, so nothing counts as spent. If anything was ever answered "
            "about this data set, stop this process and restore its folder",
            str(folder),
        )
    account = SiteAccount(folder, limits, anchors)
    if _BEGUN not in left:  # after the ledger and before any answer
        write_atomically(folder / _BEGUN, b"this folder has a ledger\n")
    return account


def check(data: Path | None, configs: Sequence[Path]) -> int:
    """Prints to the owner of a file which of its rows are refused; returns how many.

    Nothing is opened, charged or sent.

    Raises:
        ConfigError: no file or no config, one that does not fit, or a file that cannot be read.
    """
    if data is None or not configs:
        raise ConfigError("--check: expected --data and --config, by which it is read, got less")
    total = 0
    for path in configs:
        source = load(path).data
        if not isinstance(source, FileData):
            raise ConfigError(f"--config: expected data.kind = 'file', got {source.kind!r}")
        with named_by("--data", OSError, ValueError):
            rows, refused = source.refused(data)
        more = [f"  and {len(refused) - _SHOWN} more"] if len(refused) > _SHOWN else []
        say(f"{path}: {rows} rows, {rows - len(refused)} count, {len(refused)} are refused")
        for line in [*(f"  {one}" for one in refused[:_SHOWN]), *more]:
            say(line)
        total += len(refused)
    return total


def say(line: str) -> None:
    """Prints one line to standard output at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _allowed(wanted: Wanted) -> dict[str, Experiment | None]:
    """The experiments that this site answers, by hash."""
    found = dict[str, Experiment | None]()
    for digest in wanted.hashes:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ConfigError(f"--allow-config: expected 64 hex digits, got {digest[:80]!r}")
        found[digest] = None
    for path in wanted.configs:
        config = load(path)
        digest = sha256(config)
        log.info("%s is experiment %s", path, digest)
        found[digest] = config
    if not found:
        raise ConfigError(
            "--config, --allow-config: expected an experiment that this site answers, got none"
        )
    return found


def _id_of(name: str, option: str) -> int:
    """The number of a user or group, who is given by name or number.

    Raises:
        ConfigError: there is none of that name.
    """
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if option == "--allow-user" else grp.getgrnam(name).gr_gid
    except KeyError:
        kind = "user" if option == "--allow-user" else "group"
        raise ConfigError(f"{option}: expected a {kind} of this machine, got {name!r}") from None


# -- the socket --------------------------------------------------------------------------------
def listening(path: Path, group: int | None) -> socket.socket:
    """Opens a socket at ``path`` for its owner and ``group`` (0660), in a private folder.

    A folder that is missing is made (0750); a socket that a dead process left is removed.

    Raises:
        ConfigError: another process listens there, or the folder is open to others.
    """
    folder = path.parent
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o750, parents=True)
            _give(folder, group, 0o750)
        owner = folder.stat().st_uid
        mode = stat.S_IMODE(folder.stat().st_mode)
        if owner not in (0, os.geteuid()):
            raise ConfigError(
                f"--socket: expected a folder of this user or root, got {str(folder)!r} of user "
                f"{owner}; name another folder"
            )
        if mode & 0o027:
            raise ConfigError(
                f"--socket: expected a folder that only its owner and group enter (0750), got "
                f"{str(folder)!r} of mode {mode:04o}"
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
        found.listen(_MOST_PEERS)
    except OSError as error:
        raise ConfigError(f"--socket: {str(path)!r}: {error}") from None
    return found


def serve(site: Site, door: socket.socket, users: Collection[int], seconds: float = 30.0) -> None:
    """Answers everybody who connects and is one of ``users``, until an exception ends it.

    A whole question has ``seconds`` to come in, and a whole reply to be taken.
    """
    free = threading.BoundedSemaphore(_MOST_PEERS)
    while True:
        peer, _ = door.accept()
        if not free.acquire(blocking=False):
            peer.close()
            continue
        threading.Thread(
            target=_served, args=(site, peer, users, seconds, free.release), daemon=True
        ).start()


def _served(
    site: Site,
    peer: socket.socket,
    allowed: Collection[int],
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
            if (told := site.reply(Incoming(peer, seconds))) is not None:
                send(peer, told, seconds)
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

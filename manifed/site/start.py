"""From what the command line says to a site that answers."""

import grp
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifed.durable import held, write_atomically
from manifed.errors import ConfigError
from manifed.experiment.load import load, sha256
from manifed.experiment.schema import Experiment
from manifed.privacy.account import anchors_of
from manifed.privacy.ledger import Head
from manifed.site.account import LEDGER, Limits, Refused, SiteAccount
from manifed.site.process import listening, serve, user_id
from manifed.site.records import IDENTITY, claim
from manifed.site.site import MEMORY, Policy, Site

log = logging.getLogger("manifed")

BEGUN = "begun"
"""The file beside a ledger that says that there is one, also when it is gone."""
READY = "ready"
"""The first word of the line that says that the site answers."""


@dataclass(frozen=True)
class Wanted:
    """The options of ``manifed site``."""

    folder: Path
    partition: int
    max_epsilon: float
    delta: float
    socket: Path
    data: Path | None = None
    configs: tuple[Path, ...] = ()
    hashes: tuple[str, ...] = ()
    num_examples: int | None = None
    users: tuple[str, ...] = ()
    group: str | None = None
    is_changed_data_accepted: bool = False
    heads: tuple[str, ...] = ()
    is_rehearsal: bool = False


def run(wanted: Wanted, on_ready: Callable[[Mapping[str, Any]], object] = lambda _: None) -> None:
    """Answer until a signal ends this process; ``on_ready`` is told what the ready line says.

    Raises:
        ConfigError, LedgerDamaged: in one line, before anybody can connect.
    """
    users = {os.geteuid(), *map(user_id, wanted.users)}
    group = None if wanted.group is None else _group_id(wanted.group)
    with opened(wanted) as site:
        try:
            site.open_all()
        except Refused as error:
            raise ConfigError(f"--config: {error}") from None
        door = listening(wanted.socket, group)
        try:
            limits = site.account.limits
            say(
                f"{READY}: {wanted.socket}, spent epsilon {site.account.spent:.6g} of "
                f"{limits.epsilon:g} at delta {limits.delta:g}, ledger head {site.account.head}"
            )
            on_ready(
                {
                    "socket": str(wanted.socket),
                    "partition": wanted.partition,
                    "epsilon": site.account.spent,
                    "max_epsilon": limits.epsilon,
                    "delta": limits.delta,
                    "ledger_head": str(site.account.head),
                }
            )
            serve(site, door, users)
        finally:
            door.close()
            site.stop()
            with suppress(OSError):
                wanted.socket.unlink()
            say(f"stopped: ledger head {site.account.head}")


@contextmanager
def opened(wanted: Wanted) -> Generator[Site, None, None]:
    """The site with its folder held, its ledger open and its data set named.

    Raises:
        ConfigError: an option that cannot be; another process has the folder; another data file.
        LedgerDamaged: as `SiteAccount.open`.
    """
    try:
        limits = Limits(wanted.max_epsilon, wanted.delta)
    except ValueError as error:
        raise ConfigError(f"--max-epsilon, --delta: {error}") from None
    policy = Policy(
        _allowed(wanted), wanted.partition, wanted.data, wanted.num_examples, wanted.is_rehearsal
    )
    folder, anchors = wanted.folder, anchors_of(wanted.heads)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"--ledger: {str(folder)!r}: {error.strerror}") from None
    with _held(folder), _account(folder, limits, anchors) as account:
        if wanted.data is not None:
            accepted = wanted.is_changed_data_accepted
            if claim(folder, wanted.data, is_accepted=accepted):
                account.note("the data file changed; what was spent stays spent")
        yield Site(policy, account, folder)


def _account(folder: Path, limits: Limits, anchors: Collection[Head]) -> SiteAccount:
    """The account in ``folder``; a new one only where nothing shows that there was one.

    Raises:
        ConfigError: the ledger is gone; else as `SiteAccount.open`.
    """
    left = [name for name in (BEGUN, IDENTITY, MEMORY) if (folder / name).exists()]
    is_new = not (folder / LEDGER).exists()
    if is_new and (left or anchors):
        shown = ", ".join(left) or "--ledger-head"
        raise ConfigError(
            f"--ledger: expected {LEDGER} in {str(folder)!r}, which answered before ({shown}), got "
            "none; restore it: without it nobody can say what was spent"
        )
    if is_new:
        log.warning(
            "NEW LEDGER: %r holds none, so nothing counts as spent. If anything was ever answered "
            "about this data set, stop this process and restore its folder",
            str(folder),
        )
    account = SiteAccount.open(folder, limits, anchors)
    if BEGUN not in left:  # after the ledger and before any answer
        write_atomically(folder / BEGUN, b"this folder has a ledger\n")
    return account


def say(line: str) -> None:
    """One line for whoever started the process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def _held(folder: Path) -> Generator[None, None, None]:
    try:
        with held(folder):
            yield
    except BlockingIOError:
        raise ConfigError(
            f"--ledger: another process answers for the data set in {str(folder)!r}; stop it first"
        ) from None


def _allowed(wanted: Wanted) -> dict[str, Experiment | None]:
    """The experiments that this site answers, by hash."""
    found: dict[str, Experiment | None] = {}
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


def _group_id(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"--socket-group: expected a group, got {name!r}") from None

"""Ends exactly the processes of one run: those that carry its mark, and their descendants.

A mark is an environment variable that children inherit. Ray's workers overwrite their own
environment block with a title, so the mark alone is not enough: descendants are followed too,
and whatever was seen once stays on the list under its (id, start time), which no later process
can share. Nothing is ever selected by its name.

All is read from Linux's /proc. As a program (``python process_tree.py PARENT MARK HOME``) it waits
for the end of its parent, which may be killed at any moment, and then ends what that parent started
and removes its folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_ProcessId = tuple[int, str]
"""A process id together with its start time: ids are used again, pairs are not."""


def process_table() -> dict[_ProcessId, int]:
    """Returns every living process of this machine and the id of its parent."""
    table = dict[_ProcessId, int]()
    for entry in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            if state not in {"Z", "X"}:
                table[int(entry.name), rest[17]] = int(parent)  # field 22: start time
    return table


def _carries(pid: int, mark: bytes) -> bool:
    of = _PROC / str(pid)
    with suppress(OSError):  # ended, another user's, or a thread of the kernel, which has no exe
        for _ in range(3):
            if found := (of / "environ").read_bytes():
                return mark in found.split(b"\0")
            (of / "exe").readlink()
            time.sleep(0.005)  # it is just being executed
    return False


def family(mark: str, roots: Iterable[int], seen: Iterable[_ProcessId] = ()) -> set[_ProcessId]:
    """Returns the living processes of one run; never this process itself.

    Members carry ``mark`` (``NAME=value``), are in ``roots`` or ``seen``, or descend from a member.
    """
    table = process_table()
    line = mark.encode()
    known = {*roots}
    kept = {*seen}
    members = {p for p in table if p in kept or p[0] in known or _carries(p[0], line)}
    children = members
    while children:
        parents = {pid for pid, _ in children}
        children = {p for p, parent in table.items() if parent in parents} - members
        members |= children
    return {p for p in members if p[0] != os.getpid()}


def end_family(
    mark: str, children: Iterable[subprocess.Popen[bytes]], grace: float
) -> set[_ProcessId]:
    """Ends every process of the family, first politely; returns those that still live.

    ``children`` are this process's own children; they are reaped. SIGTERM is sent once to each,
    and SIGKILL after ``grace`` seconds.
    """
    own = list(children)
    seen = set[_ProcessId]()
    start = time.monotonic()
    while members := family(mark, [child.pid for child in own if child.poll() is None], seen):
        elapsed = time.monotonic() - start
        if elapsed > grace + 5.0:
            break
        is_patient = elapsed < grace
        for pid, _ in members - seen if is_patient else members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM if is_patient else signal.SIGKILL)
        seen |= members
        time.sleep(0.05)
    for child in own:  # it may be a zombie while its last threads are still ending
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=2.0)
    return members


def heir(mark: str, home: Path) -> subprocess.Popen[bytes]:
    """Starts a process that outlives this one, ends the family of ``mark`` and removes ``home``.

    Whoever has seen to both kills it. It is in a session of its own, holds nothing of this process
    open, and does not carry the mark.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark, str(home)],
        cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _inherit(parent: int, mark: str, home: Path) -> None:
    while os.getppid() == parent:
        time.sleep(0.1)
    end_family(mark, (), 1.5)
    time.sleep(0.2)  # what was just being started then has its mark by now
    end_family(mark, (), 0.0)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    _inherit(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

"""Ending one process of a federation by its id, and waiting for what follows.

Nothing is chosen by a name alone: only descendants of a process that the test started.
"""

import os
import signal
import time
from pathlib import Path

from app.process_tree import family, process_table


def programs_under(root, *words):
    """Ids of the living descendants of process ``root`` whose command line has all ``words``."""
    found: list[int] = []
    for pid, _ in family("MANIFED_ENGINE_MARK=nobody's", [root]):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it ended meanwhile
            continue
        if pid != root and all(word in line for word in words):
            found.append(pid)
    return sorted(found)


def end(pid, number=signal.SIGKILL):
    """Send one signal to one process, and wait until it is no more than a zombie."""
    os.kill(pid, number)
    assert soon(lambda: all(one != pid for one, _ in process_table()), 30.0), pid


def soon(is_true, timeout):
    """Whether it becomes true within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def rounds_told(folder):
    """The round of the newest row of a run's metrics.csv; -1 before there is one."""
    path = folder / "metrics.csv"
    rows = path.read_text().splitlines()[1:] if path.exists() else []
    return int(rows[-1].split(",")[0]) if rows else -1

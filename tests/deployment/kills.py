"""Ending one process of a federation by its id, and waiting for what follows.

Nothing is chosen by a name alone: only descendants of a process that the test started. Nothing here
waits without an end.
"""

import os
import signal
import time
from pathlib import Path

from app.process_tree import family, process_table
from manifed.runs import checkpoint
from manifed.runs.folder import RunFolder

PATIENCE = 300.0


def soon(is_true, timeout=PATIENCE):
    """Wait until it is true; AssertionError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout:g} s"
        time.sleep(0.1)


def below(root):
    """The process ``root`` of ours and its living descendants."""
    return family("MANIFED_ENGINE_MARK=nobody's", [root])


def gone(processes, timeout=PATIENCE):
    """Wait for the end of all of them."""
    soon(lambda: not processes & process_table().keys(), timeout)


def end(root):
    """Kill one process of ours, and wait for its end and that of its descendants.

    Its parent reaps it; `killed` is for a child that nobody else waits for.
    """
    processes = below(root)
    os.kill(root, signal.SIGKILL)
    gone(processes)


def killed(process):
    """Kill a child of this process; what is left of its family.

    It is reaped here: Flower's programs end when the id of their parent is gone, and a zombie keeps
    its id.
    """
    left = below(process.pid)
    process.kill()
    process.wait(PATIENCE)
    return left


def program_under(root, *words):
    """Id of the one living descendant of process ``root`` whose command line has all ``words``."""
    found = []
    for pid, _ in below(root):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it ended meanwhile
            continue
        if pid != root and all(word in line for word in words):
            found.append(pid)
    (pid,) = found
    return pid


def rounds_done(folder):
    """The round of a run's newest checkpoint; 0 before there is one."""
    path = RunFolder(folder).checkpoint_path
    return checkpoint.load(path).server_round if path.exists() else 0

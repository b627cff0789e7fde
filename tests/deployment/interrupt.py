"""Starts an engine in a Python of its own, waits for a line of its log, and sends it a signal."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from app.deployment import run
from manifed.runs.interrupt import Ended
from tests.deployment.kills import below
from tests.deployment.tiny_run_config import tiny_run_config

REPOSITORY = Path(__file__).parents[2]


def interrupted(
    engine,
    project,
    out,
    number,
    until="round 0",
    after=0.0,
    mark="MANIFED_TEST_MARK=interrupted",
):
    """Exit code after the signal, the engine's processes before it, and the lines of the log.

    The signal is sent ``after`` so many seconds from the line that has ``until``; everything that
    is started carries ``mark`` in its environment.
    """
    name, _, value = mark.partition("=")
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.deployment.interrupt", engine, str(out), str(project)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), name: value}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert child.stdout is not None
    lines = []
    with child.stdout:
        for line in child.stdout:
            lines.append(line)
            if until in line:
                break
        time.sleep(after)
        started = below(child.pid)
        child.send_signal(number)
        lines += child.stdout.readlines() if number != signal.SIGKILL else []
    return child.wait(), {p for p in started if p[0] != child.pid}, lines


def main(engine, out, project):
    """The engine that is interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & may have switched it off
    print("begun", flush=True)
    try:
        run(
            run_config=tiny_run_config(2, Path(out), "rounds=100000"), num_supernodes=2,
            project=Path(project), timeout=600,
            on_line=lambda line: print(line, flush=True), is_simulation=engine == "ray",
        )  # fmt: skip
    except Ended as ended:
        sys.exit(ended.code)


if __name__ == "__main__":
    main(*sys.argv[1:])

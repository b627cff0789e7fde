import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from app.process_tree import end_family, family, process_table
from tests.deployment.kills import soon

STUBBORN_GRANDCHILD = """
import subprocess, sys, time
inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
p = subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
print(p.pid, flush=True)
time.sleep(600)
"""
NAMELESS_GRANDCHILD = """
import subprocess, sys, time
p = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
print(p.pid, flush=True)
time.sleep(600)
"""

KILLED = """
import subprocess, sys, time
from pathlib import Path
from app.process_tree import heir
mark, home = sys.argv[1:]
name, _, value = mark.partition("=")
watch = heir(mark, Path(home))
inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
p = subprocess.Popen([sys.executable, "-c", inner], env={name: value}, start_new_session=True)
print(watch.pid, p.pid, flush=True)
time.sleep(600)
"""


def _start(code, mark):
    name, _, value = (mark or "UNRELATED=1").partition("=")
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, name: value}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        return process, int(process.stdout.readline())


def _pids():
    return {pid for pid, _ in process_table()}


@pytest.fixture
def mark():
    return f"MANIFED_TEST_MARK={uuid.uuid4().hex}"


@pytest.mark.parametrize("code", [STUBBORN_GRANDCHILD, NAMELESS_GRANDCHILD])
def test_a_detached_stubborn_or_unmarked_grandchild_is_ended(code, mark):
    child, grandchild = _start(code, mark)
    time.sleep(0.2)  # its signal handler
    assert {child.pid, grandchild} <= {pid for pid, _ in family(mark, ())}
    assert end_family(mark, [child], grace=0.5) == set()
    assert not {child.pid, grandchild} & _pids()


def test_an_orphan_is_ended_by_its_mark_alone(mark):
    child, grandchild = _start(STUBBORN_GRANDCHILD, mark)
    child.kill()
    child.wait()
    assert {pid for pid, _ in family(mark, ())} == {grandchild}
    assert end_family(mark, [], grace=0.2) == set()
    assert grandchild not in _pids()


def test_processes_without_the_mark_are_left_alone(mark):
    stranger, grandchild = _start(NAMELESS_GRANDCHILD, None)
    try:
        assert end_family(mark, [], grace=0.2) == set()
        assert {stranger.pid, grandchild} <= _pids()
    finally:
        stranger.kill()
        stranger.wait()
        os.kill(grandchild, 9)


def test_neither_the_caller_nor_an_id_that_was_used_again_is_of_the_family(mark):
    assert os.getpid() not in {pid for pid, _ in family(mark, [os.getpid()])}
    assert os.getppid() in _pids()
    assert family(mark, (), [(os.getppid(), "another start")]) == set()


def test_what_a_killed_process_started_is_ended_by_its_heir(mark, tmp_path):
    home = tmp_path / "home"
    (home / "keys").mkdir(parents=True)
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED, mark, str(home)],
        cwd=Path(__file__).parents[2], stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    with parent.stdout:
        watch, child = map(int, parent.stdout.readline().split())
    time.sleep(0.3)
    assert {watch, child} <= _pids()
    assert watch not in {pid for pid, _ in family(mark, ())}
    parent.kill()
    parent.wait()
    soon(lambda: not {watch, child} & _pids(), 4.0)
    assert not home.exists()

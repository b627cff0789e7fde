"""Runs beside each other: who plays what, and what is ended when a process or all of them end."""

import json
import os
import signal
import sys
import time
from multiprocessing import Pipe, active_children, get_context
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from manifed.experiment.assembly import own_node
from manifed.experiment.load import load
from manifed.runs import pool
from manifed.runs.pool import Task, _next, run_all

QUICKSTART = str(Path(__file__).parents[2] / "configs" / "quickstart.toml")
SMALL = ("federation.num_rounds=2", "output.plots=false")
LONG = ("federation.num_rounds=20000", "evaluation.every=20000", "output.plots=false")


class Wanted(Task):
    is_finished = False
    data = ()


def test_an_interruption_ends_no_process_of_somebody_else(tmp_path, monkeypatch):
    context = get_context("forkserver")
    other, mine = (context.Process(target=time.sleep, args=(60,), daemon=True) for _ in range(2))
    other.start()

    def interrupted(*_):
        mine.start()
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_start", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all([Wanted("a.toml", (), tmp_path / "runs" / "a", None)], 1, lambda *_: None)
        assert other.is_alive()
        assert not mine.is_alive()
    finally:
        other.terminate()
        other.join()


def test_a_process_goes_on_with_its_data_and_leaves_others_to_the_next():
    class On(Task):
        data = property(lambda self: self.source)

    a, b, c = (On(name, (), Path(), None) for name in "abc")
    assert _next([a, b, c], None, []) is a
    assert _next([a, b, c], "b", ["a"]) is b
    assert _next([a, c], "b", ["a"]) is c
    assert _next([a], "b", ["a"]) is a


@pytest.mark.slow
def test_a_process_that_dies_takes_no_other_run_with_it(tmp_path):
    config = load(QUICKSTART, SMALL)
    wanted = [("a", SMALL), ("b", LONG), ("c", SMALL), ("d", (*SMALL, "training.nothing=1"))]
    wanted += [("e", (*SMALL, "output.plots=true"))]
    tasks = [Task(QUICKSTART, sets, tmp_path / "runs" / name, config) for name, sets in wanted]
    others, errors, pids = set(active_children()), [], []

    def end_in_its_rounds():
        deadline = time.monotonic() + 60
        while not tasks[1].directory.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in pids[-1]:
            os.kill(pid, signal.SIGKILL)

    def on_start(task):
        if task is tasks[1]:
            Thread(target=end_in_its_rounds).start()

    def on_end(task, error):
        errors.append(error)
        pids.append({process.pid for process in set(active_children()) - others})

    assert run_all(tasks, 1, on_end, on_start) == [tasks[1], tasks[3]]
    assert (errors[0], errors[1], errors[2]) == (None, "exit code -9", None)
    assert errors[4] is None
    assert errors[3].startswith("training.nothing: unknown key")
    assert pids[0] != pids[2] == pids[4]
    assert set(active_children()) == others
    manifest = json.loads((tasks[2].directory / "manifest.json").read_text())
    assert manifest["command_line"].startswith("manifed run ")
    made = [(task.directory / "model.safetensors").read_bytes() for task in tasks[::2]]
    assert made[0] == made[1] == made[2], "a used process makes what a new one makes"
    assert list(tasks[4].directory.glob("*.png"))
    assert not list(tasks[0].directory.glob("*.png"))
    assert run_all([tasks[0]], 1, on_end) == []


def test_a_run_that_its_process_did_not_begin_is_given_to_another_once(tmp_path, monkeypatch):
    made, ends = [], []

    class Dead:
        """A process that ends before it is told anything."""

        data = None

        def __init__(self):
            self.door, theirs = Pipe()
            theirs.close()
            self.process = SimpleNamespace(join=lambda: None, exitcode=-9)

        def play(self, task, errors):
            made.append(task)

    monkeypatch.setattr(pool, "_start", lambda _: Dead())
    task = Wanted("a.toml", (), tmp_path / "runs" / "a", None)
    assert run_all([task], 1, lambda *end: ends.append(end)) == [task]
    assert (made, ends) == ([task, task], [(task, "exit code -9")])


def test_a_process_keeps_no_data_of_a_run_that_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    sets = ("federation.num_rounds=1", "federation.num_clients=2", "output.plots=false")
    assert pool._play(QUICKSTART, sets, tmp_path / "run", tmp_path / "errors") is None
    assert own_node.cache_info().currsize == 0
    assert Task(QUICKSTART, sets, tmp_path / "run", load(QUICKSTART, sets)).is_finished

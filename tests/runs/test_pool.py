"""Runs beside each other: what is ended when they are interrupted."""

import time
from multiprocessing import get_context

import pytest

from manifed.runs import pool
from manifed.runs.pool import Task, run_all


class Wanted(Task):
    is_finished = False


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

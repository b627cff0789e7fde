"""kill -9 from outside, at random moments of a run: what is left is gone on with and judged.

The kill comes when the run has begun a drawn number of client updates, and a few milliseconds
later, so a slow machine is killed at the same places as a fast one. `crash_points.judge` judges.
"""

import os
import random
import signal
import time

import pytest

from manifed.runs.folder import RunFolder
from tests.robustness import crash_points
from tests.robustness.crash_points import Case, judge, witnessed
from tests.robustness.kills import SMALL

KILLS = 24
ROUNDS = 12
PATIENCE = 120.0
CASE = Case(
    "example-level privacy, checkpoints as time allows",
    (
        *SMALL,
        f"federation.num_rounds={ROUNDS}",
        "privacy.noise={kind='multiplier',noise_multiplier=5.0}",
        "privacy.delta=1e-5",
    ),
    most_redone=ROUNDS,
)


def kill_after(folder, updates, milliseconds):
    """Whether the kill came before the end of a run that had begun so many client updates."""
    folder.mkdir(parents=True, exist_ok=True)
    before = len(witnessed(folder))
    pid = os.fork()
    if pid == 0:
        crash_points.live_and_die(CASE, folder, None, folder / "crashed-at", lambda _: None)
    deadline = time.monotonic() + PATIENCE
    while len(witnessed(folder)) < before + updates and time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(1e-3)
    time.sleep(milliseconds / 1e3)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.slow
def test_runs_that_are_killed_from_outside_are_gone_on_with_without_an_anomaly(tmp_path):
    moments = random.Random(0)
    killed = 0
    for trial in range(KILLS):
        folder = tmp_path / f"run-{trial}"
        kills = 0
        for _ in range(1 + trial % 2):  # every second run is killed twice
            if not RunFolder(folder / "run").is_finished:
                kills += kill_after(
                    folder, moments.randrange(2 * ROUNDS), moments.uniform(0.0, 10.0)
                )
        killed += kills
        if not RunFolder(folder / "run").is_finished:
            code, _ = crash_points.part(CASE, folder, None)
            assert code == 0, crash_points.said(folder)
        assert judge(CASE, folder, kills) == []
    assert killed >= KILLS

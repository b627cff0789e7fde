"""kill -9 at random moments: no ledger ever under-reports, and every run can be gone on with.

One warm process forks a child per trial; the child runs an experiment and writes, unbuffered and
before a client computes anything, which (round, attempt) it is about to release. The parent kills
it at a random moment and compares this witness with the ledger that the child left.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from app import client_turn
from app.launch import Request, launch
from privacy.cohorts import decode
from privacy.ledger import Ledger
from tests.app.test_cli import QUICKSTART

KILLS = 50
SETS = (
    "federation.num_clients=3",
    "federation.num_rounds=40",
    "evaluation.is_enabled=false",
    "output.plots=false",
    "output.checkpoint_every=7",
    "privacy.max_epsilon=20.0",
    "federation.cohort={kind='fixed-size',cohort_size=2}",
)


def child(request: Request, witness: Path) -> None:
    """Run and bear witness; never returns."""
    turn = client_turn.take_turn
    file = os.open(witness, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def take_turn(half, seat, *rest):
        os.write(file, f"{seat.server_round} {seat.attempt} {seat.partition}\n".encode())
        return turn(half, seat, *rest)

    client_turn.take_turn = take_turn
    try:
        launch(request)
    finally:
        os._exit(0)


def kill_after(request: Request, witness: Path, seconds: float) -> bool:
    """Whether the kill came before the run's end."""
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        child(request, witness)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def released(witness: Path) -> set[tuple[int, int, int]]:
    if not witness.exists():
        return set()
    return {tuple(map(int, line.split())) for line in witness.read_text().splitlines()}


def charged(path: Path) -> set[tuple[int, int, int]]:
    with Ledger.recover(path, charge={}) as ledger:
        bodies = [e.body for e in ledger.entries if e.kind == "reserved"]
    return {(b["rounds"][0], b["attempt"], int(i)) for b in bodies for i in decode(b["cohort"], 3)}


@pytest.mark.slow
def test_no_ledger_under_reports_after_fifty_kills_and_runs_go_on(tmp_path):
    launch(Request(QUICKSTART, SETS, out=tmp_path / "warm-up", plain=True))
    began = time.perf_counter()
    launch(Request(QUICKSTART, SETS, out=tmp_path / "timed", plain=True))
    seconds = time.perf_counter() - began
    moments, killed, went_on = random.Random(0), 0, 0
    for trial in range(KILLS):
        out, witness = tmp_path / f"run-{trial}", tmp_path / f"witness-{trial}"
        request = Request(QUICKSTART, SETS, out=out, plain=True)
        was_killed = kill_after(request, witness, moments.uniform(0.0, 1.1 * seconds))
        killed += was_killed
        seconds *= 1.0 if was_killed else 0.95  # the runs were faster than the timed one
        if (out / "ledger.jsonl").exists():
            assert released(witness) <= charged(out / "ledger.jsonl")
        else:
            assert not released(witness)
        can_go_on = (out / "experiment.toml").exists() and (out / "ledger.jsonl").exists()
        if trial % 10 == 0 and can_go_on and "final" not in (out / "manifest.json").read_text():
            folder = launch(Request(QUICKSTART, resume=out, plain=True))
            assert folder.manifest()["final"]["rounds"] == 40
            assert released(witness) <= charged(out / "ledger.jsonl")
            went_on += 1
    assert killed >= KILLS // 2
    assert went_on >= 1

"""A run that dies goes on from its checkpoint, and its ledger never shows less than was spent."""

import errno
import os
import shlex
import signal

import pytest
import torch

from manifed.errors import RunEnded
from manifed.privacy.account import Account
from manifed.runs import checkpoint, driver
from manifed.runs.folder import FORMAT, RunFolder
from tests.runs.running import go_on, killed_in, run_in

SETS = (
    "federation.num_clients=4",
    "federation.num_rounds=6",
    "output.plots=false",
    "output.checkpoint_every=2",
)


def test_a_round_done_again_is_paid_again_draws_fresh_noise_and_stops_at_the_target(
    tmp_path, caplog
):
    before = run_in(tmp_path / "whole", *SETS)
    killed_in(4, run_in, tmp_path / "run", *SETS)
    caplog.clear()
    after = go_on(tmp_path / "run")
    assert "rounds 3 to 4 were charged before the run stopped" in caplog.text
    assert before.metrics()["cost"][2] == after.metrics()["cost"][2]
    assert before.metrics()["cost"][3] != after.metrics()["cost"][3]
    manifest = after.manifest()
    assert manifest["final"]["rounds"] == 4
    assert manifest["final"]["epsilon"] <= 2.0
    assert "privacy.noise.epsilon" in manifest["stopped"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_ends_a_run_that_keeps_its_last_round_and_names_its_folder(
    tmp_path, monkeypatch, number, code
):
    told = driver._Run._tell
    out = tmp_path / "it's mine"

    def tell(self, held_out=None):
        told(self, held_out)
        if self.done == 4:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(driver._Run, "_tell", tell)
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
    sets = (*SETS, "privacy.max_epsilon=20.0")
    with pytest.raises(RunEnded) as caught:
        run_in(out, *sets)
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == before
    assert caught.value.exit_code == code
    assert str(caught.value).endswith(f"--resume {shlex.quote(str(out))}")
    monkeypatch.undo()
    folder = go_on(out)
    assert folder.metrics()["round"] == list(range(7))


def test_checkpoints_by_time_take_their_share_and_no_more(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "perf_counter", lambda: now[0])

    def saves(seconds_a_round, cost, rounds=400):
        now[0] = 0.0
        pace = checkpoint.Pace("auto")
        count = 0
        for server_round in range(1, rounds + 1):
            now[0] += seconds_a_round
            if pace.is_due(server_round):
                with pace.counted():
                    now[0] += cost
                count += 1
        return count, count * cost / now[0]

    assert saves(seconds_a_round=10.0, cost=0.01) == (400, pytest.approx(0.001, rel=1e-2))
    count, share = saves(seconds_a_round=0.01, cost=0.01)
    assert 0.04 < share <= 0.05
    assert count > 10
    assert saves(seconds_a_round=1e-4, cost=0.01)[0] == 0
    assert [checkpoint.Pace(3).is_due(n) for n in (1, 2, 3, 6)] == [False, False, True, True]


def test_a_torn_row_is_dropped_and_a_row_is_all_or_nothing(tmp_path, monkeypatch):
    folder = RunFolder.claim(tmp_path / "run")
    folder.begin({"format": FORMAT, "name": "torn"})
    for server_round in range(3):
        folder.append_metrics({"round": server_round, "cost": 0.5})
    whole = folder.metrics_path.read_bytes()
    write = os.write

    def half(descriptor, data):
        if len(data) > 1:
            return write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            folder.append_metrics({"round": 3, "cost": 0.25})
    assert folder.metrics_path.read_bytes() == whole
    folder.metrics_path.write_bytes(whole + b"3,0.2")
    assert folder.metrics()["round"] == [0, 1, 2]
    folder.drop_metrics_after(2)
    assert folder.metrics_path.read_bytes() == whole


def test_a_budget_stops_the_run_before_the_round_that_would_exceed_it(tmp_path):
    sets = (
        *SETS,
        "privacy.noise={kind='multiplier',noise_multiplier=5.0}",
        "privacy.delta=1e-5",
        "privacy.max_epsilon=1.5",
    )
    folder = run_in(tmp_path / "run", *sets)
    manifest = folder.manifest()
    assert 0 < manifest["final"]["rounds"] < 6
    assert manifest["final"]["epsilon"] <= 1.5
    assert "budget" in manifest["stopped"]
    assert folder.load_tensors("model")["x"].shape == (64,)


def test_an_interrupted_run_without_privacy_ends_like_an_uninterrupted_one(tmp_path, monkeypatch):
    sets = (*SETS, "privacy={kind='none'}", "output.checkpoint_every=100")
    whole = run_in(tmp_path / "whole", *sets)
    charge = Account.charge

    def fails_in_round_5(self, server_round, *rest):
        if server_round == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        charge(self, server_round, *rest)

    monkeypatch.setattr(Account, "charge", fails_in_round_5)
    with pytest.raises(RunEnded, match="No space left") as caught:
        run_in(tmp_path / "run", *sets)
    assert caught.value.exit_code == 1
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors").server_round == 4
    monkeypatch.undo()
    folder = go_on(tmp_path / "run")
    assert torch.equal(folder.load_tensors("model")["x"], whole.load_tensors("model")["x"])
    assert folder.metrics()["cost"] == whole.metrics()["cost"]

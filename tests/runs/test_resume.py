"""A run that dies goes on from its checkpoint, and its ledger never shows less than was spent."""

import errno
import os
import shlex

import pytest
import torch

from manifed.errors import RunEnded
from manifed.runs import checkpoint
from tests.runs.running import SIGNALS, fails_in_round, go_on, killed_in, run_in, told

SETS = (
    "federation.num_clients=4",
    "federation.num_rounds=6",
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


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_ends_a_run_that_keeps_its_last_round_and_names_its_folder(
    tmp_path, monkeypatch, number, code
):
    out = tmp_path / "it's mine"
    told(monkeypatch, lambda done: done == 4 and os.kill(os.getpid(), number))
    with pytest.raises(RunEnded) as caught:
        run_in(out, *SETS, "privacy.max_epsilon=20.0")
    assert caught.value.exit_code == code
    assert str(caught.value).endswith(f"--resume {shlex.quote(str(out))}")
    monkeypatch.undo()
    assert go_on(out).metrics()["round"] == list(range(7))


def test_checkpoints_by_time_take_their_share_and_no_more(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "perf_counter", lambda: now[0])

    def share(seconds_a_round):
        """Of the time of 400 rounds, where a save takes 10 ms."""
        now[0] = 0.0
        pace = checkpoint.Pace("auto")
        count = 0
        for server_round in range(400):
            now[0] += seconds_a_round
            if pace.is_due(server_round):
                with pace.counted():
                    now[0] += 0.01
                count += 1
        return count * 0.01 / now[0]

    assert share(10.0) == pytest.approx(0.001, rel=1e-2)
    assert 0.04 < share(0.01) <= 0.05
    assert share(1e-4) == 0
    assert [checkpoint.Pace(3).is_due(n) for n in (1, 2, 3, 6)] == [False, False, True, True]


def test_an_interrupted_run_without_privacy_ends_like_an_uninterrupted_one(tmp_path, monkeypatch):
    sets = (*SETS, "privacy={kind='none'}", "output.checkpoint_every=100")
    whole = run_in(tmp_path / "whole", *sets)
    fails_in_round(5, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), monkeypatch)
    with pytest.raises(RunEnded, match="No space left") as caught:
        run_in(tmp_path / "run", *sets)
    assert caught.value.exit_code == 1
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors").server_round == 4
    monkeypatch.undo()
    folder = go_on(tmp_path / "run")
    assert torch.equal(folder.load_tensors("model")["x"], whole.load_tensors("model")["x"])
    assert folder.metrics()["cost"] == whole.metrics()["cost"]

"""What a folder says of its run, at any moment of it; nothing is written and no lock is taken."""

import json
import os
import shutil

import pytest

from manifed.durable import held
from manifed.errors import RoundFailed
from manifed.runs.status import status_of
from tests.command import invoke
from tests.runs.running import everything, fails_in_round, go_on, killed_in, one_line, run_in
from tests.runs.test_refusals import SETS as SMALL

SETS = (*SMALL, "federation.num_rounds=4", "privacy.max_epsilon=4.0")

FILES = ("experiment.toml", "ledger.jsonl", "ledger.jsonl.head", "manifest.json", "metrics.csv",
         "checkpoint.safetensors")  # fmt: skip
"""In the order in which a run makes them."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run of 4 rounds that was killed in its third, with a budget."""
    return killed_in(3, run_in, tmp_path_factory.mktemp("killed") / "run", *SETS)


def test_a_stopped_run_says_where_it_is_what_it_spent_and_how_to_go_on(killed):
    before = everything(killed)
    found = status_of(killed)
    assert everything(killed) == before
    assert (found["state"], found["held_by"], found["num_rounds"]) == ("stopped", None, 4)
    assert found["charged"] == 3 > found["round"] >= found["checkpoint"]
    assert found["spent"]["server"] > 0
    budget = {"field": "privacy.max_epsilon", "epsilon": 4.0, "adversary": "server", "delta": 1e-5}
    assert found["budget"] == budget
    assert found["next_step"] == f"python simulation.py --resume {killed}"


def test_a_run_that_somebody_holds_is_running_and_nobody_is_kept_from_holding_it(killed):
    with held(killed):
        found = status_of(killed)
        assert (found["state"], found["held_by"]) == ("running", os.getpid())
        assert found["next_step"] == "wait"
    with held(killed):
        pass
    assert status_of(killed)["held_by"] is None


@pytest.mark.parametrize("count", range(len(FILES) + 1))
def test_every_half_written_folder_is_read_or_refused_in_one_line(killed, tmp_path, count):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in FILES[:count]:
        shutil.copy(killed / name, folder / name)
    if count > 4:
        for name in ("ledger.jsonl", "metrics.csv"):  # a line that is being written
            with (folder / name).open("a") as file:
                file.write('{"body":')
    done = invoke("run", "--resume", folder, "--status", "--json")
    if count in {0, 2}:  # no run folder; a ledger without its head is damage
        assert one_line(done)
    else:
        assert json.loads(done.stdout)["state"] == ("stopped" if count > 3 else "not begun")


def test_the_last_error_and_who_is_missing_are_kept_until_the_run_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    fails_in_round(3, RoundFailed("Round 3: nobody answered"), monkeypatch)
    with pytest.raises(RoundFailed):
        run_in(folder, *SETS)
    said = status_of(folder)
    assert said["last_error"].endswith("RoundFailed: Round 3: nobody answered")
    assert (said["round"], said["checkpoint"]) == (2, 2)
    assert json.loads((folder / "error.json").read_text())["is_computed"] is False
    monkeypatch.undo()
    go_on(folder)
    done = status_of(folder)
    assert (done["state"], done["round"], done["last_error"]) == ("finished", 4, None)
    assert done["next_step"].startswith("manifed report")

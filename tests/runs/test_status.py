"""What a folder says of its run, at any moment of it; nothing is written and no lock is taken."""

import json
import shutil

import pytest

from manifed.cli.launch import Request, launch
from manifed.cli.main import main
from manifed.durable import held
from manifed.errors import RoundFailed
from manifed.federation import rounds
from manifed.runs.extend import extend
from manifed.runs.status import holder_of, status_of
from tests.runs.folder_damage import everything
from tests.runs.test_bad_arguments import refused
from tests.runs.test_cli import QUICKSTART
from tests.runs.test_refusals import SETS, killed_run

FILES = ("experiment.toml", "ledger.jsonl", "ledger.jsonl.head", "manifest.json", "metrics.csv",
         "checkpoint.safetensors")  # fmt: skip
"""In the order in which a run makes them."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run of 4 rounds that was killed in its third, with a budget."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    sets = (*SETS, "federation.num_rounds=4", "privacy.max_epsilon=4.0")
    killed_run(Request(QUICKSTART, sets, out=folder, plain=True), 3)
    return folder


def test_a_stopped_run_says_where_it_is_what_it_spent_and_how_to_go_on(killed):
    before = everything(killed)
    found = status_of(killed)
    assert everything(killed) == before
    assert (found.state, found.held_by, found.num_rounds) == ("stopped", None, 4)
    assert found.charged == 3 > found.round >= found.checkpoint
    assert found.spent["server"] > 0
    assert found.budget is not None
    assert found.budget.field == "privacy.max_epsilon"
    assert found.budget.spent == pytest.approx(found.spent["server"])
    assert found.next_step == f"python simulation.py --resume {killed}"


def test_a_run_that_somebody_holds_is_running_and_nobody_is_kept_from_holding_it(killed):
    with held(killed):
        found = status_of(killed)
        assert found.state == "running"
        assert found.held_by == holder_of(killed) is not None
        assert "no row for long" in found.next_step or found.next_step == "wait"
    with held(killed):
        pass
    assert holder_of(killed) is None


@pytest.mark.parametrize("count", range(len(FILES) + 1))
def test_every_half_written_folder_is_read_or_refused_in_one_line(killed, tmp_path, count, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in FILES[:count]:
        shutil.copy(killed / name, folder / name)
    if count > 4:
        for name in ("ledger.jsonl", "metrics.csv"):  # a line that is being written
            with (folder / name).open("a") as file:
                file.write('{"body":')
    with pytest.raises(SystemExit) as caught:
        main(["status", str(folder), "--json"])
    shown = capsys.readouterr()
    if count in {0, 2}:  # no run folder; a ledger without its head is damage
        assert (caught.value.code, shown.err.count("\n")) == (2, 1)
        return
    assert caught.value.code == 0
    found = json.loads(shown.out)
    assert found["state"] == ("stopped" if count > 3 else "not begun")


def test_the_last_error_and_who_is_missing_are_kept_until_the_run_goes_on(tmp_path, monkeypatch):
    drawn, folder = rounds.begin, tmp_path / "run"

    def fail(plan, state, server_round, *more):
        if server_round == 3:
            raise RoundFailed("Round 3: nobody answered")
        return drawn(plan, state, server_round, *more)

    monkeypatch.setattr(rounds, "begin", fail)
    sets = (*SETS, "federation.num_rounds=4", "privacy.max_epsilon=4.0")
    with pytest.raises(RoundFailed):
        launch(Request(QUICKSTART, sets, out=folder, plain=True))
    said = status_of(folder)
    assert said.last_error is not None
    assert said.last_error.endswith("RoundFailed: Round 3: nobody answered")
    assert (said.round, said.checkpoint) == (2, 2)
    assert json.loads((folder / "error.json").read_text())["is_computed"] is False
    monkeypatch.setattr(rounds, "begin", drawn)
    launch(Request(QUICKSTART, resume=folder, plain=True))
    done = status_of(folder)
    assert (done.state, done.round, done.last_error) == ("finished", 4, None)
    assert "manifed extend" in done.next_step
    extend(folder, 5)
    assert (status_of(folder).state, status_of(folder).num_rounds) == ("stopped", 5)


def test_watch_ends_with_the_run(killed, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["status", str(killed), "--watch", "0.1"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.count("state: stopped") == 1


def test_a_config_that_lost_its_last_lines_is_refused(killed, tmp_path, capsys):
    """What is left may be a whole config, of another run."""
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    path = folder / "experiment.toml"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    error = refused(capsys, main, ["status", str(folder)])
    assert "expected experiment.toml as the run wrote it" in error


@pytest.mark.parametrize("command", ["status", "watch"])
def test_a_folder_that_is_not_there_is_one_line(command, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, str(tmp_path / "nowhere")])
    said = capsys.readouterr().err
    assert (caught.value.code, said.count("\n")) == (2, 1)
    assert "expected a run folder" in said

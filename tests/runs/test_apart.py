"""Figures of a run are drawn after it is finished, and a drawing that fails changes nothing."""

import json
import signal
import subprocess

import pytest

from manifed.cli import launch as launching
from manifed.cli.main import simulation
from manifed.experiment.load import load
from manifed.runs import driver, statement
from manifed.runs.interrupt import ending_signals
from manifed.runs.report import apart
from manifed.runs.report.apart import NotDrawn, draw_apart
from manifed.runs.run_folder import RunFolder
from tests.runs.test_cli import QUICKSTART
from tests.runs.test_report import write_run

SMALL = ["--set", "federation.num_rounds=1", "--set", "federation.num_clients=2", "--plain"]
NAMES = ["a.png", "b.png"]


def plays(monkeypatch, *lines):
    """The process that draws does this in its place, after it has said what it would draw."""
    said = f"import os, signal, sys, time; print({json.dumps(NAMES)!r}, flush=True); "
    monkeypatch.setattr(apart, "_PROGRAM", said + "; ".join(lines))


def everything(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_run_is_whole_and_its_statement_on_screen_before_a_figure_is_drawn(
    tmp_path, monkeypatch, capsys
):
    seen = []

    def drawn(directory):
        seen.append((RunFolder(directory).manifest()["final"], capsys.readouterr()))
        return NAMES

    monkeypatch.setattr(apart, "draw_apart", drawn)
    with pytest.raises(SystemExit) as end:
        simulation([*SMALL, "--out", str(tmp_path / "run"), "--json"])
    assert end.value.code == 0
    ((final, before),) = seen
    assert final["rounds"] == 1
    assert "privacy statement" in before.err
    assert "ledger head: " in before.err
    assert json.loads(before.out)["rounds"] == 1
    after = capsys.readouterr()
    assert (after.out, "a.png, b.png" in after.err) == ("", True)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("print('a.png', flush=True); sys.exit('error: no fonts')", "b.png: error: no fonts"),
        ("print('a.png', flush=True); os.kill(os.getpid(), signal.SIGKILL)", "by signal 9"),
        ("pass", "a.png, b.png: its process ended early"),
    ],
)
def test_a_drawing_that_fails_says_what_is_missing_and_what_to_do(end, why, tmp_path, monkeypatch):
    run = write_run(tmp_path / "my run")
    before = everything(run)
    plays(monkeypatch, end)
    with pytest.raises(NotDrawn, match=why) as error:
        draw_apart(run)
    assert error.value.code == 1
    assert "the run is finished and whole" in str(error.value)
    assert str(error.value).endswith(f"draw with: manifed report '{run}'")
    assert everything(run) == before


def test_a_drawing_that_fails_is_the_exit_code_of_the_command_alone(tmp_path, monkeypatch, capsys):
    plays(monkeypatch, "sys.exit(1)")
    with pytest.raises(SystemExit) as end:
        simulation([*SMALL, "--out", str(tmp_path / "run")])
    assert end.value.code == 1
    shown = capsys.readouterr()
    assert "privacy statement" in shown.out
    assert shown.err.splitlines()[-1].startswith("error: not drawn: a.png, b.png: ")
    assert RunFolder(tmp_path / "run").manifest()["final"]["rounds"] == 1


def test_ctrl_c_ends_the_drawing_and_not_the_run(tmp_path, monkeypatch):
    plays(monkeypatch, "time.sleep(60)")
    run, seen = write_run(tmp_path / "run"), []

    def communicate(process):
        seen.append(process)
        process.stdout.readline()  # it runs by now
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with ending_signals(), pytest.raises(NotDrawn, match="interrupted") as error:
        draw_apart(run)
    assert error.value.code == 130
    assert seen[0].returncode == -signal.SIGKILL


def test_ctrl_c_after_the_last_round_says_that_the_run_is_whole(tmp_path, monkeypatch, capsys):
    def interrupted(_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(statement, "statement_of", interrupted)
    with pytest.raises(SystemExit) as end:
        simulation([*SMALL, "--out", str(tmp_path / "run")])
    assert end.value.code == 130
    said = f"error: interrupted; the run is finished and whole: {tmp_path / 'run'}\n"
    assert capsys.readouterr().err.endswith(f"\n{said}")
    monkeypatch.setattr(launching.RunFolder, "open", interrupted)
    with pytest.raises(SystemExit) as end:
        simulation([*SMALL, "--out", str(tmp_path / "again")])
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith(said.replace("/run\n", "/again\n"))


def test_quiet_turns_no_figure_off(tmp_path, monkeypatch, capsys):
    seen = []
    folder = RunFolder(write_run(tmp_path / "run"))
    monkeypatch.setattr(apart, "draw_apart", lambda path: seen.append(path) or NAMES)
    monkeypatch.setattr(driver, "run_experiment", lambda *_, **__: folder)
    driver.run(load(QUICKSTART, ["output.quiet=true"]), lambda _: iter(()))
    driver.run(load(QUICKSTART, ["output.quiet=true", "output.draws_later=true"]), iter)
    assert seen == [folder.directory]
    assert capsys.readouterr().out == ""


def test_a_figure_that_fails_leaves_a_server_its_run(tmp_path, monkeypatch, caplog):
    plays(monkeypatch, "sys.exit('no fonts')")
    folder = RunFolder(write_run(tmp_path / "run"))
    monkeypatch.setattr(driver, "run_experiment", lambda *_, **__: folder)
    monkeypatch.setattr(driver, "statement_of", lambda _: "privacy statement")
    assert driver.run(load(QUICKSTART), lambda _: iter(())) is folder
    assert "not drawn: a.png, b.png: no fonts" in caplog.text

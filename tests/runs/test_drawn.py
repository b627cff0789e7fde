"""Figures of a run are drawn after it is finished, and a drawing that fails changes nothing."""

import json
import signal

import pytest

from manifed.cli import launch as launching
from manifed.cli.main import simulation
from manifed.errors import RunEnded
from manifed.experiment.load import load
from manifed.flower import apps
from manifed.flower.inline import InlineGrid
from manifed.runs import report as figures
from manifed.runs import statement
from manifed.runs.folder import RunFolder
from manifed.runs.interrupt import ending_signals
from manifed.runs.report import draw_finished
from tests.runs.running import QUICKSTART
from tests.runs.test_report import write_run

SMALL = ["--set", "federation.num_rounds=1", "--set", "federation.num_clients=2", "--plain"]


def fails(monkeypatch, error):
    def drawn(*_):
        raise error

    monkeypatch.setattr(figures, "write_figures", drawn)


def test_the_run_is_whole_and_its_statement_on_screen_before_a_figure_is_drawn(
    tmp_path, monkeypatch, capsys
):
    seen = []

    def drawn(_, directory):
        seen.append((RunFolder(directory).manifest()["final"], capsys.readouterr()))
        return [directory / "a.png"]

    monkeypatch.setattr(figures, "write_figures", drawn)
    with pytest.raises(SystemExit) as end:
        simulation([*SMALL, "--out", str(tmp_path / "run"), "--json"])
    assert end.value.code == 0
    ((final, before),) = seen
    assert final["rounds"] == 1
    assert "privacy statement" in before.err
    assert "ledger head: " in before.err
    assert json.loads(before.out)["rounds"] == 1
    after = capsys.readouterr()
    assert (after.out, "a.png" in after.err) == ("", True)


def test_a_drawing_that_fails_is_the_exit_code_of_the_command_alone(tmp_path, monkeypatch, capsys):
    fails(monkeypatch, RuntimeError("no fonts"))
    with pytest.raises(SystemExit) as end:
        simulation([*SMALL, "--out", str(tmp_path / "run")])
    assert end.value.code == 1
    shown = capsys.readouterr()
    assert "privacy statement" in shown.out
    said = f"no fonts; the run is finished and whole; draw with: manifed report {tmp_path / 'run'}"
    assert shown.err.splitlines()[-1] == f"error: not drawn: {said}"
    assert RunFolder(tmp_path / "run").manifest()["final"]["rounds"] == 1


def test_ctrl_c_ends_the_drawing_and_not_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "write_figures", lambda *_: signal.raise_signal(signal.SIGINT))
    run = write_run(tmp_path / "run")
    with ending_signals(), pytest.raises(RunEnded, match="interrupted") as error:
        draw_finished(RunFolder(run))
    assert error.value.exit_code == 130


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


@pytest.mark.parametrize("quiet", [True, False])
def test_a_server_prints_and_draws_unless_it_is_quiet_and_a_figure_that_fails_leaves_its_run(
    tmp_path, monkeypatch, caplog, capsys, quiet
):
    fails(monkeypatch, RuntimeError("no fonts"))
    folder = RunFolder(write_run(tmp_path / "run"))
    monkeypatch.setattr(apps.driver, "run", lambda *_, **__: folder)
    monkeypatch.setattr(apps, "statement_of", lambda _: "privacy statement")
    config = load(QUICKSTART, [f"output.quiet={str(quiet).lower()}"])
    assert apps.run(InlineGrid(lambda *_: None, 1, {}), config) is folder
    assert ("not drawn: no fonts" in caplog.text) is not quiet
    assert ("privacy statement" in capsys.readouterr().out) is not quiet

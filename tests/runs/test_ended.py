"""What is said once a run is finished, by the command and by a server."""

import signal

import pytest

from manifed.cli import launch as launching
from manifed.experiment.load import load
from manifed.flower import apps
from manifed.flower.grids import InlineGrid
from manifed.runs import statement
from manifed.runs.folder import RunFolder
from tests.command import invoke
from tests.runs.running import QUICKSTART
from tests.runs.test_report import write_run

SMALL = ["--set", "federation.num_rounds=1", "--set", "federation.num_clients=2", "--plain"]


@pytest.mark.parametrize(
    ("owner", "name"), [(statement, "statement_of"), (launching.RunFolder, "open")]
)
def test_ctrl_c_after_the_last_round_says_that_the_run_is_whole(tmp_path, monkeypatch, owner, name):
    monkeypatch.setattr(owner, name, lambda _: signal.raise_signal(signal.SIGINT))
    done = invoke("run", *SMALL, "--out", tmp_path / "run")
    assert done.exit_code == 130
    said = f"error: interrupted; the run is finished and whole: {tmp_path / 'run'}\n"
    assert done.stderr.endswith(said)


@pytest.mark.parametrize("quiet", [True, False])
def test_a_server_prints_the_statement_unless_it_is_quiet(tmp_path, monkeypatch, capsys, quiet):
    folder = RunFolder(write_run(tmp_path / "run"))
    monkeypatch.setattr(apps.driver, "run", lambda *_, **__: folder)
    monkeypatch.setattr(apps, "statement_of", lambda _: "privacy statement")
    config = load(QUICKSTART, [f"output.quiet={str(quiet).lower()}"])
    assert apps.run(InlineGrid(lambda *_: None, 1, {}), config) is folder
    assert ("privacy statement" in capsys.readouterr().out) is not quiet

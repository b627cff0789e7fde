"""What a run shows: nothing computed without noise unless it is declared."""

import math

import pytest

from app.client_app import client_app_of
from app.engines.inline import InlineGrid
from app.engines.polling import PollingGrid
from app.launch import Request, launch
from app.report.__main__ import main as report
from configs.load import ConfigError, load
from tests.app.test_cli import QUICKSTART, ROOT

SETS = ("federation.num_clients=4", "federation.num_rounds=3", "output.plots=false")
OS = "privacy.noise_source=os"
ORACLE = {"cost", "cost_gap", "relative_cost_gap", "gradient_norm"}


def launched(tmp_path, *sets):
    return launch(Request(QUICKSTART, (*SETS, *sets), out=tmp_path / "run", plain=True))


def test_a_release_prints_nothing_that_is_computed_on_all_data(tmp_path, capsys):
    folder = launched(tmp_path, OS)
    final, shown = folder.manifest()["final"], capsys.readouterr().err
    assert not ORACLE & set(folder.metrics())
    assert (final["relative_cost_gap"], final["gradient_norm"]) == (None, None)
    assert final["epsilon"] == pytest.approx(2.0, rel=0.01)
    assert "round 3/3  cost -" in shown
    assert not [note for note in folder.manifest()["privacy"]["notes"] if "oracle" in note]
    assert report([str(folder.directory)]) == 0


def test_a_release_with_a_declared_oracle_says_that_it_voids_the_guarantee(tmp_path):
    folder = launched(tmp_path, OS, "evaluation.is_simulated_oracle=true")
    assert set(folder.metrics()) > ORACLE
    notes = folder.manifest()["privacy"]["notes"]
    assert [note for note in notes if "voids this guarantee" in note]


def test_a_seeded_simulation_keeps_its_oracle_unless_told(tmp_path):
    assert set(launched(tmp_path / "a").metrics()) > ORACLE
    told = launched(tmp_path / "b", "evaluation.is_simulated_oracle=false")
    assert not ORACLE & set(told.metrics())
    assert math.isfinite(told.manifest()["final"]["epsilon"])


def test_clients_elsewhere_switch_the_oracle_off_whatever_the_engine_is_called(tmp_path):
    from app.server_run import run_experiment

    config = load(ROOT / QUICKSTART, [*SETS, f'output.directory="{tmp_path / "run"}"'])
    grid = PollingGrid(InlineGrid(client_app_of(lambda _: config), 4, {}))
    assert not ORACLE & set(run_experiment(grid, config).metrics())


def test_an_oracle_that_is_declared_and_switched_off_is_refused():
    with pytest.raises(ConfigError, match="is_simulated_oracle"):
        load(
            ROOT / QUICKSTART,
            ["evaluation.is_enabled=false", "evaluation.is_simulated_oracle=true"],
        )

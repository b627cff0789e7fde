"""A run that dies goes on from its checkpoint, and its ledger never shows less than was spent."""

import pytest

from app.launch import Request, launch
from app.treasury import Treasury
from configs.load import ConfigError
from privacy.ledger import Ledger
from tests.app.test_cli import QUICKSTART

SETS = (
    "federation.num_clients=4",
    "federation.num_rounds=6",
    "output.plots=false",
    "output.checkpoint_every=2",
)


class Died(BaseException):
    """Stands for a kill: nothing catches it."""


def run_until_death(tmp_path, monkeypatch, at_round, sets=SETS):
    charge = Treasury.charge

    def charge_then_die(self, server_round, attempt, partitions):
        charge(self, server_round, attempt, partitions)
        if server_round == at_round:
            raise Died

    monkeypatch.setattr(Treasury, "charge", charge_then_die)
    with pytest.raises(Died):
        launch(Request(QUICKSTART, sets, out=tmp_path / "run", plain=True))
    monkeypatch.setattr(Treasury, "charge", charge)


def test_a_resumed_run_ends_with_all_rounds_and_pays_for_the_lost_ones(tmp_path, monkeypatch):
    sets = (*SETS, "privacy.max_epsilon=3.0")
    whole = launch(Request(QUICKSTART, sets, out=tmp_path / "whole", plain=True))
    run_until_death(tmp_path, monkeypatch, at_round=4, sets=sets)
    folder = launch(Request(QUICKSTART, resume=tmp_path / "run", plain=True))
    assert folder.manifest()["final"]["rounds"] == 6
    assert folder.metrics()["round"] == list(range(7))
    with Ledger.open(folder.ledger_path) as ledger:
        charged = [e.body["rounds"][0] for e in ledger.entries if e.kind == "reserved"]
    assert charged == [1, 2, 3, 4, 3, 4, 5, 6]
    spent, honest = folder.manifest()["final"]["epsilon"], whole.manifest()["final"]["epsilon"]
    assert spent > honest
    notes = folder.manifest()["privacy"]["notes"]
    assert [note for note in notes if "target epsilon 2 is passed" in note]


def test_a_resumed_run_stops_before_it_passes_its_target(tmp_path, monkeypatch):
    run_until_death(tmp_path, monkeypatch, at_round=4)
    manifest = launch(Request(QUICKSTART, resume=tmp_path / "run", plain=True)).manifest()
    assert manifest["final"]["rounds"] == 4
    assert manifest["final"]["epsilon"] <= 2.0
    assert "privacy.noise.epsilon" in manifest["stopped"]


def test_a_round_done_again_draws_fresh_noise(tmp_path, monkeypatch):
    run_until_death(tmp_path, monkeypatch, at_round=4)
    before = launch(Request(QUICKSTART, SETS, out=tmp_path / "whole", plain=True))
    after = launch(Request(QUICKSTART, resume=tmp_path / "run", plain=True))
    assert before.metrics()["cost"][2] == after.metrics()["cost"][2]
    assert before.metrics()["cost"][3] != after.metrics()["cost"][3]


def test_a_finished_run_and_another_config_are_not_resumed(tmp_path, monkeypatch):
    launch(Request(QUICKSTART, SETS, out=tmp_path / "done", plain=True))
    with pytest.raises(ConfigError, match="unfinished"):
        launch(Request(QUICKSTART, resume=tmp_path / "done", plain=True))
    run_until_death(tmp_path, monkeypatch, at_round=3)
    changed = Request(QUICKSTART, ("federation.seed=5",), resume=tmp_path / "run", plain=True)
    with pytest.raises(ConfigError, match="same settings"):
        launch(changed)


def test_a_budget_stops_the_run_before_the_round_that_would_exceed_it(tmp_path):
    sets = (
        *SETS,
        "privacy.noise={kind='multiplier',noise_multiplier=5.0}",
        "privacy.delta=1e-5",
        "privacy.max_epsilon=1.5",
    )
    folder = launch(Request(QUICKSTART, sets, out=tmp_path / "run", plain=True))
    manifest = folder.manifest()
    assert 0 < manifest["final"]["rounds"] < 6
    assert manifest["final"]["epsilon"] <= 1.5
    assert "budget" in manifest["stopped"]
    assert folder.load_tensors("model")["x"].shape == (64,)

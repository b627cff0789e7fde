"""What ``flwr run --run-config`` can say, and that both sides run the same code."""

import shutil
import sys
import tomllib
from types import SimpleNamespace

import pytest
from flwr.supercore.constant import DEFAULT_SIMULATION_CONFIG

from app.client_app import app as client_app
from clients import local_training as node
from manifed.errors import ConfigError
from manifed.experiment.assembly import plan_of
from manifed.experiment.load import load
from manifed.flower import handshake
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import HandshakeFailed, meet
from manifed.flower.run_config import FIELDS, experiment_of
from manifed.problems.data import source_sha256
from manifed.runs.manifest import LIBRARY, code_sha256
from tests.fresh import QUICKSTART, ROOT

DEFAULT = ROOT / "configs" / "flwr_run.toml"
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_what_the_app_declares_says_which_file_and_nothing_else():
    assert {"experiment", "overrides", "resolved", *FIELDS} == DECLARED.keys()
    assert {key for key, value in DECLARED.items() if value != ""} == {"experiment"}
    assert experiment_of(DECLARED) == load(DEFAULT)


def test_the_default_is_the_quickstart_with_as_many_clients_as_flower_simulates():
    simulated = DEFAULT_SIMULATION_CONFIG.num_supernodes
    changed = ["name='flwr-run'", f"federation.num_clients={simulated}"]
    assert load(DEFAULT) == load(QUICKSTART, changed)


def test_each_key_sets_its_field():
    given = {
        "num-server-rounds": 5, "num-clients": 3, "seed": 7, "epsilon": 4, "delta": 1e-6,
        "step-size": 0.1,
    }  # fmt: skip
    found = experiment_of({**DECLARED, **given})
    assert found == load(DEFAULT, settings={FIELDS[key]: value for key, value in given.items()})
    assert (found.federation.num_rounds, found.federation.num_clients) == (5, 3)


def test_a_relative_file_is_found_beside_the_app(tmp_path):
    (tmp_path / "configs").mkdir()
    shutil.copy(QUICKSTART, tmp_path / "configs" / "other.toml")
    given = {**DECLARED, "experiment": "configs/other.toml"}
    assert experiment_of(given, tmp_path) == load(QUICKSTART)


REFUSED = {
    "a text": ({"num-server-rounds": "5"}, "federation.num_rounds: .* a valid integer, got '5'"),
    "a truth": ({"num-clients": True}, "federation.num_clients: .* a valid integer, got True"),
    "nan": ({"step-size": float("nan")}, "training.step_size: expected a size .* got nan"),
    "delta": ({"delta": 1.0}, "privacy.noise.delta: .* less than 1"),
    "twice": (
        {"seed": 1, "overrides": "federation.seed = 2"},
        "overrides: .*each field once.*Cannot overwrite a value",
    ),
    "no target": (
        {"epsilon": 1.0, "overrides": "privacy = {kind = 'none'}"},
        "overrides: .*each field once.*Cannot mutate",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_value_is_one_line_that_names_field_and_key(name):
    given, words = REFUSED[name]
    key = next(iter(given))
    with pytest.raises(
        ConfigError, match=rf"^{words}.* \(in the run config {FIELDS[key]} is {key}\)$"
    ):
        experiment_of({**DECLARED, **given})


def test_a_resolved_experiment_stands_alone():
    with pytest.raises(ConfigError, match=r"resolved: expected no other key .* \{'seed': 1\}"):
        experiment_of({"resolved": "name = 'x'", "seed": 1})


def test_the_hash_of_the_code_is_that_of_its_names_and_contents(tmp_path, monkeypatch):
    copy = tmp_path / "manifed"
    placed = SimpleNamespace(__file__=str(copy / "__init__.py"))
    monkeypatch.setitem(sys.modules, "elsewhere", placed)
    shutil.copytree(LIBRARY, copy, ignore=shutil.ignore_patterns("__pycache__", "py.typed"))
    assert source_sha256("elsewhere") == code_sha256()
    (copy / "errors.py").rename(copy / "faults.py")
    renamed = source_sha256("elsewhere")
    with (copy / "faults.py").open("a") as file:
        file.write("\n")
    assert len({code_sha256(), renamed, source_sha256("elsewhere")}) == 3


def test_a_node_that_runs_other_code_refuses_the_server_and_both_hashes_are_named(monkeypatch):
    run_config = {**DECLARED, "num-clients": 2}
    config = experiment_of(run_config)
    grid = InlineGrid(client_app, 2, run_config)
    plan = plan_of(config)
    assert meet(grid, plan, 1.0).nodes == {0: 2, 1: 3}
    check = node.check_code

    def other_code(*said):
        with monkeypatch.context() as planted:
            planted.setattr(handshake, "code_sha256", lambda: "e" * 64)
            check(*said)

    monkeypatch.setattr(node, "check_code", other_code)
    said = f"the server runs manifed '{code_sha256()[:12]}', this process 'eeeeeeeeeeee'"
    with pytest.raises(HandshakeFailed, match=rf"node 2: error 2: BadMessage: {said}"):
        meet(grid, plan, 1.0, patience=0.0)

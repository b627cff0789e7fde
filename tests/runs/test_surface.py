"""What a run shows: nothing computed without noise unless it is declared."""

import math
import pickle

import pytest
import torch

from manifed.algorithms.payloads import Point
from manifed.errors import ConfigError
from manifed.experiment import assembly
from manifed.experiment.load import load
from manifed.federation.replies import Header
from manifed.flower.client import client_app_of
from manifed.flower.inline import InlineGrid
from manifed.flower.polling import PollingGrid
from manifed.flower.records import HEADER, NOISE_ORIGIN, pack, read_reply
from manifed.plan import promise_of
from manifed.privacy import events
from manifed.privacy.account import opened
from manifed.privacy.noise import NoiseSource
from manifed.runs.export import viewed
from manifed.runs.report import read
from manifed.runs.statement import DECLARED, RELEASE, SENTENCES, statement_of, verdict
from manifed.setting import Setting
from tests.runs.running import QUICKSTART, ROOT, run_in

SETS = ("federation.num_clients=4", "federation.num_rounds=3", "output.plots=false")
OS = "privacy.noise_source=os"
ORACLE = {"cost", "cost_gap", "relative_cost_gap", "gradient_norm"}


def launched(tmp_path, *sets):
    return run_in(tmp_path / "run", *SETS, *sets)


def test_a_release_prints_nothing_that_is_computed_on_all_data(tmp_path, capsys):
    folder = launched(tmp_path, OS)
    final = folder.manifest()["final"]
    shown = capsys.readouterr().err
    assert not ORACLE & set(folder.metrics())
    assert (final["relative_cost_gap"], final["gradient_norm"]) == (None, None)
    assert final["epsilon"] == pytest.approx(2.0, rel=0.01)
    assert "round 3/3  cost -" in shown
    assert not [note for note in folder.manifest()["privacy"]["notes"] if "oracle" in note]
    assert "final" in viewed(read(folder.directory)).manifest


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
    from manifed.flower.apps import run

    config = load(ROOT / QUICKSTART, [*SETS, f'output.directory="{tmp_path / "run"}"'])
    grid = PollingGrid(InlineGrid(client_app_of(lambda _: config), 4, {}))
    assert not ORACLE & set(run(grid, config).metrics())


def test_an_oracle_that_is_declared_and_switched_off_is_refused():
    with pytest.raises(ConfigError, match="is_simulated_oracle"):
        load(
            ROOT / QUICKSTART,
            ["evaluation.is_enabled=false", "evaluation.is_simulated_oracle=true"],
        )


# -- what the noise sources really did -------------------------------------------------------
TWO_ENGINES = pytest.mark.parametrize("execution", ["messages", "cohort"])


@TWO_ENGINES
def test_a_release_is_printed_when_every_source_had_a_key_of_the_system(tmp_path, execution):
    manifest = launched(tmp_path, OS, f"engine.execution={execution}").manifest()
    assert manifest["privacy"]["noise_origins"] == ["os"]
    assert manifest["randomness_source"] == "os"
    assert verdict(manifest["privacy"]) == RELEASE


@TWO_ENGINES
def test_clients_whose_noise_is_seeded_make_no_release_whatever_the_config_says(
    tmp_path, monkeypatch, execution
):
    """The planted fault: clients of an "os" config draw from the seed."""
    monkeypatch.setattr(Setting, "client_source", lambda _: NoiseSource.from_seed(0))
    assembly.own_node.cache_clear()
    manifest = launched(tmp_path, OS, f"engine.execution={execution}").manifest()
    assert manifest["privacy"]["noise_source"] == "os"
    assert verdict(manifest["privacy"]) == SENTENCES[events.SEEDED]
    assert manifest["randomness_source"] == "seed"
    assembly.own_node.cache_clear()


def test_a_seeded_server_makes_no_release(tmp_path, monkeypatch):
    monkeypatch.setattr(Setting, "fresh_source", lambda _: NoiseSource.from_seed(0))
    level = "{kind='client-level',l2_norm_clip=0.1,delta=0.01,noise_source='os',"
    noise = "noise={kind='multiplier',noise_multiplier=3.0}}"
    manifest = launched(tmp_path, f"privacy={level}{noise}").manifest()
    assert verdict(manifest["privacy"]) == SENTENCES[events.SEEDED]


def test_a_seeded_config_reads_as_no_release_whatever_its_clients_declare():
    said = {"kind": "example-level", "noise_source": "seed", "noise_origins": ["os"]}
    assert verdict(said) == SENTENCES[events.SEEDED]
    said["noise_source"] = "os"
    assert verdict(said) == RELEASE
    assert verdict(said | {"is_declared": True}) == DECLARED
    assert verdict(said | {"noise_origins": ["os", "undeclared"]}) == SENTENCES[events.UNKNOWN]
    assert verdict(said | {"noise_origins": []}) == SENTENCES[events.PLANNED]


@pytest.mark.parametrize("declared", [None, "OS", 1, "os "])
def test_a_reply_that_declares_nothing_known_is_undeclared(declared):
    said = Header("c" * 64, 1, 0, "train", 0), Point(torch.zeros(2))
    asked = pack(*said)
    content = pack(*said)
    if declared is not None:
        content.config_records[HEADER][NOISE_ORIGIN] = declared
    assert read_reply(content, asked, Point, (2,), torch.float32)[1] == "undeclared"


def test_a_derived_source_keeps_its_origin():
    for source, origin in ((NoiseSource.from_os(), "os"), (NoiseSource.from_seed(1), "seed")):
        assert source.derive(b"x").origin == pickle.loads(pickle.dumps(source)).origin == origin


def test_what_an_earlier_process_drew_from_counts_after_a_resume(tmp_path):
    config = load(ROOT / QUICKSTART, [*SETS, OS])
    promise = promise_of(config.setting, (450, 449, 449, 449))
    path = tmp_path / "ledger.jsonl"
    with opened(path, promise, header={}, last_round=3) as account:
        account.charge(1, 0, (0, 1, 2, 3))
        account.note_origins(1, frozenset({"seed"}))
    with opened(path, promise, header={}, last_round=3, resumed_at=2) as account:
        account.charge(2, 0, (0, 1, 2, 3))
        account.note_origins(2, frozenset({"os"}))
        said = promise.statement(account.odometer, noise_origins=account.noise_origins)
        assert verdict(said) == SENTENCES[events.SEEDED]


def test_the_statement_has_a_line_on_floating_point():
    config = load(ROOT / QUICKSTART, [*SETS, "privacy.noise_precision=summed"])
    promise = promise_of(config.setting, (450, 449, 449, 449))
    said = statement_of(promise.statement(promise.odometer()))
    (line,) = (line for line in said.splitlines() if "floating point" in line)
    assert "four summed a draw" in line
    assert "assume exact Gaussians" in line

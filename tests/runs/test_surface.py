"""What a run shows: nothing computed without noise unless it is declared."""

import math

import pytest
import torch

from manifed.algorithms.payloads import Point
from manifed.errors import ConfigError
from manifed.experiment import assembly
from manifed.experiment.load import load
from manifed.federation.exchange import Header
from manifed.flower.client import inline_grid
from manifed.flower.grids import PollingGrid
from manifed.flower.records import HEADER, NOISE_ORIGIN, pack, read_reply
from manifed.plan import promise_of
from manifed.privacy.charging import opened
from manifed.privacy.events import Label
from manifed.privacy.random_numbers import NoiseSource
from manifed.runs.export import viewed
from manifed.runs.report import read
from manifed.runs.statement import SENTENCES, statement_of, verdict
from manifed.setting import Setting
from tests.runs.running import QUICKSTART, run_in

SETS = ("federation.num_clients=4", "federation.num_rounds=3")
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
    assert 2.0 * 0.995 <= final["epsilon"] <= 2.0
    assert "round 3/3  cost -" in shown
    assert not [note for note in folder.manifest()["privacy"]["notes"] if "oracle" in note]
    assert "final" in viewed(read(folder.directory)).manifest


def test_a_seeded_simulation_keeps_its_oracle_unless_told(tmp_path):
    assert set(launched(tmp_path / "a").metrics()) > ORACLE
    told = launched(tmp_path / "b", "evaluation.is_simulated_oracle=false")
    assert not ORACLE & set(told.metrics())
    assert math.isfinite(told.manifest()["final"]["epsilon"])


def test_clients_elsewhere_switch_the_oracle_off_whatever_the_engine_is_called(tmp_path):
    from manifed.flower.apps import run

    config = load(QUICKSTART, [*SETS, f'output.directory="{tmp_path / "run"}"'])
    assert not ORACLE & set(run(PollingGrid(inline_grid(config)), config).metrics())


def test_an_oracle_that_is_declared_and_switched_off_is_refused():
    with pytest.raises(ConfigError, match="is_simulated_oracle"):
        load(
            QUICKSTART,
            ["evaluation.is_enabled=false", "evaluation.is_simulated_oracle=true"],
        )


# -- what the noise sources really did -------------------------------------------------------


@pytest.mark.parametrize("execution", ["messages", "cohort"])
@pytest.mark.parametrize(("origin", "label"), [("os", Label.RELEASE), ("seed", Label.SEEDED)])
def test_a_release_is_printed_where_clients_had_keys_of_the_system_whatever_the_config_says(
    tmp_path, monkeypatch, execution, origin, label
):
    """The planted fault: clients of an "os" config draw from the seed."""
    if origin == "seed":
        monkeypatch.setattr(NoiseSource, "fresh", lambda _: NoiseSource.from_seed(0))
    assembly.own_node.cache_clear()
    manifest = launched(tmp_path, OS, f"engine.execution={execution}").manifest()
    assembly.own_node.cache_clear()
    assert manifest["privacy"]["noise_source"] == "os"
    assert (manifest["privacy"]["noise_origins"] == ["os"]) is (origin == "os")
    assert manifest["randomness_source"] == origin
    assert verdict(manifest["privacy"]) == SENTENCES[label]


def test_a_seeded_server_makes_no_release(tmp_path, monkeypatch):
    monkeypatch.setattr(Setting, "source", lambda _: NoiseSource.from_seed(0))
    level = "{kind='client-level',l2_norm_clip=0.1,delta=0.01,noise_source='os',"
    noise = "noise={kind='multiplier',noise_multiplier=3.0}}"
    folder = launched(tmp_path, f"privacy={level}{noise}")
    assert verdict(folder.manifest()["privacy"]) == SENTENCES[Label.SEEDED]


def test_where_clients_declare_their_noise_the_verdict_says_so():
    said = {"kind": "example-level", "noise_source": "os", "noise_origins": ["os"]}
    assert verdict(said) == SENTENCES[Label.RELEASE]
    assert verdict(said | {"is_declared": True}) == SENTENCES["declared"]


@pytest.mark.parametrize("declared", [None, "OS", 1, "os "])
def test_a_reply_that_declares_nothing_known_is_undeclared(declared):
    said = Header("c" * 64, 1, 0, "train", 0), Point(torch.zeros(2))
    asked = pack(*said)
    content = pack(*said)
    if declared is not None:
        content.config_records[HEADER][NOISE_ORIGIN] = declared
    assert read_reply(content, asked, Point, (2,), torch.float32)[1] == "undeclared"


def test_what_an_earlier_process_drew_from_counts_after_a_resume(tmp_path):
    promise = promise_of(load(QUICKSTART, [*SETS, OS]).setting, (450, 449, 449, 449))
    path = tmp_path / "ledger.jsonl"
    with opened(path, promise, header={}, last_round=3) as account:
        account.charge(1, 0, (0, 1, 2, 3))
        account.note_origins(1, frozenset({"seed"}))
    with opened(path, promise, header={}, last_round=3, resumed_at=2) as account:
        account.charge(2, 0, (0, 1, 2, 3))
        account.note_origins(2, frozenset({"os"}))
        assert verdict(promise.statement(account.odometer)) == SENTENCES[Label.SEEDED]


def test_the_statement_has_a_line_on_floating_point():
    promise = promise_of(
        load(QUICKSTART, [*SETS, "privacy.noise_precision=summed"]).setting, (450, 449, 449, 449)
    )
    (line,) = (
        line
        for line in statement_of(promise.statement(promise.odometer())).splitlines()
        if "floating point" in line
    )
    assert "four summed a draw" in line
    assert "assume exact Gaussians" in line

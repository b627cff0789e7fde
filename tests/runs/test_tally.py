"""Traffic and replies add up, whichever rounds have a row, and over a resumed run."""

import json
import signal
from pathlib import Path

import pytest

from manifed.cli.launch import Request, launch
from manifed.errors import RunEnded
from manifed.federation.plan import RoundReport
from manifed.federation.replies import KINDS, Failure
from manifed.runs import driver
from manifed.runs.checkpoint import Tally
from manifed.runs.interrupt import Ended
from manifed.runs.report import read

QUICKSTART = str(Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml")
SMALL = (
    "federation.num_clients=3",
    "federation.num_rounds=10",
    "training.local_steps=1",
    "evaluation.every=4",
    "output.checkpoint_every=3",
    "output.plots=false",
    "privacy={kind='none'}",
)
ROUND = 3 * 64 * 8


def run(directory, *sets, **more):
    return launch(Request(QUICKSTART, (*SMALL, *sets), out=directory, plain=True, **more))


def test_the_table_shows_the_bytes_of_all_rounds_whatever_rows_there_are(tmp_path):
    seldom = run(tmp_path / "seldom")
    always = run(tmp_path / "always", "evaluation.every=1")
    assert seldom.metrics()["round"] == [0, 4, 8, 10]
    assert seldom.metrics()["bytes_up"] == [0, 4 * ROUND, 4 * ROUND, 2 * ROUND]
    assert seldom.metrics()["participants"] == [0, 12, 12, 6]
    assert seldom.manifest()["replies"] == {
        "participants": 30,
        "failures": 0,
        "by_client": {},
        "missed": {},
        "by_kind": dict.fromkeys(KINDS, 0),
    }
    for folder in (seldom, always):
        assert read(folder.directory).columns["bytes_up"].sum() == 10 * ROUND


def test_a_resumed_run_adds_up_to_the_same(tmp_path, monkeypatch):
    tell = driver._Run._after_round

    def stops_in_round_7(self, report):
        if report.server_round == 7:
            raise Ended(signal.SIGINT)
        tell(self, report)

    with monkeypatch.context() as patch:
        patch.setattr(driver._Run, "_after_round", stops_in_round_7)
        with pytest.raises(RunEnded, match="interrupted"):
            run(tmp_path / "run")
    folder = launch(Request("", resume=tmp_path / "run", plain=True))
    whole = run(tmp_path / "whole")
    for column in ("round", "bytes_up", "bytes_down", "participants", "failures", "absent"):
        assert folder.metrics()[column] == whole.metrics()[column]
    assert folder.manifest()["replies"] == whole.manifest()["replies"]


def report_of(server_round, failures):
    return RoundReport(server_round, {}, (0, 2), failures, 5, 3)


def test_failures_are_counted_by_client_and_reason_within_bounds():
    tally = Tally.of_nothing()
    for server_round in range(1, 31):
        late = Failure("late", "boom")
        other = Failure("absent", f"reason {server_round}")
        tally.add(report_of(server_round, {1: late, 3: other}))
    row = tally.take(30)
    assert row == {
        "bytes_down": 150, "bytes_up": 90, "participants": 60, "failures": 60,
        "late": 30, "unavailable": 0, "absent": 30, "unusable": 0,
    }  # fmt: skip
    assert set(tally.take(31).values()) == {0}
    summary = json.loads(json.dumps(tally.summary()))
    assert summary["by_client"]["1"] == {"boom": 30}
    assert len(summary["by_client"]["3"]) == 9
    assert summary["by_client"]["3"]["other reasons"] == 22
    assert Tally.model_validate_json(tally.model_dump_json()) == tally


def test_the_rounds_that_a_client_missed_are_listed_by_kind_within_bounds():
    tally = Tally.of_nothing()
    gone = Failure("unavailable", "gone")
    odd = Failure("unusable", "odd")
    for server_round in (3, 4, 5, 9, 10):
        tally.add(report_of(server_round, {1: gone}))
    tally.add(report_of(11, {1: odd}))
    for server_round in range(1, 1000, 2):
        tally.add(report_of(server_round, {2: gone}))
    missed = json.loads(json.dumps(tally.summary()))["missed"]
    assert missed["1"] == {"unavailable": [[3, 5], [9, 10]], "unusable": [[11, 11]]}
    assert len(missed["2"]["unavailable"]) == 64
    assert tally.summary()["by_kind"] == {"late": 0, "unavailable": 505, "absent": 0, "unusable": 1}

"""Traffic and replies add up, whichever rounds have a row, and over a resumed run."""

import json
import signal

import pytest

from manifed.errors import RunEnded
from manifed.federation.exchange import KINDS, Failure
from manifed.federation.plan import RoundReport
from manifed.runs import driver
from manifed.runs.checkpoint import Tally
from manifed.runs.interrupt import Ended
from tests.runs.running import go_on, run_in

SMALL = (
    "federation.num_clients=3",
    "federation.num_rounds=10",
    "training.local_steps=1",
    "evaluation.every=4",
    "output.checkpoint_every=3",
    "privacy={kind='none'}",
)
ROUND = 3 * 64 * 8


def test_the_table_shows_the_bytes_of_all_rounds_whatever_rows_there_are(tmp_path):
    seldom = run_in(tmp_path / "seldom", *SMALL)
    always = run_in(tmp_path / "always", *SMALL, "evaluation.every=1")
    rows = seldom.metrics()
    assert rows["round"] == [0, 4, 8, 10]
    assert rows["bytes_up"] == [0, 4 * ROUND, 4 * ROUND, 2 * ROUND]
    assert rows["participants"] == [0, 12, 12, 6]
    assert seldom.manifest()["replies"] == {
        "participants": 30,
        "failures": 0,
        "by_client": {},
        "missed": {},
        "by_kind": dict.fromkeys(KINDS, 0),
    }
    for folder in (seldom, always):
        assert sum(folder.metrics()["bytes_up"]) == 10 * ROUND


def test_a_resumed_run_adds_up_to_the_same(tmp_path, monkeypatch):
    tell = driver._Run._after_round

    def stops_in_round_7(self, report):
        if report.server_round == 7:
            raise Ended(signal.SIGINT)
        tell(self, report)

    with monkeypatch.context() as patch:
        patch.setattr(driver._Run, "_after_round", stops_in_round_7)
        with pytest.raises(RunEnded, match="interrupted"):
            run_in(tmp_path / "run", *SMALL)
    folder = go_on(tmp_path / "run")
    whole = run_in(tmp_path / "whole", *SMALL)
    for column in ("round", "bytes_up", "bytes_down", "participants", "failures", "absent"):
        assert folder.metrics()[column] == whole.metrics()[column]
    assert folder.manifest()["replies"] == whole.manifest()["replies"]


def tally_of(*rounds):
    """A tally and its summary after rounds: each its number, and who failed in it."""
    tally = Tally.of_nothing()
    for server_round, failures in rounds:
        tally.add(RoundReport(server_round, {}, (0, 2), failures, 5, 3))
    return tally, json.loads(json.dumps(tally.summary()))


def test_failures_are_counted_by_client_and_reason_within_bounds():
    late = Failure("late", "boom")
    tally, summary = tally_of(
        *((r, {1: late, 3: Failure("absent", f"reason {r}")}) for r in range(1, 31))
    )
    assert Tally.model_validate_json(tally.model_dump_json()) == tally
    assert summary["by_client"]["1"] == {"boom": 30}
    assert len(summary["by_client"]["3"]) == 9
    assert summary["by_client"]["3"]["other reasons"] == 22
    assert tally.take(30) == {
        "bytes_down": 150, "bytes_up": 90, "participants": 60, "failures": 60,
        "late": 30, "unavailable": 0, "absent": 30, "unusable": 0,
    }  # fmt: skip
    assert {*tally.take(31).values()} == {0}


def test_the_rounds_that_a_client_missed_are_listed_by_kind_within_bounds():
    gone = Failure("unavailable", "gone")
    _, summary = tally_of(
        *((r, {1: gone}) for r in (3, 4, 5, 9, 10)),
        (11, {1: Failure("unusable", "odd")}),
        *((r, {2: gone}) for r in range(1, 1000, 2)),
    )
    missed = summary["missed"]
    assert missed["1"] == {"unavailable": [[3, 5], [9, 10]], "unusable": [[11, 11]]}
    assert len(missed["2"]["unavailable"]) == 64
    assert summary["by_kind"] == {"late": 0, "unavailable": 505, "absent": 0, "unusable": 1}

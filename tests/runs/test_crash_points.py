"""Runs that crash at a chosen call of the file system are gone on with, and the judge sees faults.

tests/robustness/kills.py crashes runs at every such call; here are a sample and those that hurt.
"""

import shutil
from pathlib import Path

import pytest

from manifed.runs.folder import RunFolder
from tests.robustness.crash_points import Crash, attempt, judge, points
from tests.robustness.kills import CASES, trials_of
from tests.runs.folder_damage import Gone, json_change, of_bytes, of_rows, with_model

PRIVATE = CASES[0]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a whole run in ``whole``."""
    root = tmp_path_factory.mktemp("crashes")
    assert attempt(PRIVATE, root / "whole", ()).findings == ()
    return root


@pytest.fixture(scope="module")
def calls(root):
    return points(PRIVATE, root / "points")


def crashed(calls, folder, name, n, mode):
    """A run that ended at the n-th call of this name, and went on."""
    return attempt(
        PRIVATE,
        folder,
        (Crash([i for i, call in enumerate(calls, start=1) if call == name][n], mode),),
    )


CRASHES = {
    "before the manifest": ("replace", 2, "before"),
    "between ledger and manifest": ("link", 0, "after"),
    "half a row": ("write", 4, "half"),
    "a full disk": ("write", 5, "full"),
}


@pytest.mark.parametrize("place", CRASHES.values(), ids=CRASHES)
def test_a_crashed_run_ends_as_if_nothing_had_happened(root, calls, tmp_path, place):
    trial = crashed(calls, tmp_path / "run", *place)
    assert trial.at
    assert trial.parts == 2
    assert trial.findings == ()


@pytest.mark.slow
def test_crashes_at_any_call_once_or_twice_leave_no_anomaly(calls, tmp_path):
    for number, (_, crashes) in enumerate(trials_of([calls], 400)[::16]):
        assert attempt(PRIVATE, tmp_path / f"{number}", crashes).findings == ()


def test_rows_that_a_resumed_run_does_not_cut_are_found(root, calls, tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "drop_metrics_after", lambda *_: None)
    assert any(
        finding.startswith("rows")
        for finding in crashed(calls, tmp_path / "run", "write", 5, "after").findings
    )


FAULTS = {
    "an orphan": ("run/.model.safetensors.draft", Path.touch, "files"),
    "a row twice": ("run/metrics.csv", of_rows(lambda rows: [*rows, rows[-1]]), "rows"),
    "a release that was not charged": (
        "witness", of_bytes(lambda data: data + b"3 1 0\n"), "ledger"),
    "another model": (
        "run/model.safetensors", with_model(lambda found: {"x": found["x"] + 1}), "model"),
    "no end": ("run/manifest.json", json_change("final", Gone), "no final"),
}  # fmt: skip


@pytest.mark.parametrize(("file", "spoil", "finding"), FAULTS.values(), ids=FAULTS)
def test_the_judge_sees_a_planted_fault(root, tmp_path, file, spoil, finding):
    folder = shutil.copytree(root / "whole", tmp_path / "whole")
    spoil(folder / file)
    assert any(found.startswith(finding) for found in judge(PRIVATE, folder, 0))


def test_every_way_to_crash_at_every_call_is_tried_before_pairs():
    trials = trials_of([["write", "fsync"], ["link"]], 12)
    singles = {(i, c[0].number, c[0].mode) for i, c in trials if len(c) == 1}
    assert len(singles) == 8
    assert {mode for _, number, mode in singles if number == 1} == {
        "before", "half", "full", "after",
    }  # fmt: skip
    assert sum(len(c) == 2 for _, c in trials) == 4
    assert len(trials_of([["write"] * 9], 5)) == 5

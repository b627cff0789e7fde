"""Runs that crash at a chosen call of the file system are gone on with, and the judge sees faults.

tests/robustness/kills.py crashes runs at every such call; here are the few that once hurt.
"""

import json
import shutil

import pytest

from manifed.runs.folder import RunFolder
from tests.robustness.crash_points import Crash, attempt, judge, points
from tests.robustness.kills import CASES, trials_of

PRIVATE = CASES[0]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a whole run in ``whole``."""
    root = tmp_path_factory.mktemp("crashes")
    finished = attempt(PRIVATE, root / "whole", ())
    assert finished.findings == ()
    return root


@pytest.fixture(scope="module")
def calls(root):
    return points(PRIVATE, root / "points")


def nth(calls, name, n):
    """The number of the n-th call of this name."""
    return [i for i, call in enumerate(calls, start=1) if call == name][n]


CRASHES = {
    "before the manifest": lambda calls: Crash(nth(calls, "replace", 2), "before"),
    "between ledger and manifest": lambda calls: Crash(nth(calls, "link", 0), "after"),
    "half a row": lambda calls: Crash(nth(calls, "write", 4), "half"),
    "a full disk": lambda calls: Crash(nth(calls, "write", 5), "full"),
}


@pytest.mark.parametrize("place", CRASHES)
def test_a_crashed_run_ends_as_if_nothing_had_happened(root, calls, tmp_path, place):
    trial = attempt(PRIVATE, tmp_path / "run", (CRASHES[place](calls),))
    assert trial.at
    assert trial.parts == 2
    assert trial.findings == ()


def test_rows_that_a_resumed_run_does_not_cut_are_found(root, calls, tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "drop_metrics_after", lambda *_: None)
    first_row = [i for i, call in enumerate(calls, start=1) if call == "write"][5]
    trial = attempt(PRIVATE, tmp_path / "run", (Crash(first_row, "after"),))
    assert any(finding.startswith("rows") for finding in trial.findings)


def an_orphan(folder):
    (folder / "run" / ".model.safetensors.draft").write_text("")


def a_row_twice(folder):
    path = folder / "run" / "metrics.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")


def a_release_that_was_not_charged(folder):
    with (folder / "witness").open("a") as file:
        file.write("3 1 0\n")


def another_model(folder):
    import torch

    RunFolder(folder / "run").save_tensors("model", {"x": torch.ones(64, dtype=torch.float64)})


def no_end(folder):
    path = folder / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["final"]
    path.write_text(json.dumps(manifest))


FAULTS = {
    an_orphan: "files",
    a_row_twice: "rows",
    a_release_that_was_not_charged: "ledger",
    another_model: "model",
    no_end: "no final",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_judge_sees_a_planted_fault(root, tmp_path, fault):
    shutil.copytree(root / "whole", tmp_path / "whole")
    fault(tmp_path / "whole")
    assert any(found.startswith(FAULTS[fault]) for found in judge(PRIVATE, tmp_path / "whole", 0))


def test_every_way_to_crash_at_every_call_is_tried_before_pairs():
    trials = trials_of([["write", "fsync"], ["link"]], 12)
    singles = {(i, c[0].number, c[0].mode) for i, c in trials if len(c) == 1}
    assert len(singles) == 8
    assert {mode for _, number, mode in singles if number == 1} == {
        "before", "half", "full", "after",
    }  # fmt: skip
    assert sum(len(c) == 2 for _, c in trials) == 4
    assert len(trials_of([["write"] * 9], 5)) == 5

"""A guarded run that is killed at any point has a ledger that tells what left, and goes on with it.

tests/robustness/guard_kills.py kills runs at every point; here are a sample and those that hurt.
"""

import re

import pytest

from manifed.privacy.charging import Account
from tests.fresh import ROOT
from tests.robustness.crash_points import Crash
from tests.robustness.guard_kills import CASES, PAID, attempt, judge, points, trials_of

DECLARED = "cohorts of a fixed size, a declared DP-SGD"
MOD = "the mod at a client"


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The points of a whole run of each case."""
    root = tmp_path_factory.mktemp("points")
    return {case: points(case, root / str(i)) for i, case in enumerate(CASES)}


def nth(calls, name, n=0):
    """The number of the n-th point of this name."""
    return [i for i, one in enumerate(calls, start=1) if one == name][n]


WORST = {
    "as a client is called": ("Poisson cohorts", "client", 0, "before"),
    "as a model leaves": ("Poisson cohorts", "model", 1, "after"),
    "half of the line that pays": (DECLARED, "write", 8, "half"),
    "between two new ledgers": (DECLARED, "link", 0, "after"),
    "as the app answers": (MOD, "client", 1, "after"),
}


@pytest.mark.parametrize("place", WORST.values(), ids=WORST)
def test_a_killed_run_is_told_whole_and_gone_on_with_to_its_budget(calls, tmp_path, place):
    case, name, n, mode = place
    at, found = attempt(case, tmp_path, (Crash(nth(calls[case], name, n), mode),))
    assert (at, found) == ([name], [])


@pytest.mark.slow
def test_kills_at_any_point_once_or_twice_leave_no_anomaly(calls, tmp_path):
    trials = trials_of(calls)
    assert len(trials) > 400
    for number, (case, crashes) in enumerate(trials[::17]):
        assert attempt(case, tmp_path / f"{number}", crashes)[1] == [], (case, crashes)


def test_the_judge_sees_a_guard_that_pays_in_memory_alone(tmp_path, monkeypatch):
    def charge(self, server_round, attempt, partitions, offered=None):
        self.odometer = self.odometer.after(self._entry(server_round, attempt, "0-3"))

    monkeypatch.setattr(Account, "charge", charge)
    names = points("Poisson cohorts", tmp_path / "points")
    crash = (Crash(nth(names, "client"), "after"),)
    _, found = attempt("Poisson cohorts", tmp_path / "run", crash)
    assert "ledger.jsonl counts 0 rounds of 1 that left" in found


FAULTS = {
    "a model that was not paid": ("7.1 model\n", ["ledger.jsonl counts 3 rounds of 4 that left"]),
    "a client that was not asked": (
        "1.1 0\n" * PAID, ["ledger.jsonl.declared counts clients [0] less", "ledger.jsonl counts"],
    ),
    "another run's rounds": ("".join(f"8.{i} model\n" for i in range(9)), ["12 rounds left"]),
}  # fmt: skip


@pytest.mark.parametrize(("witness", "said"), FAULTS.values(), ids=FAULTS)
def test_the_judge_sees_what_a_ledger_does_not_tell(witness, said, tmp_path):
    assert attempt(DECLARED, tmp_path, ()) == ([], [])
    with (tmp_path / "witness").open("a") as file:
        file.write(witness)
    found = judge(tmp_path, 0, is_over=True)
    assert all(any(one.startswith(begin) for one in found) for begin in said), found
    (tmp_path / "ledger.jsonl").unlink()
    assert "no ledger, and something left" in judge(tmp_path, 0, is_over=True)


def test_the_table_was_made_of_all_points_and_shows_no_anomaly():
    page = (ROOT / "tests" / "robustness" / "results" / "guard_kills.md").read_text()
    runs, points_of_all = map(int, re.search(r"(\d+) runs at (\d+) points", page).groups())
    assert runs > points_of_all > 150
    assert "**0 anomalies**" in page
    said = (ROOT / "docs" / "guard.md").read_text()
    assert f"killed at each of {points_of_all} points" in said

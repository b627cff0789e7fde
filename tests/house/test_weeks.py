"""Cases that a part of the weeks runs: each is run within as many weeks as its mark says."""

import datetime
from collections import Counter
from types import SimpleNamespace

import pytest

from tests import conftest


class Case(SimpleNamespace):
    nodeid = "tests/a.py::test_a"

    def get_closest_marker(self, _):
        return None if self.n == 1 else SimpleNamespace(args=(self.n,))


def of_week(week, monkeypatch):
    """Names of the cases that are kept, of one without a mark and 13 with each of two marks."""
    items = [Case(n=n, name=(n, i)) for i in range(13) for n in (2, 3)] + [Case(n=1, name="plain")]
    left = []

    def deselected(items):
        left.extend(items)

    hook = SimpleNamespace(pytest_deselected=deselected)
    day = datetime.datetime.fromisocalendar(2026, week, 1)
    monkeypatch.setattr(conftest, "datetime", SimpleNamespace(now=lambda _: day))
    conftest.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)
    assert len(items) + len(left) == 27
    return [item.name for item in items]


@pytest.mark.parametrize("week", [1, 30, 48])
def test_six_weeks_run_each_case_as_often_as_its_mark_says(week, monkeypatch):
    monkeypatch.delenv("EVERY_WEEK", raising=False)
    seen = Counter(name for more in range(6) for name in of_week(week + more, monkeypatch))
    assert {(name[0], times) for name, times in seen.items() if name != "plain"} == {(2, 3), (3, 2)}
    assert (len(seen), seen["plain"]) == (27, 6)


def test_every_week_at_once_runs_all(monkeypatch):
    monkeypatch.setenv("EVERY_WEEK", "1")
    items = [Case(n=2), Case(n=2)]
    conftest.pytest_collection_modifyitems(None, items)
    assert len(items) == 2

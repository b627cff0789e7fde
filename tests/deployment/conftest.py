"""The app of a few lines that the engines are tested with, and a look at what a run leaves."""

from pathlib import Path

import pytest

from app import process_tree, processes

TINY_PROJECT = Path(__file__).parent / "tiny_project"
LONGEST = "test_everything_that_goes_wrong_goes_as_documented"


def pytest_collection_modifyitems(items):
    """The longest test starts first: nobody waits for it alone at the end."""
    items.sort(key=lambda item: item.name != LONGEST)


@pytest.fixture(scope="session")
def tiny_project():
    return TINY_PROJECT


@pytest.fixture
def leaves_nothing(monkeypatch):
    """No process with the mark of a run of this test, and no temporary home of it, at the end."""
    marks = []
    homes = []
    original = processes.environment

    def noting(home, mark, inherited):
        marks.append(f"{processes.MARK}={mark}")
        homes.append(home)
        return original(home, mark, inherited)

    monkeypatch.setattr(processes, "environment", noting)
    yield
    assert marks, "no private Flower was started"
    assert [process_tree.family(mark, ()) for mark in marks] == [set()] * len(marks)
    assert [home for home in homes if home.exists()] == []

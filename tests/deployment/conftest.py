"""The app of a few lines that the engines are tested with, and a look at what a run leaves."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.engines import process_tree, processes

TINY_PROJECT = Path(__file__).parent / "tiny_project"


@pytest.fixture(scope="session")
def tiny_project() -> Path:
    return TINY_PROJECT


def _homes() -> set[Path]:
    folders = {Path(tempfile.gettempdir()), Path("/tmp")}
    return {home for folder in folders for home in folder.glob("mf-*")}


@pytest.fixture
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process with the mark of a run of this test, and no new temporary home, at the end."""
    marks: list[str] = []
    original: Callable[..., dict[str, str]] = processes.environment

    def noting(home: Path, mark: str, inherited: dict[str, str]) -> dict[str, str]:
        marks.append(f"{processes.MARK}={mark}")
        return original(home, mark, inherited)

    monkeypatch.setattr(processes, "environment", noting)
    before = _homes()
    yield
    assert marks, "no private Flower was started"
    assert [process_tree.family(mark, ()) for mark in marks] == [set()] * len(marks)
    left = {home for home in _homes() - before if home.stat().st_uid == os.getuid()}
    assert left == set()

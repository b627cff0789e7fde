"""The scripts of examples/, with tiny settings: each writes its numbers and its picture."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from examples.common import PICTURES

ROOT = Path(__file__).parents[2]
NAMES = sorted(p.stem for p in (ROOT / "examples").glob("*.py") if p.stem != "common")
PAGE = (ROOT / "docs" / "examples.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_and_writes_what_its_page_shows(name, tmp_path, monkeypatch, capsys):
    module = import_module(f"examples.{name}")
    few = (4.0, None)
    whole = module.scores
    monkeypatch.setattr(module, "scores", lambda seeds, rounds: whole(seeds, rounds, few))
    assert module.main(["--seeds", "1", "--rounds", "2", "--out", str(tmp_path)]) == 0
    stem = name.replace("_", "-")
    found = json.loads((tmp_path / f"{stem}.json").read_text())
    for scores in found.values():
        assert list(scores) == ["4", "none"]
        assert all(0 < value <= 1 for values in scores.values() for value in values)
    assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith("| epsilon | ")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_table_and_the_picture_of_every_example(name):
    stem = name.replace("_", "-")
    from examples.common import table

    scores = json.loads((PICTURES / f"{stem}.json").read_text())
    assert table(scores) in PAGE
    assert f"(pictures/{stem}.png)" in PAGE
    assert f"python -m examples.{name}" in PAGE
    assert (PICTURES / f"{stem}.png").is_file()

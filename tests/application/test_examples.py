"""The scripts of examples/, with tiny settings: each writes its numbers and its picture."""

import json
from importlib import import_module

import pytest
import torch

from examples.common import PICTURES
from tests.fresh import ROOT

NAMES = sorted(p.stem for p in (ROOT / "examples").glob("*.py") if p.stem != "common")
PAGE = (ROOT / "docs" / "examples.md").read_text()


def recordings(data):
    """Covariances of two sites, of two signs that differ by their sizes."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for site in range(2):
        label = torch.arange(120) % 2
        a = torch.randn(120, 20, 8, generator=generator, dtype=torch.float64)
        made.append(((1 + site + label).reshape(-1, 1, 1) * a.mT @ a / 20, label))
    return made


def edges(data):
    """A binary tree of 255 words."""
    pairs = []
    for word in range(2, 256):
        above = word // 2
        while above:
            pairs.append([word - 1, above - 1])
            above //= 2
    return torch.tensor(pairs), 255


STAND_INS = {"emg_signs": ("recordings", recordings), "mammal_tree": ("edges", edges)}
"""For data that are in no package which the tests depend on."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_and_writes_what_its_page_shows(name, tmp_path, monkeypatch, capsys):
    module = import_module(f"examples.{name}")
    few = (4.0, None)
    whole = module.scores
    monkeypatch.setattr(
        module, "scores", lambda seeds, rounds, **more: whole(seeds, rounds, few, **more)
    )
    if name in STAND_INS:
        monkeypatch.setattr(module, *STAND_INS[name])
    assert module.main(["--seeds", "1", "--rounds", "2", "--out", str(tmp_path)]) == 0
    stem = name.replace("_", "-")
    for scores in json.loads((tmp_path / f"{stem}.json").read_text()).values():
        assert list(scores) == ["4", "none"]
        assert all(0 < value <= 1 for values in scores.values() for value in values)
    assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith("| epsilon | ")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_table_and_the_picture_of_every_example(name):
    stem = name.replace("_", "-")
    from examples.common import table

    assert table(json.loads((PICTURES / f"{stem}.json").read_text())) in PAGE
    assert f"(pictures/{stem}.png)" in PAGE
    assert f"python -m examples.{name}" in PAGE
    assert (PICTURES / f"{stem}.png").is_file()

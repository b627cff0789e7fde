"""What the plug-ins did before they left the library, they still do: models, prices, refusals."""

from pathlib import Path

import pytest

from tests.golden.house import record

HERE = Path(__file__).parent / "house"
CONFIGS = {path.stem: path for path in sorted((HERE / "configs").glob("*.toml"))}


@pytest.fixture(autouse=True)
def _of_the_plugins(monkeypatch):
    monkeypatch.setattr(record, "HERE", HERE)
    monkeypatch.setattr(record, "CONFIGS", CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_models_are_what_they_were(name):
    assert record.differing_models(record.models(["messages", "cohort"], [name])) == []


@pytest.mark.parametrize("name", CONFIGS)
def test_refusals_and_prices_are_what_they_were(name):
    assert record.differing_words([name], "all") == []

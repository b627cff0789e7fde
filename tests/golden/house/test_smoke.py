"""What the product did before its house was halved, it still does: a few configs, in one process.

All of them: `python tests/golden/house/record.py all`, and `make slow`.
"""

import pytest

from manifed.oracles import fused
from tests.golden.house import record

FEW = ("quickstart", "rsvrg-poisson", "decor-ring", "sampled-cohort", "spd-frechet")


@pytest.fixture
def without_kernel(monkeypatch):
    """As it was recorded; tests/oracles/test_fused.py compares the kernel with torch."""
    monkeypatch.setenv(fused.VARIABLE, "torch")
    fused.kernel.cache_clear()
    yield
    fused.kernel.cache_clear()


@pytest.mark.usefixtures("without_kernel")
def test_models_of_a_few_configs_are_what_they_were():
    assert record.differing_models(record.models(["messages"], list(FEW))) == []


@pytest.mark.slow
@pytest.mark.usefixtures("without_kernel")
def test_models_of_all_configs_are_what_they_were():
    assert record.differing_models(record.models(["messages", "cohort"], [])) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(record.CONFIGS))
def test_refusals_and_prices_of_a_config_are_what_they_were(name):
    assert record.differing_words([name], "all") == []


def test_a_plan_of_each_config_costs_what_it_did():
    """A change of plans shows here, before the slow test of all of them."""
    recorded = {p: s for p, s in record.read("prices").items() if p.endswith("{kind='auto'}")}
    assert len(recorded) >= 5
    assert record.differing(recorded) == []

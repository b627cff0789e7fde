"""What a round of the cohort engine holds stays under the budget of the config."""

import sys

import pytest

from benchmarks.common.cases import CASES
from benchmarks.engines import memory_of_a_round
from manifed.experiment.load import parse, save
from tests.command import invoke

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status"),
]


@pytest.mark.parametrize(
    ("case", "clients", "budget"),
    [("lorentz_d10", 10_000, 64), ("spd_10", 2000, 96), ("kpca_100x5", 1000, 128)],
)
def test_shards_and_a_round_stay_under_the_budget(case, clients, budget):
    found = memory_of_a_round(case, clients, budget)
    assert 1 < found["clients_at_a_time"] < clients
    assert found["shards_mb"] + found["growth_mb"] <= budget


def test_a_budget_that_cannot_hold_the_data_is_refused_in_one_line(tmp_path):
    engine = {"execution": "cohort", "memory_budget_mb": 16}
    save(parse(CASES["kpca_784x5"](100, 1) | {"engine": engine}), tmp_path / "x.toml")
    assert invoke("run", tmp_path / "x.toml", "--out", tmp_path / "run").exit_code == 2

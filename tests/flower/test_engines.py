"""One seed, three engines, one trajectory."""

from pathlib import Path

import pytest

from app.engines.comparison import compare_engines

QUICKSTART = str(Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml")
SETS = (
    "federation.num_clients=3",
    "federation.num_rounds=10",
    "federation.cohort={kind='fixed-size',cohort_size=2}",
    "training.minibatch={kind='poisson',batch_size=100}",
)


@pytest.mark.ray
def test_ray_runs_the_inline_trajectory():
    result = compare_engines(QUICKSTART, SETS, ["inline", "ray"])
    assert result["max_difference"] <= 1e-10


@pytest.mark.deployment
def test_a_deployment_runs_the_inline_trajectory():
    result = compare_engines(QUICKSTART, SETS, ["inline", "deployment"])
    assert result["max_difference"] <= 1e-10

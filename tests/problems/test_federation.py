"""From configuration to shards: parsing, checks, cache, and pairs that are meant to work."""

import os
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from pydantic import TypeAdapter

from manifed.experiment.schema import DATA, PROBLEMS
from manifed.problems import shards as sharding
from manifed.setting import PARTITIONS
from tests.conformance.manifold_cases import generator

KINDS = [TypeAdapter(Annotated[Any, kinds]) for kinds in (PROBLEMS, DATA, PARTITIONS)]
ROOM = "reproduction.recipes:"
PAIRS = [
    ({"kind": "kpca", "on": "grassmann"}, {"kind": "digits", "num_examples": 300}, "dirichlet"),
    ({"kind": "frechet-mean", "manifold": "sphere"}, {"kind": f"{ROOM}SphereCloud"}, "equal"),
    ({"kind": "frechet-mean", "manifold": "lorentz"}, {"kind": f"{ROOM}HyperbolicCloud"}, "equal"),
    ({"kind": "nearest-mean", "num_classes": 2},
     {"kind": f"{ROOM}SPDClasses", "num_examples": 64}, "equal"),
    ({"kind": "logistic"}, {"kind": f"{ROOM}OneHotLogistic", "num_examples": 500}, "dirichlet"),
    ({"kind": "reproduction.mlp:MLP", "num_classes": 10, "hidden": 8, "activation": "tanh"},
     {"kind": f"{ROOM}ClassMixture", "num_examples": 300, "dimension": 6}, "equal"),
]  # fmt: skip
"""Those of which tests/golden/house has no config."""


def parse(problem, data, partition="equal"):
    tables = (problem, data, {"kind": partition})
    return [kinds.validate_python(table) for kinds, table in zip(KINDS, tables, strict=True)]


@pytest.mark.parametrize(("problem", "data", "partition"), PAIRS)
def test_every_pair_gives_shards_that_its_problem_can_read(problem, data, partition):
    specs = parse(problem, data, partition)
    shards = sharding.shards(*specs, 16, 0)
    built = specs[0].build()
    assert len(shards) == 16
    shape = built.point_shape(shards[0])
    x = specs[0].first_point(built, shape, generator(0))
    assert tuple(x.shape) == shape
    for shard in shards:
        norms = built.gradients(x, shard).norms
        assert norms.shape == (len(shard),)
        assert torch.isfinite(norms).all()


@pytest.mark.data
@pytest.mark.parametrize(
    ("problem", "data", "value"),
    [
        ({"kind": "logistic"}, {"kind": "a9a"}, 0.32262),
        ({"kind": "principal-eigenvector"}, {"kind": "mnist"}, None),
    ],
)
def test_real_data_reach_a_stationary_optimum(problem, data, value):
    specs = parse(problem, data)
    folder = Path(os.environ["MANIFED_DATA"])
    found = specs[0].build().optimum(sharding.shards(*specs, 9, 0, folder))
    assert found.gradient_norm <= 1e-8
    if value is not None:
        assert found.value == pytest.approx(value, abs=1e-5)

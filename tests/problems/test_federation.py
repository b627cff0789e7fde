"""From configuration to shards: parsing, checks, cache, and every pair that is meant to work."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from manifed.problems import federation
from manifed.problems.readers import DataMissing
from manifed.problems.spec import DataSpec, PartitionSpec, ProblemSpec

PROBLEM, DATA = TypeAdapter(ProblemSpec), TypeAdapter(DataSpec)
PARTITION = TypeAdapter(PartitionSpec)

PAIRS = [
    ({"kind": "principal-eigenvector"}, {"kind": "digits", "num_examples": 300}, "equal"),
    ({"kind": "principal-eigenvector"}, {"kind": "synthetic-eigengap"}, "natural"),
    ({"kind": "kpca"}, {"kind": "digits", "num_examples": 300, "is_unit_norm": False}, "sorted"),
    ({"kind": "kpca", "on": "grassmann"}, {"kind": "digits", "num_examples": 300}, "dirichlet"),
    ({"kind": "kpca"}, {"kind": "synthetic-pca", "num_clients": 16}, "natural"),
    ({"kind": "frechet-mean"}, {"kind": "wishart", "num_examples": 200}, "equal"),
    ({"kind": "frechet-mean"}, {"kind": "spd-lognormal", "num_examples": 64}, "equal"),
    ({"kind": "frechet-mean", "manifold": "sphere"}, {"kind": "sphere-cloud"}, "equal"),
    ({"kind": "frechet-mean", "manifold": "lorentz"}, {"kind": "hyperbolic-tree", "num_nodes": 90},
     "sorted"),
    ({"kind": "hyperbolic-prediction"}, {"kind": "hyperbolic-tree", "num_nodes": 90}, "equal"),
    ({"kind": "least-squares"}, {"kind": "synthetic-least-squares", "num_clients": 16}, "natural"),
    ({"kind": "least-squares", "scaling": "sum"}, {"kind": "scaled-identities"}, "natural"),
    ({"kind": "logistic"}, {"kind": "synthetic-logistic", "num_examples": 500}, "dirichlet"),
    ({"kind": "logistic"}, {"kind": "breast-cancer"}, "dirichlet"),
    ({"kind": "mlp", "num_classes": 10}, {"kind": "digits", "has_labels": True}, "dirichlet"),
    ({"kind": "mlp", "num_classes": 10, "hidden": 8, "activation": "tanh"},
     {"kind": "class-mixture", "num_examples": 300, "dimension": 6}, "equal"),
    ({"kind": "matrix-completion"}, {"kind": "synthetic-low-rank", "num_clients": 16, "columns": 20,
                                     "dimension": 40}, "natural"),
]  # fmt: skip


def parse(problem, data, partition="equal"):
    part = {"kind": partition} if isinstance(partition, str) else partition
    return (
        PROBLEM.validate_python(problem),
        DATA.validate_python(data),
        PARTITION.validate_python(part),
    )


@pytest.mark.parametrize(("problem", "data", "partition"), PAIRS)
def test_every_pair_gives_shards_that_its_problem_can_read(problem, data, partition):
    specs = parse(problem, data, partition)
    shards = federation.shards(*specs, 16, 0)
    built = specs[0].build()
    assert len(shards) == 16
    shape = built.point_shape(shards[0])
    x = specs[0].start.point(built.manifold, shape, torch.Generator().manual_seed(0))
    assert tuple(x.shape) == shape
    for shard in shards:
        norms = built.rgrad_norms(x, shard)
        assert norms.shape == (len(shard),)
        assert bool(torch.isfinite(norms).all())
    found = built.optimum(shards)
    assert found.gradient_norm <= 1e-8 * (1 + abs(found.value))
    metrics = built.metrics(x, found, federation.dataset(specs[1], 0).meta)
    assert all(np.isfinite(value) for value in metrics.values())


def test_the_same_arguments_give_the_same_objects_and_another_seed_another_split():
    specs = parse({"kind": "principal-eigenvector"}, {"kind": "digits"})
    first = federation.shards(*specs, 10, 0)
    assert federation.shards(*specs, 10, 0) is first
    other = federation.shards(*specs, 10, 1)
    assert not torch.equal(first[0]["z"], other[0]["z"])
    whole = federation.dataset(specs[1], 0).checksum
    assert whole == federation.dataset(specs[1], 1).checksum


def test_pooled_examples_carry_one_over_n_each():
    specs = parse({"kind": "principal-eigenvector"}, {"kind": "digits"})
    examples, weights = federation.pooled(*specs, 10, 0)
    assert len(examples) == 1797
    assert torch.allclose(weights, torch.full((1797,), 1 / 1797, dtype=torch.float64), rtol=1e-12)


def test_a_problem_refuses_data_of_another_kind():
    specs = parse({"kind": "frechet-mean"}, {"kind": "digits"})
    with pytest.raises(
        ValueError, match=r"'frechet-mean' needs spd-matrices.*'digits' provides rows"
    ):
        federation.shards(*specs, 10, 0)


def test_a_label_partition_refuses_data_without_labels():
    specs = parse({"kind": "frechet-mean"}, {"kind": "wishart", "num_examples": 50}, "sorted")
    with pytest.raises(ValueError, match="'sorted' needs labels"):
        federation.shards(*specs, 5, 0)


def test_missing_data_is_reported_before_anything_else(tmp_path):
    specs = parse({"kind": "principal-eigenvector"}, {"kind": "mnist"})
    with pytest.raises(DataMissing, match=r"mnist.*MANIFED_DATA"):
        federation.shards(*specs, 10, 0, tmp_path)


@pytest.mark.parametrize(
    ("adapter", "value"),
    [
        (PROBLEM, {"kind": "kpca", "num_components": 0}),
        (PROBLEM, {"kind": "kpca", "components": 2}),
        (PROBLEM, {"kind": "unknown"}),
        (DATA, {"kind": "wishart", "radius": -1.0}),
        (DATA, {"kind": "synthetic-eigengap", "gap": float("nan")}),
        (PARTITION, {"kind": "dirichlet", "alpha": 0.0}),
    ],
)
def test_bad_configuration_is_refused(adapter, value):
    with pytest.raises(ValidationError):
        adapter.validate_python(value)


def test_specs_are_frozen_and_hashable():
    spec = PROBLEM.validate_python({"kind": "kpca"})
    with pytest.raises(ValidationError):
        spec.on = "grassmann"
    assert hash(spec) == hash(PROBLEM.validate_python({"kind": "kpca", "on": "stiefel"}))


def test_the_split_does_not_depend_on_the_problem():
    data, partition = {"kind": "digits", "num_examples": 200}, "dirichlet"
    one = federation.shards(*parse({"kind": "principal-eigenvector"}, data, partition), 5, 3)
    two = federation.shards(*parse({"kind": "kpca", "scaling": "mean"}, data, partition), 5, 3)
    assert all(torch.equal(a["z"], b["z"]) for a, b in zip(one, two, strict=True))


def test_the_largest_subtree_is_held_out_unless_another_node_is_named():
    spec = {"kind": "hyperbolic-tree", "num_nodes": 90}
    data = federation.dataset(DATA.validate_python(spec), 0)
    assert len(data.examples) == 89
    assert data.meta["query"] != 0
    assert data.meta["query_target"].shape == (3,)
    named = federation.dataset(DATA.validate_python({**spec, "held_out": 7}), 0)
    assert named.meta["query"] == 7
    with pytest.raises(ValueError, match="held_out < num_nodes = 90, got 90"):
        federation.dataset(DATA.validate_python({**spec, "held_out": 90}), 0)


@pytest.mark.data
@pytest.mark.parametrize(
    ("problem", "data", "value"),
    [
        ({"kind": "logistic"}, {"kind": "a9a"}, 0.32262),
        ({"kind": "principal-eigenvector"}, {"kind": "mnist"}, None),
        ({"kind": "hyperbolic-prediction"}, {"kind": "wordnet-mammals"}, None),
    ],
)
def test_real_data_reach_a_stationary_optimum(problem, data, value):
    specs = parse(problem, data)
    folder = Path(os.environ["MANIFED_DATA"])
    found = specs[0].build().optimum(federation.shards(*specs, 9, 0, folder))
    assert found.gradient_norm <= 1e-8
    if value is not None:
        assert found.value == pytest.approx(value, abs=1e-5)


@pytest.mark.data
def test_the_query_must_name_one_mammal():
    data = DATA.validate_python({"kind": "wordnet-mammals", "query": "no-such-animal"})
    with pytest.raises(ValueError, match="'no-such-animal' for 0"):
        data.load(Path(os.environ["MANIFED_DATA"]), 0)


def test_data_with_a_nan_are_refused():
    from manifed.problems.dataset import build

    with pytest.raises(ValueError, match="finite numbers in 'z'"):
        build({"z": np.array([[1.0, np.nan]])})

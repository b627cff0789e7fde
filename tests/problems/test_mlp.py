"""The network with one hidden layer, its labelled data and its start."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from manifed.problems.examples import Examples
from manifed.problems.own_files import FileData
from manifed.problems.real import BreastCancer, _breast_cancer_ranges
from reproduction.mlp import MLP
from tests.conformance.manifold_cases import generator, normals


def examples(count, p, k):
    label = (torch.arange(count) % k).double()
    return Examples({"z": normals(1, count, p), "label": label})


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_losses_are_those_of_the_same_network_of_torch_functions(activation):
    problem = MLP(5, 4, activation)
    shard = examples(9, 7, 4)
    x = 0.7 * normals(0, *problem.point_shape(shard))
    w1, b1, w2, b2 = x.split([35, 5, 20, 4])
    hidden = getattr(torch, activation)(linear(shard["z"], w1.reshape(5, 7), b1))
    scores = linear(hidden, w2.reshape(4, 5), b2)
    expected = cross_entropy(scores, shard["label"].long(), reduction="none")
    assert torch.allclose(problem.losses(x, shard), expected, rtol=1e-12)


def test_a_record_of_no_class_counts_for_nothing():
    problem = MLP(3, 2)
    shard = examples(4, 2, 2)
    shard.tensors["label"][1] = 0.5
    norms = problem.gradients(normals(0, *problem.point_shape(shard)), shard).norms
    assert torch.isnan(norms[1])
    assert torch.isfinite(norms[[0, 2, 3]]).all()
    with pytest.raises(ValueError, match="record 1: expected a class number from 0 to 1"):
        problem.check_records(shard)


def first(problem, shard):
    shape = problem.point_shape(shard)
    return problem.first_point(problem, shape, generator(0))


def test_a_network_starts_as_torch_layers_do():
    problem = MLP(hidden=8, num_classes=3)
    parts = problem.layers(first(problem, examples(3, 25, 3)))
    assert 0.9 / 5 < float(parts.w1.abs().max()) <= 1 / 5
    assert parts.w2.abs().max() <= 1 / 8**0.5
    assert MLP.model_validate(problem.model_dump()) == problem


def test_the_cancer_data_lie_in_their_public_ranges():
    found = BreastCancer().load(None, 0)
    features = found.examples["feature"]
    assert features.shape == (569, 31)
    assert features.abs().max() == 1.0
    assert _breast_cancer_ranges().sum(0).tolist() == pytest.approx([468.122, 7925.565])
    assert sorted(set(found.examples["label"].tolist())) == [-1.0, 1.0]
    assert (found.examples["label"] == 1).sum() == 357


def test_own_rows_with_classes_train_a_network(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("a,b,kind\n0.5,1,cat\n0.1,0,dog\n0.2,0.3,cat\n")
    data = FileData(
        examples="rows", columns=("a", "b"), label="kind", classes=("cat", "dog", "emu")
    )
    assert data.provides == "labelled-rows"
    assert data.read(path)["label"].tolist() == [0.0, 1.0, 0.0]
    assert set(data.blank().tensors) == {"z", "label"}

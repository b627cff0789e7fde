"""Records are judged at loading: one line for their owner, an absent node for the server."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from manifed.cli.launch import check_parts
from manifed.errors import ConfigError
from manifed.experiment.assembly import load_shards, own_examples, own_node
from manifed.experiment.schema import sha256
from manifed.flower.client import inline_grid
from manifed.flower.clients import local_training as node
from manifed.flower.handshake import HandshakeFailed, meet
from manifed.problems.examples import Examples
from tests.problems.test_starts import CLIENTS, experiment, forget, problems

BAD = 17.390625
ABSENT = "this node is absent; its own log says why"
"""All that the server reads, whatever the record: no number, no index, no reason."""


def spd(*values):
    turn = torch.linalg.qr(torch.tensor([[1.0, 2.0], [3.0, -BAD]], dtype=torch.float64)).Q
    z = (turn * torch.tensor(values, dtype=torch.float64)) @ turn.T
    return (z + z.T) / 2


def spread(*values):
    def make(record):
        found = torch.zeros_like(record)
        found[: len(values)] = torch.tensor(values, dtype=record.dtype)
        return found

    return make


def mean_on(manifold):
    return {"kind": "frechet-mean", "manifold": manifold}


FAULTS = {
    "rank-deficient, log-Cholesky": (
        mean_on("spd-log-euclidean"),
        "z",
        lambda _: spd(BAD, 0.0),
        "lambda_min/lambda_max",
    ),
    "1e308 I, affine-invariant": (
        mean_on("spd"),
        "z",
        lambda z: 1e308 * torch.eye(2).to(z),
        "<= 1e+60",
    ),
    "1e200, Frechet mean": (
        mean_on("spd-log-euclidean"),
        "z",
        lambda _: spd(1e200 * BAD, 1e200),
        "<= 1e+60",
    ),
    "negative definite": (mean_on("spd"), "z", lambda _: spd(-BAD, -1.0), "positive definite"),
    "indefinite": (mean_on("spd"), "z", lambda _: spd(BAD, -1.0), "positive definite"),
    "asymmetric": (
        mean_on("spd"),
        "z",
        lambda z: z + torch.tensor([[0, BAD], [0, 0]]).to(z),
        "a point of SPD",
    ),
    "vanishing": (mean_on("spd"), "z", lambda _: 1e-90 * spd(BAD, 1.0), ">= 1e-60"),
    "sphere x 2": (mean_on("sphere"), "z", lambda z: 2 * z, "a point of Sphere"),
    "off the hyperboloid": (mean_on("lorentz"), "target", spread(1.1, BAD), "a point of Lorentz"),
    "lower sheet": (mean_on("lorentz"), "target", lambda z: -z, "a point of Lorentz"),
    "outside the ball": (
        mean_on("poincare"),
        "target",
        spread(1.0, BAD),
        "a point of PoincareBall",
    ),
    "target off the hyperboloid": (
        {"kind": "hyperbolic-prediction"},
        "target",
        spread(1.1, BAD),
        "a point of Lorentz",
    ),
    "1e200, rows": ({"kind": "kpca"}, "z", spread(1e200 * BAD), "|z| <= 1e+60"),
    "over the declared bound": (
        {"kind": "principal-eigenvector", "largest_entry": 17.0},
        "z",
        spread(BAD),
        "|z| <= 17",
    ),
    "label": ({"kind": "logistic"}, "label", lambda _: torch.tensor(BAD), "label -1 or 1"),
    "mask": (
        {"kind": "reproduction.matrix_completion:MatrixCompletion"},
        "mask",
        spread(BAD),
        "mask",
    ),
    "unseen entries": (
        {"kind": "reproduction.matrix_completion:MatrixCompletion"},
        "mask",
        lambda m: 0 * m,
        "0 entries where the mask is 0",
    ),
}
"""A problem, a tensor of its records, how one is spoiled, and what its owner reads."""


def plant(
    key,
    spoil,
    config,
    patch,
):
    """Replace one record of the data; the client and the record that now hold it."""
    load = type(config.data).load

    def planted(me, folder, seed):
        found = load(me, folder, seed)
        tensors = {key: tensor.clone() for key, tensor in found.examples.tensors.items()}
        tensors[key][5] = spoil(tensors[key][5])
        return replace(found, examples=Examples(tensors, found.examples.feature_ndim))

    forget()
    before = load_shards(config).examples
    patch.setattr(type(config.data), "load", planted)
    forget()
    after = load_shards(config).examples
    for client, (one, two) in enumerate(zip(before, after, strict=True)):
        for name in ["target"] if "target" in one.tensors else list(one.tensors):
            where = (one[name] != two[name]).reshape(len(one), -1).any(-1).nonzero()
            if len(where):
                return client, int(where[0])
    raise AssertionError("nothing was planted")


@pytest.fixture(autouse=True)
def fresh():
    own_node.cache_clear()
    yield
    forget()


@pytest.mark.parametrize(("problem", "key", "spoil", "words"), FAULTS.values(), ids=FAULTS)
def test_an_invalid_record_is_one_line_for_its_owner_and_an_absent_node_for_the_server(
    problem, key, spoil, words, monkeypatch, caplog
):
    config = experiment(problem)
    check_parts(config)
    client, record = plant(key, spoil, config, monkeypatch)
    with pytest.raises(ConfigError) as caught:
        check_parts(config)
    text = str(caught.value)
    assert "\n" not in text
    assert f"data.kind: {config.data.kind!r}: client {client}, record {record}: " in text
    assert words in text
    for other in set(range(CLIENTS)) - {client}:
        own_examples(config, other)

    grid = inline_grid(config)
    sizes = tuple(len(shard) for shard in load_shards(config).examples)
    plan = SimpleNamespace(config_sha256=sha256(config), num_examples=sizes)
    with caplog.at_level("ERROR"), pytest.raises(HandshakeFailed, match=re.escape(ABSENT)):
        meet(grid, plan, 0.2)


def test_a_turn_that_fails_tells_the_server_nothing_of_its_data(monkeypatch):
    def fails(*_):
        raise ValueError(f"the leading minor of order {BAD} is not positive")

    with pytest.raises(node.Absent) as caught:
        node.absent_if_it_fails(fails)(None, None)
    assert str(caught.value) == ABSENT


def test_valid_records_of_every_problem_pass():
    for problem in problems():
        check_parts(experiment(problem))


def test_far_points_of_hyperbolic_space_pass():
    for manifold in ("lorentz", "poincare"):
        config = experiment(mean_on(manifold))
        check_parts(
            config.model_copy(update={"data": config.data.model_copy(update={"radius": 25.0})})
        )

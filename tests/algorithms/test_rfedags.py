"""RFedAGS: the stream, what it reduces to, whom the server weighs how, and what is refused."""

from itertools import product

import pytest
import torch

from manifed.algorithms.algorithm import Collected
from manifed.algorithms.payloads import Displacement
from manifed.algorithms.rfedags import RFedAGS
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.manifolds import Euclidean, Sphere
from manifed.privacy.mechanism import ClientMechanism
from manifed.problems.examples import Examples
from tests.conformance.federated_loop import Linear, federate, last
from tests.federation.steps import step
from tests.tensors import assert_near, normals

F64 = torch.float64


def linear(clients, dim=5):
    """Heterogeneous clients of a linear cost on the sphere, and a point to start from."""
    shards = [Examples({"a": a}) for a in normals(0, clients, 3, dim)]
    return Linear(Sphere()), shards, Sphere().projx(normals(1, dim))


def test_a_stream_is_the_sum_of_transported_steps():
    problem, (shard,), x = linear(1)
    ags = RFedAGS(step_size=0.3, local_steps=2)
    manifold = Sphere()
    stream = last(federate(problem, [shard], ags, ags, x, 1)).uploads.u[0]
    first = -0.3 * problem.rgrads(x, shard).mean(0)
    y = manifold.expmap(x, first)
    second = -0.3 * problem.rgrads(y, shard).mean(0)
    back = second - (x @ second) / (1 + x @ y) * (x + y)  # parallel along the great circle
    assert_near(stream, first + back, 1e-14)


def test_the_direction_is_the_mean_over_all_clients_in_expectation():
    """Over all cohorts of independent coins, by enumeration."""
    chance = (0.9, 0.5, 0.2)
    ags = RFedAGS(step_size=1.0, participation=chance)
    streams = normals(0, 3, 4)
    x = torch.zeros(4, dtype=F64)
    expected = torch.zeros(4, dtype=F64)
    for coins in product((0, 1), repeat=3):
        law = torch.tensor([p if c else 1 - p for c, p in zip(coins, chance, strict=True)]).prod()
        rows = tuple(i for i, coin in enumerate(coins) if coin)
        seen = Collected({}, Displacement(streams[list(rows)]), rows, 3, lambda: 0.5)
        expected += law * step(ags, ags.start(x), "train", seen, 1, Euclidean())["x"]
    assert_near(expected, streams.mean(0), 1e-7)


def test_an_estimate_is_the_share_of_rounds_this_one_included():
    ags = RFedAGS(step_size=1.0)
    x = torch.zeros(2, dtype=F64)
    u = torch.ones(2, 2, dtype=F64)
    state = ags.start(x)
    seen = [Collected({}, Displacement(u[: len(r)]), r, 2, lambda: 0.5) for r in ((0,), (0, 1))]
    state = step(ags, state, "train", seen[0], 1, Euclidean())
    torch.testing.assert_close(state["x"], torch.full((2,), 0.5, dtype=F64))
    state = step(ags, state, "train", seen[1], 2, Euclidean())
    torch.testing.assert_close(state["x"], torch.full((2,), 0.5 + 0.5 + 1.0, dtype=F64))
    assert state["present"].tolist() == [2.0, 1.0]


def test_at_client_level_a_stream_is_clipped_and_the_cohorts_p_divides():
    problem, shards, x = linear(3)
    ags = RFedAGS(step_size=0.4, local_steps=2)
    loose, tight = (
        ClientMechanism(l2_norm_clip=c, noise_multiplier=0.0) for c in (1e6, 0.01)
    )  # fmt: skip
    free = last(federate(problem, shards, ags, ags, x, 3))
    same = last(federate(problem, shards, ags, ags, x, 3, client_mechanism=loose))
    assert_near(free.state["x"], same.state["x"], 1e-12)
    short = last(federate(problem, shards, ags, ags, x, 1, client_mechanism=tight))
    assert 0 < Sphere().dist(x, short.state["x"]) <= 0.01 * (1 + 1e-9)


def test_chances_estimated_under_drawn_cohorts_are_refused():
    ags = "training={kind='rfedags',step_size=0.5}"
    poisson = "federation.cohort={kind='poisson',sampling_probability=0.5}"
    with pytest.raises(ConfigError, match=r"participation: required with 'poisson' .* set 0\.5"):
        load("configs/quickstart.toml", (ags, poisson))

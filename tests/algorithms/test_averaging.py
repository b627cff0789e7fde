"""Averages and momentum on the server: what they reduce to, and that a resumed run keeps them."""

import pytest
import torch

from manifed.algorithms.algorithm import Collected
from manifed.algorithms.averaging import GeodesicAverage, ProjectorAverage
from manifed.algorithms.payloads import Displacement
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError
from manifed.experiment.load import load
from manifed.manifolds import SPD, Euclidean, Grassmann, Lorentz, Sphere, Stiefel
from manifed.plan import planned_statement
from tests.federation.steps import step
from tests.runs.running import QUICKSTART, go_on, killed_in, run_in
from tests.tensors import assert_near, float64, normals

ROUNDS = 6


def along(server, manifold, x, moves, first=1, state=None):
    """The states after one round for each of the vectors, projected on the tangent space."""
    state = state or server.start(x)
    found = []
    for r, move in enumerate(moves, first):
        u = manifold.proju(state["x"], move)
        collected = Collected({"u": u}, Displacement(u[None]), (0,), 1, lambda: 0.5)
        state = step(server, state, "train", collected, r, manifold)
        found.append(state)
    return found


def test_on_flat_space_the_geodesic_average_is_the_weighted_mean():
    """By inverse variances with a noise ratio: the best weights of independent errors."""
    flat = Euclidean(1)
    moves = normals(0, ROUNDS, 4)
    for weights, expected in [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"from_round": 3}, [0, 0, 1, 1, 1, 1]),
        ({"power": 2.0, "from_round": 2}, [0, 1, 4, 9, 16, 25]),
        ({"noise_ratio": 0.5}, [4.0**n for n in range(6)]),
    ]:
        server = TangentMean(average=GeodesicAverage(**weights))
        states = along(server, flat, torch.zeros(4).double(), moves)
        iterates = torch.stack([state["x"] for state in states])
        share = float64(expected) / sum(expected)
        found = server.model(states[-1], flat)
        assert_near(found, share @ iterates, 1e-13)
        assert torch.equal(server.output(states[-1], flat), found)


@pytest.mark.parametrize(
    ("manifold", "x"),
    [
        (Sphere(), Sphere().origin(5)),
        (Stiefel(), Stiefel().origin(5, 2)),
        (Lorentz(), Lorentz().origin(4)),
        (SPD(), SPD().origin(3, 3)),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_the_streaming_average_is_the_recursion_of_its_paper(manifold, x):
    x = x.double()
    server = TangentMean(average=GeodesicAverage(from_round=2))
    moves = 0.2 * normals(1, ROUNDS, *x.shape)
    if x.dim() == 2 and manifold.name.startswith("SPD"):
        moves = (moves + moves.mT) / 2
    states = along(server, manifold, x, moves)
    expected = states[1]["x"]
    for n, state in enumerate(states[2:], 2):
        expected = manifold.expmap(expected, manifold.logmap(expected, state["x"]) / n)
    assert_near(server.model(states[-1], manifold), expected, 1e-12)
    assert float(manifold.membership_defect(server.model(states[-1], manifold))) < 1e-12
    assert torch.equal(server.model(states[0], manifold), states[0]["x"])


@pytest.mark.parametrize("manifold", [Sphere(), Grassmann(), Stiefel()], ids=lambda m: m.name)
def test_the_projector_average_is_the_eigenspace_of_the_mean_projector(manifold):
    shape = (6,) if manifold.ndim == 1 else (6, 2)
    x = manifold.projx(normals(2, *shape))
    server = TangentMean(average=ProjectorAverage(from_round=3, power=1.0))
    states = along(server, manifold, x, 0.3 * normals(3, ROUNDS, *shape))
    assert torch.equal(server.model(states[1], manifold), states[1]["x"])
    frames = [state["x"].reshape(6, -1) for state in states[2:]]
    mean = sum(w * f @ f.mT for w, f in zip((1, 2, 3, 4), frames, strict=True)) / 10
    top = torch.linalg.eigh(mean)[1][:, -frames[0].shape[1] :]
    found = server.model(states[-1], manifold).reshape(6, -1)
    assert_near(found @ found.mT, top @ top.mT, 1e-12)
    overlap = found.mT @ frames[-1]
    assert_near(overlap, overlap.mT, 1e-12)  # the nearest frame
    assert float(torch.linalg.eigvalsh(overlap)[0]) > 0


def test_on_flat_space_momentum_is_the_heavy_ball():
    flat = Euclidean(1)
    moves = normals(8, ROUNDS, 4)
    states = along(TangentMean(momentum=0.7), flat, torch.zeros(4).double(), moves)
    x = m = torch.zeros(4).double()
    for u in moves:
        m = u + 0.7 * m
        x = x + m
    assert_near(states[-1]["x"], x, 1e-13)


def test_momentum_is_carried_to_the_new_point():
    sphere = Sphere()
    moves = 0.2 * normals(9, 2, 5)
    x = sphere.projx(normals(10, 5))
    one, two = along(TangentMean(momentum=0.9), sphere, x, moves)
    assert float(sphere.tangency_defect(one["x"], one["momentum"])) < 1e-12
    u = sphere.proju(one["x"], moves[1])
    carried = sphere.transp(x, one["x"], sphere.proju(x, moves[0]))
    expected = sphere.expmap(one["x"], u + 0.9 * carried)
    assert_near(two["x"], expected, 1e-14)


@pytest.mark.parametrize(
    ("sets", "match"),
    [
        ("strategy={average={kind='geodesic'},output_rule='uniform'}", "strategy.output_rule"),
        ("strategy={average={kind='geodesic',from_round=31}}", "strategy.average.from_round"),
        ("strategy={momentum=1.0}", "strategy.*momentum"),
    ],
)
def test_what_does_not_go_together_is_refused(sets, match):
    with pytest.raises(ConfigError, match=match):
        load(QUICKSTART, [sets])


SETS = (
    "federation.num_clients=3",
    "federation.num_rounds=6",
    "output.checkpoint_every=2",
    "privacy={kind='none'}",
    "training.step_size=0.1",
)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    average = "strategy={momentum=0.5,average={kind='projector',from_round=2,power=1.0}}"
    sets = (*SETS, average)
    whole = run_in(tmp_path / "whole", *sets)
    again = go_on(killed_in(4, run_in, tmp_path / "run", *sets))
    assert again.metrics()["cost"] == whole.metrics()["cost"]
    assert torch.equal(again.load_tensors("model")["x"], whole.load_tensors("model")["x"])
    sets = (*sets, "engine.execution='cohort'")
    stacked = run_in(tmp_path / "stacked", *sets)
    assert stacked.metrics()["cost"] == pytest.approx(whole.metrics()["cost"], rel=1e-9)


def test_an_average_costs_nothing_and_the_statement_says_so():
    plain, averaged = (
        planned_statement(load(QUICKSTART, sets).setting, (180,) * 10)
        for sets in ([], ["strategy={average={kind='projector'}}"])
    )
    assert plain["adversaries"] == averaged["adversaries"]
    assert plain["mechanism"] == averaged["mechanism"]
    assert "post-processing" in averaged["released"]
    assert "post-processing" not in plain["released"]

"""Gossip on manifolds: plain on R^d, the star with complete mixing, and points that agree stay."""

import pytest

from manifed.algorithms.algorithm import Collected
from manifed.algorithms.payloads import Point
from manifed.errors import ConfigError
from manifed.experiment.load import dump, parse
from manifed.graphs import Ring
from manifed.manifolds import Euclidean, Sphere, Stiefel
from manifed_extras.manifold_gossip import ManifoldGossip
from tests.algorithms.gossip_runs import WAYS, experiment, models_of, reports_of
from tests.conformance.manifold_cases import generator, normals
from tests.federation.steps import step

PLACES = {"sphere": (Sphere(), (5,)), "stiefel": (Stiefel(), (6, 2)), "flat": (Euclidean(), (4,))}
KIND = "manifed_extras.manifold_gossip:ManifoldGossip"


def on_manifold(problem, kind=KIND, **training):
    """A component analysis of six nodes, on the sphere or on Stiefel."""
    if kind == KIND:
        training = {"graph": {"kind": "ring"}, **training}
    star = {"strategy": {"kind": "tangent-mean", "weights": "uniform"}}
    strategy = star if kind == "rsgd" else {}
    return parse(
        {
            "name": "points-on-a-graph",
            "problem": {"kind": problem},
            "data": {"kind": "synthetic-pca", "num_clients": 6, "rows": 10, "dimension": 5},
            "federation": {
                "num_clients": 6,
                "num_rounds": 3,
                "partition": {"kind": "natural"},
            },
            "training": {
                "kind": kind, "step_size": 0.1, "minibatch": {"kind": "full"}, **training
            },
            "privacy": {"kind": "none"},
            **strategy,
        }
    )  # fmt: skip


def mixed(manifold, models, halves, **changes):
    """What the server makes of half steps."""
    gossip = ManifoldGossip(graph=Ring(), num_nodes=len(models), step_size=1.0, **changes)
    state = gossip.start(models[0]) | {"x": models}
    collected = Collected({}, Point(halves), tuple(range(6)), 6, lambda: 0.5)
    return step(gossip, state, "mix", collected, 1, manifold)["x"]


@pytest.mark.parametrize("consensus", ["tangent-mean", "projection"])
@pytest.mark.parametrize("place", PLACES)
def test_mixing_stays_on_the_manifold_and_agrees_in_the_end(place, consensus):
    manifold, shape = PLACES[place]
    x = manifold.random(*shape, generator=generator(5))
    coords = normals(6, 6, *manifold.coords_shape(shape))
    away = x.expand(6, *x.shape)
    models = manifold.retr(away, 0.1 * manifold.from_coords(away, coords))
    same = mixed(manifold, away, away, consensus=consensus)
    assert (same - away).abs().max() <= 1e-12
    first = float((models - models.mean(0)).norm())
    for _ in range(20):  # the ring of six takes 2/3 of a difference to the next round
        models = mixed(manifold, models, models, consensus=consensus)
    assert float(manifold.membership_defect(models).max()) <= 1e-10
    assert float((models - models.mean(0)).norm()) <= 1e-3 * first


@pytest.mark.parametrize("consensus", ["tangent-mean", "projection"])
def test_on_a_flat_space_it_is_plain_gossip(consensus):
    plain = models_of(experiment(local_steps=2))
    found = models_of(experiment(kind=KIND, consensus=consensus, local_steps=2))
    assert abs(found - plain).max() <= 1e-12


@pytest.mark.parametrize("problem", ["principal-eigenvector", "kpca"])
def test_complete_mixing_is_the_star(problem):
    maps = "retraction" if problem == "kpca" else "exact"
    star = on_manifold(problem, "rsgd", maps=maps, local_steps=2)
    expected = reports_of(star)[-1].state["x"]
    for way in WAYS:
        found = models_of(on_manifold(problem, mixing_weights="complete", maps=maps,
                                      local_steps=2), way)  # fmt: skip
        assert abs(found - expected.numpy()).max() <= 1e-9, way


def test_what_does_not_go_together_is_one_line():
    wishart = {
        "problem": {"kind": "frechet-mean"},
        "data": {"kind": "reproduction.recipes:Wishart"},
        "federation": {"num_clients": 6, "num_rounds": 1},
    }
    with pytest.raises(ConfigError, match="needs R\\^d, the sphere or Stiefel"):
        parse(dump(on_manifold("kpca")) | wishart)
    with pytest.raises(ConfigError, match="manifed_extras"):
        on_manifold("kpca", "gossip", graph={"kind": "ring"})

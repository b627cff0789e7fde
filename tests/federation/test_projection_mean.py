"""The projection of the mean: line 13, the tube, control variates, and what configs refuse."""

import pytest
import torch

from manifed.algorithms.algorithm import Collected
from manifed.algorithms.payloads import Displacement
from manifed.algorithms.projected import Projected
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.load import parse
from manifed.manifolds.stiefel import Stiefel
from tests.federation.steps import step


def collected(u, partitions, num_clients):
    return Collected({"u": u.mean(0)}, Displacement(u), partitions, num_clients, lambda: 0.5)


@pytest.mark.parametrize("radius", [None, 0.25])
def test_leaving_the_tube_is_an_error_that_says_what_to_do(radius):
    x = Stiefel().origin(4, 2)
    u = (-0.9 if radius is None else -0.2) * x.unsqueeze(0)
    server = Projected(step_size=1.0, tube_radius=radius)
    with pytest.raises(RoundFailed) as caught:
        step(server, server.start(x), "train", collected(u, (0,), 1), 7, Stiefel())
    for word in ("Round 7", "|x - P(x)| <", "training.step_size", f"{radius or 1:g}"):
        assert word in str(caught.value)
    nowhere = Projected(step_size=1.0, tube_radius=1e9)
    with pytest.raises(RoundFailed, match="nan"):
        step(nowhere, server.start(x), "train", collected(u * torch.nan, (0,), 1), 1, Stiefel())
    inside = step(server, server.start(x), "train", collected(u / 10, (0,), 1), 7, Stiefel())
    assert float((server.model(inside, Stiefel()) - x).norm()) <= 1e-14


# -- the config -------------------------------------------------------------------------------
TABLE = {
    "name": "t",
    "problem": {"kind": "kpca", "num_components": 3},
    "data": {"kind": "synthetic-pca", "num_clients": 4},
    "federation": {"num_clients": 4, "num_rounds": 2, "partition": {"kind": "natural"}},
    "training": {"kind": "projected", "step_size": 1e-3},
}
PROX = {"kind": "rfedprox", "step_size": 1.0, "penalty_weight": 1.0, "maps": "retraction"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "federation": TABLE["federation"]
                | {"cohort": {"kind": "fixed-size", "cohort_size": 2}}
            },
            "federation.cohort.kind.*'all'.*'fixed-size'.*'projected-partial'",
        ),
        (
            {"training": PROX, "strategy": {"kind": "tangent-mean", "maps": "exact"}},
            "strategy.maps.*training.maps.*'exact'",
        ),
        (
            {
                "privacy": {
                    "kind": "example-level",
                    "l2_norm_clip": 1.0,
                    "delta": 1e-5,
                    "noise": {"kind": "published", "local_epsilon": 1.0, "local_delta": 1e-5},
                }
            },
            "privacy.noise.kind.*'published'.*'projected'",
        ),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse(TABLE | changes)


def test_the_server_moves_by_the_maps_of_the_client_update():
    for maps in ("exact", "retraction"):
        assert parse(TABLE | {"training": PROX | {"maps": maps}}).server_update.maps == maps

"""The projection of the mean: line 13, the tube, control variates, and what configs refuse."""

import pytest
import torch

from manifed.algorithms.algorithm import Collected
from manifed.algorithms.payloads import Displacement
from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.load import parse
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from tests.algorithms.test_projected_partial import of_server


def collected(u, partitions, num_clients):
    return Collected({"u": u.mean(0)}, Displacement(u), partitions, num_clients, lambda: 0.5)


@pytest.mark.parametrize("radius", [None, 0.25])
def test_leaving_the_tube_is_an_error_that_says_what_to_do(radius):
    x = Stiefel().origin(4, 2)
    u = (-0.9 if radius is None else -0.2) * x.unsqueeze(0)
    server = Projected(step_size=1.0, tube_radius=radius)
    with pytest.raises(RoundFailed) as caught:
        server.step(server.start(x), "train", collected(u, (0,), 1), 7, Stiefel())
    for word in ("Round 7", "|x - P(x)| <", "training.step_size", f"{radius or 1:g}"):
        assert word in str(caught.value)
    nowhere = Projected(step_size=1.0, tube_radius=1e9)
    with pytest.raises(RoundFailed, match="nan"):
        nowhere.step(server.start(x), "train", collected(u * torch.nan, (0,), 1), 1, Stiefel())
    inside = server.step(server.start(x), "train", collected(u / 10, (0,), 1), 7, Stiefel())
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


def test_the_broadcast_is_unprojected_and_the_model_is_projected():
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    u = torch.tensor([[0.0, 0.6], [0.2, 0.0]], dtype=torch.float64)
    server = Projected(step_size=1.0, server_step_size=0.5)
    state = server.step(server.start(x), "train", collected(u, (0, 1), 2), 1, Sphere())
    expected = torch.tensor([1.05, 0.15], dtype=torch.float64)
    torch.testing.assert_close(server.down(state, "train").x, expected, rtol=0, atol=1e-14)
    model = server.model(state, Sphere())
    torch.testing.assert_close(model, expected / expected.norm(), rtol=0, atol=1e-14)
    assert torch.equal(server.base(state, Sphere()), model)


def test_the_control_variates_are_the_last_displacement_of_each_client():
    x = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    server = ProjectedPartial(step_size=1.0)
    sphere = Sphere()
    u = 0.1 * torch.eye(3, dtype=torch.float64)
    state = server.step(server.start(x), "train", collected(u[:2], (3, 1), 5), 1, sphere)
    assert state["is_known"].tolist() == [0, 1, 0, 1, 0]
    torch.testing.assert_close(state["displacements"][3], u[0])
    state = server.step(state, "train", collected(u[2:], (1,), 5), 2, sphere)
    torch.testing.assert_close(state["displacements"][1], u[2])
    torch.testing.assert_close(state["mean_displacement"], (u[0] + u[2]) / 2)
    c = of_server(state)
    assert float(c.sum(0).abs().max()) <= 1e-14
    assert not bool(c[[0, 2, 4]].any())

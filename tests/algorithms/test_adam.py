"""Adam on the tangent mean: torch's on flat space, tangent elsewhere, and free of charge."""

import pytest
import torch
from pydantic import ValidationError

import manifed
from manifed.algorithms.adam import Adam
from manifed.algorithms.algorithm import Collected
from manifed.algorithms.payloads import Displacement
from manifed.algorithms.tangent_mean import TangentMean
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.poincare import PoincareBall
from manifed.manifolds.product import Power, Product
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.problems.frechet import FrechetMean
from tests.algorithms.test_averaging import along, draws
from tests.federation.test_door import PRIVATE, STEPS, points

MIXED = Product(
    {"w": (Euclidean(2), (3, 2)), "f": (Stiefel(), (4, 2)), "b": (Power(PoincareBall()), (3, 2))}
)


def mixed_point():
    parts = {"w": draws(0, 3, 2), "f": Stiefel().origin(4, 2).double(), "b": 0.1 * draws(1, 3, 2)}
    return MIXED.pack(parts)


@pytest.mark.slow  # importing torch.optim is
def test_on_flat_space_it_is_torchs():
    server = TangentMean(server_step_size=0.1, adam=Adam())
    moves = draws(0, 7, 5)
    theirs = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([theirs], lr=0.1, betas=(0.9, 0.99), eps=1e-8)
    for u in moves:
        theirs.grad = -u
        adam.step()
    found = along(server, Euclidean(1), torch.zeros(5).double(), moves)[-1]["x"]
    torch.testing.assert_close(found, theirs.detach(), rtol=0, atol=1e-12)


def test_on_a_product_every_iterate_is_on_it_and_the_moment_tangent():
    server = TangentMean(server_step_size=0.05, adam=Adam())
    states = along(server, MIXED, mixed_point(), 0.2 * draws(2, 8, *MIXED.point_shape))
    for state in states:
        assert float(MIXED.membership_defect(state["x"])) < 1e-12
        assert float(MIXED.tangency_defect(state["x"], state["first"])) < 1e-10
    parts = MIXED.unpack(states[-1]["second"])
    assert len(parts["w"].unique()) == 6, "a number an entry where there are coordinates"
    assert len(parts["f"].unique()) == 1, "and one a point where there are none"
    assert [len(row.unique()) for row in parts["b"]] == [1, 1, 1]


def test_squares_of_coordinates_sum_to_the_squared_norm():
    x = mixed_point()
    u = MIXED.proju(x, draws(3, *MIXED.point_shape))
    squares = MIXED.unpack(MIXED.coordinate_squares(x, u))
    total = squares["w"].sum() + 5 * squares["f"][0, 0] + 2 * squares["b"][:, 0].sum()
    torch.testing.assert_close(total, MIXED.inner(x, u), rtol=1e-12, atol=0)  # dim St(4, 2) = 5


def test_an_isometry_of_the_sphere_turns_the_whole_path():
    server, turn = (
        TangentMean(adam=Adam(), server_step_size=0.1),
        torch.linalg.qr(draws(4, 5, 5))[0],
    )
    x, moves = Sphere().origin(5).double(), draws(5, 6, 5)
    plain = along(server, Sphere(), x, moves)[-1]["x"]
    turned = along(server, Sphere(), x @ turn, moves @ turn)[-1]["x"]
    torch.testing.assert_close(turned, plain @ turn, rtol=0, atol=1e-12)


def test_it_reads_the_released_mean_alone():
    """Post-processing: spoilt uploads beside the same mean change no number of the state."""
    server, x, u = TangentMean(adam=Adam()), Sphere().origin(4).double(), draws(6, 4)
    u, states = Sphere().proju(x, u), []
    for upload in (u, torch.full_like(u, torch.nan)):
        collected = Collected({"u": u}, Displacement(upload[None]), (0,), 1, lambda: 0.5)
        states.append(server.step(server.start(x), "train", collected, 1, Sphere()))
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("level", ["example", "client"])
def test_it_costs_no_privacy(level):
    client = manifed.ClientLevel(epsilon=8, delta=1e-2, noise_source="seed")
    privacy = PRIVATE if level == "example" else client
    prices = []
    for server in (TangentMean(), TangentMean(server_step_size=0.05, adam=Adam())):
        found = manifed.fit(
            FrechetMean(Sphere()), points(), (STEPS, server), rounds=3, privacy=privacy
        )
        prices.append((found.curves["epsilon"], found.statement["adversaries"]))
        assert float(Sphere().membership_defect(found.model)) < 1e-12
    assert prices[0] == prices[1]


def test_what_does_not_go_together_is_refused():
    for fields, said in (
        ({"momentum": 0.5}, "has momentum of its own"),
        ({"output_rule": "uniform"}, "plain steps"),
    ):
        with pytest.raises(ValidationError, match=said):
            TangentMean(adam=Adam(), **fields)

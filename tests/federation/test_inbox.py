"""Which uploads the server takes: honest ones everywhere, no others, whatever their size."""

import pytest
import torch

from manifed.algorithms.payloads import Displacement, Expectation
from manifed.federation.exchange import Replies
from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.spd import SPD
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from tests.conformance.manifold_cases import lorentz_of_radius, spd_of_condition


def taken(manifold, x, stacked, space="tangent"):
    """What the server keeps of uploads (C, *point) at the broadcast point x."""
    expected = Expectation(x, {"u": space}, manifold)
    partitions = tuple(range(10, 10 + stacked.shape[0]))
    replies = Replies(partitions, Displacement(stacked))
    return replies.without(expected.flaws(replies.uploads, partitions)).told()


def tangents(manifold, x, count=5):
    generator = torch.Generator().manual_seed(4)
    size = (count, *manifold.coords_shape(tuple(x.shape)))
    return manifold.from_coords(x, torch.randn(size, generator=generator, dtype=torch.float64))


def test_honest_uploads_on_hyperbolic_space_are_taken_at_every_radius():
    m = Lorentz()
    for x in lorentz_of_radius(3):
        u = tangents(m, x)
        for stacked in (u, 1e-6 * u, m.logmap(x, m.expmap(x, u)), m.egrad2rgrad(x, u)):
            assert taken(m, x, stacked).failures == {}


def test_honest_uploads_at_ill_conditioned_matrices_are_taken():
    m = SPD()
    for x in spd_of_condition(3):
        assert taken(m, x, tangents(m, x)).failures == {}


def test_a_normal_part_is_refused_with_its_size():
    m = Stiefel()
    x = m.origin(6, 2)
    stacked = tangents(m, x)
    stacked[2] += 1e-3 * x
    replies = taken(m, x, stacked)
    assert replies.partitions == (10, 11, 13, 14)
    assert list(replies.failures) == [12]
    assert "tangent at the broadcast point within 1e-06" in replies.failures[12].text
    assert taken(m, x, stacked, "ambient").failures == {}


@pytest.mark.parametrize("space", ["tangent", "ambient"])
@pytest.mark.parametrize("size", [1e150, 1e200, 1e308, 1.7e308])
@pytest.mark.parametrize("manifold", [Sphere(), Stiefel(), Lorentz(), SPD()], ids=str)
def test_huge_uploads_are_refused_and_their_neighbours_taken(manifold, size, space):
    shape = (5, 5) if manifold.ndim == 2 else (5,)
    x = manifold.random(*shape, generator=torch.Generator().manual_seed(1))
    stacked = tangents(manifold, x)
    stacked[1] *= size / stacked[1].abs().max()
    replies = taken(manifold, x, stacked, space)
    assert list(replies.failures) == [11]
    assert replies.failures[11].text.startswith("Expected u of Euclidean norm at most 1e+100, got ")
    assert bool(torch.isfinite(replies.uploads.u).all())
    stacked[1] = torch.nan
    assert "Expected finite entries in u" in taken(manifold, x, stacked, space).failures[11].text


def test_a_vector_that_cancelled_to_nearly_nothing_is_taken():
    """The summand |x| of the defect: without it every converged run loses its clients."""
    m = Sphere()
    x = m.random(6, generator=torch.Generator().manual_seed(1))
    u = tangents(m, x)
    rest = (u + 1e-16 * x) - u * (1 - 1e-12)
    assert taken(m, x, rest).failures == {}
    purely_relative = (rest @ x).abs() / rest.norm(dim=1)
    assert float(purely_relative.max()) > 1e-6

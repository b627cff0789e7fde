"""Defects of points and vectors: honest ones are rounding, planted ones are seen, none is NaN."""

import pytest
import torch

from manifed.manifolds import Lorentz, Sphere
from manifed.manifolds.base import LARGEST, TOLERANCE
from tests.conformance.manifold_cases import CASES, lorentz_of_radius
from tests.conformance.manifold_marks import ALL, of
from tests.tensors import generator, normals

WITH_NORMALS = of([c for c in CASES if c.normal])
HONEST = 1e-14
"""What rounding leaves, with a margin of ten."""
MARGIN = 1e-9
"""What rounding leaves where a formula is ill-conditioned (a logarithm next to the cut locus)."""


def all_points(case):
    """Random points, and those at every promised radius and conditioning."""
    x = case.points(1, 4)
    return x if case.hard_points is None else torch.cat([x, case.hard_points(2)])


def journeys(case):
    """(manifold, start, vector, end) from all points, of lengths 1e-9 to nearly the radius."""
    m = case.manifold
    x = all_points(case)
    moves = [(m.retr, case.retraction_radius)]
    if m.has_logmap:
        moves.append((m.expmap, case.radius))
    for move, radius in moves:
        for length in (1e-9, 1e-3, 0.5 * radius, 0.9 * radius):
            u = length * case.tangents(x, 3)
            yield m, x, u, move(x, u)


def worst(defects):
    return float(defects.max())


@ALL
def test_points_of_every_method_are_members(case):
    m = case.manifold
    assert worst(m.membership_defect(all_points(case))) <= HONEST
    assert worst(m.membership_defect(m.projx(case.ambient(5, 4)))) <= HONEST
    assert m.membership_defect(case.points(1)).shape == ()
    for _, _, _, y in journeys(case):
        assert worst(m.membership_defect(y)) <= HONEST


@ALL
def test_honest_vectors_are_tangent_at_every_radius_and_conditioning(case):
    for m, x, u, y in journeys(case):
        assert worst(m.tangency_defect(x, u)) <= HONEST
        assert worst(m.tangency_defect(y, m.transp(x, y, u))) <= HONEST
        if m.has_logmap:
            assert worst(m.tangency_defect(x, m.logmap(x, y))) <= HONEST
        assert worst(m.tangency_defect(x, 1e6 * u - (1e6 * u - 1e-6 * u))) <= MARGIN
        assert worst(m.tangency_defect(x, 0 * u)) == 0


@WITH_NORMALS
@pytest.mark.parametrize("size", [1e-3, 1e-5])
def test_planted_normal_parts_are_seen(case, size):
    m = case.manifold
    x = all_points(case)
    dims = m.point_dims()
    u = case.tangents(x, 3)
    n = case.normal(x, case.ambient(7, x.shape[0]))
    ambient_size = torch.linalg.vector_norm(x, dim=dims, keepdim=True)
    u = u * ambient_size / torch.linalg.vector_norm(u, dim=dims, keepdim=True)
    n = n * ambient_size / torch.linalg.vector_norm(n, dim=dims, keepdim=True)
    assert worst(m.tangency_defect(x, u)) <= HONEST
    assert m.tangency_defect(x, u + size * n).min() > 0.2 * size > TOLERANCE[torch.float64]
    assert m.tangency_defect(x[0], u + size * n).shape == (x.shape[0],)


@of([c for c in CASES if not c.manifold.is_whole_space])
@pytest.mark.parametrize("size", [1e-3, 1e-5])
def test_perturbed_points_are_no_members(case, size):
    m = case.manifold
    x = case.points(1, 4)
    if case.name == "poincare-ball":
        moved = x / x.norm(dim=-1, keepdim=True) * (1 + size)
    else:
        moved = x + size * x.abs().amax() * (1 + case.ambient(11, x.shape[0]).abs())
        moved[..., 0] += size * x.abs().amax()
    assert m.membership_defect(moved).min() > TOLERANCE[torch.float64]
    if case.name[:3] != "spd":
        assert m.membership_defect(1000 * moved).min() > TOLERANCE[torch.float64]


@ALL
@pytest.mark.parametrize("size", [1e-308, 1e-200, 1e150, 1e300, 1e308])
def test_any_size_gets_the_verdict_of_its_direction(case, size):
    m = case.manifold
    x = all_points(case)
    u = case.tangents(x, 3)
    u = u / m.expand_scalar(u.flatten(1).abs().amax(1))
    assert worst(m.tangency_defect(x, size * u)) <= HONEST
    assert not m.membership_defect(size * case.ambient(4, 3)).isnan().any()
    if case.normal is not None and size > 1:
        n = case.normal(x, case.ambient(7, x.shape[0]))
        n = n / m.expand_scalar(n.flatten(1).abs().amax(1))
        assert m.tangency_defect(x, size * (0.9 * u + 0.01 * n)).min() > 1e-4


@ALL
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_infinitely_far_and_leaves_its_neighbours_alone(case, bad):
    m = case.manifold
    x = case.points(1, 3)
    u = case.tangents(x, 3)
    x_bad, u_bad = x.clone(), u.clone()
    for tensor in (x_bad, u_bad):
        tensor[1].view(-1)[-1] = bad
    assert torch.isinf(m.membership_defect(x_bad)).tolist() == [False, True, False]
    for found in (m.tangency_defect(x, u_bad), m.tangency_defect(x_bad, u)):
        assert (found <= HONEST).tolist() == [True, False, True]
        assert torch.isinf(found[1])


def test_the_ambient_norm_of_a_projection_fails_where_the_defect_does_not():
    """The mutant: |proju(x, u) - u| <= 1e-6 (1 + |u|) refuses honest vectors from radius 12 on."""
    m = Lorentz()
    x = lorentz_of_radius(2)
    u = m.from_coords(x, normals(3, 4, 4))
    u = u / m.norm(x, u, keepdim=True)
    rest = (m.proju(x, u) - u).norm(dim=-1) / (1 + u.norm(dim=-1))
    assert rest.max() > 1.0
    assert worst(m.tangency_defect(x, u)) <= 1e-15


def test_near_the_cut_locus_honest_logarithms_stay_within_the_margin():
    m = Sphere()
    x = m.random(6, generator=generator(1))
    u = torch.ones(6).double()
    u = m.proju(x, u)
    y = m.expmap(x, u * ((torch.pi - 1e-6) / u.norm()))
    assert worst(m.tangency_defect(x, m.logmap(x, y))) <= MARGIN < TOLERANCE[torch.float64]


def test_bounds_follow_the_type():
    assert TOLERANCE[torch.float64] == 1e-6
    assert 1e-5 < TOLERANCE[torch.float32] < 1e-3
    assert LARGEST[torch.float64] ** 3 < torch.finfo(torch.float64).max
    assert 1e12 < LARGEST[torch.float32] < 1e13

"""Geodesics: exponential, logarithm, distance and parallel transport on every manifold of CASES."""

import pytest

from tests.conformance.manifold_cases import CASES
from tests.conformance.manifold_marks import WITH_LOG, drawn, of
from tests.tensors import float64


@WITH_LOG
@drawn
def test_logmap_inverts_expmap_at_every_scale(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    for scale in (0.0, 1e-8, 1e-3, 0.1 * case.radius, case.radius):
        u = case.tangents(x, seed + 1, scale=scale)
        y = m.expmap(x, u)
        log = m.logmap(x, y)
        case.close(log, u, 1e-11)
        assert case.gap(m.expmap(x, log), y) <= 1e-11 * case.tolerance
        case.close(m.norm(x, log), m.dist(x, y), 1e-11)
        case.close(m.dist(x, y), scale, 1e-11)


@WITH_LOG
@drawn
def test_dist_is_a_metric_distance(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    y, z = (m.expmap(x, case.tangents(x, seed + i, scale=0.4 * case.radius)) for i in (1, 2))
    assert m.dist(x, y).shape == lead
    assert m.dist(x, y, keepdim=True).shape == (*lead, *[1] * m.ndim)
    case.close(m.dist(x, y), m.dist(y, x), 1e-11)
    case.close(m.dist(x, x), 0.0, 1e-14)
    assert (m.dist(y, z) <= m.dist(y, x) + m.dist(x, z) + 1e-11).all()
    case.close(m.dist2(x, y), m.dist(x, y) ** 2, 1e-11)


@WITH_LOG
def test_a_geodesic_divides_the_distance(case):
    m = case.manifold
    x = case.points(31, 3)
    y = m.expmap(x, case.tangents(x, 32, scale=0.8 * case.radius))
    times = m.expand_scalar(float64([0.0, 0.25, 1.0]))
    z = m.expmap(x, times * m.logmap(x, y))
    case.close(m.dist(x, z) / (0.8 * case.radius), times.flatten(), 1e-10)
    case.close(m.dist(z, y) / (0.8 * case.radius), 1 - times.flatten(), 1e-10)


@WITH_LOG
@pytest.mark.parametrize("exponent", [-9, -6, -3])
def test_small_distances_keep_their_relative_accuracy(case, exponent):
    m = case.manifold
    x = case.points(3)
    d = 10.0**exponent
    y = m.expmap(x, case.tangents(x, 4, scale=d))
    relative = 1e-15 * case.tolerance * 10.0**-exponent + 1e-11
    assert abs(m.dist(x, y) / d - 1) <= relative
    assert abs(m.norm(x, m.logmap(x, y)) / d - 1) <= relative


@of([c for c in CASES if c.manifold.has_logmap and c.manifold.is_transp_parallel])
@drawn
def test_parallel_transport_carries_the_geodesic_along(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    u = case.tangents(x, seed + 1, scale=0.5 * case.radius)
    y = m.expmap(x, u)
    case.close(m.transp(x, y, u), -m.logmap(y, x), 1e-11)
    v = case.tangents(x, seed + 2)
    case.close(m.transp(y, x, m.transp(x, y, v)), v, 1e-11)

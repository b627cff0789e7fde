"""Geodesics: exponential, logarithm, distance and parallel transport on every manifold of CASES."""

import pytest
import torch

from tests.conformance.manifold_marks import FEW, SEEDS, WITH_LOG, close


@WITH_LOG
@SEEDS
@FEW
def test_logmap_inverts_expmap_at_every_scale(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    for scale in (0.0, 1e-8, 1e-3, 0.1 * case.radius, case.radius):
        u = case.tangents(x, seed + 1, *lead, scale=scale)
        y = m.expmap(x, u)
        log = m.logmap(x, y)
        assert m.check_vector_on_tangent(x, log, atol=1e-11, rtol=1e-11)
        close(log, u, 1e-11 * case.tolerance)
        assert case.gap(m.expmap(x, log), y) <= 1e-11 * case.tolerance
        close(m.norm(x, log), m.dist(x, y), 1e-11 * case.tolerance)
        close(m.dist(x, y), scale, 1e-11 * case.tolerance)


@WITH_LOG
@SEEDS
@FEW
def test_dist_is_a_metric_distance(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    y = m.expmap(x, case.tangents(x, seed + 1, *lead, scale=0.4 * case.radius))
    z = m.expmap(x, case.tangents(x, seed + 2, *lead, scale=0.4 * case.radius))
    assert m.dist(x, y).shape == lead
    assert m.dist(x, y, keepdim=True).shape == (*lead, *[1] * m.ndim)
    close(m.dist(x, y), m.dist(y, x), 1e-11 * case.tolerance)
    close(m.dist(x, x), 0.0, 1e-14 * case.tolerance)
    assert bool((m.dist(y, z) <= m.dist(y, x) + m.dist(x, z) + 1e-11).all())
    close(m.dist2(x, y), m.dist(x, y) ** 2, 1e-11 * case.tolerance)


@WITH_LOG
def test_a_geodesic_divides_the_distance(case):
    m = case.manifold
    x = case.points(31, 3)
    y = m.expmap(x, case.tangents(x, 32, 3, scale=0.8 * case.radius))
    times = m.expand_scalar(torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64))
    z = m.expmap(x, times * m.logmap(x, y))
    close(m.dist(x, z) / (0.8 * case.radius), times.flatten(), 1e-9)
    close(m.dist(z, y) / (0.8 * case.radius), 1 - times.flatten(), 1e-9)


@WITH_LOG
@pytest.mark.parametrize("exponent", [-9, -6, -3])
def test_small_distances_keep_their_relative_accuracy(case, exponent):
    m = case.manifold
    x = case.points(3)
    d = 10.0**exponent
    y = m.expmap(x, case.tangents(x, 4, scale=d))
    relative = 1e-15 * case.tolerance * 10.0**-exponent + 1e-11
    assert abs(float(m.dist(x, y)) / d - 1) <= relative
    assert abs(float(m.norm(x, m.logmap(x, y))) / d - 1) <= relative


@WITH_LOG
@SEEDS
@FEW
def test_parallel_transport_carries_the_geodesic_along(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    if not m.is_transp_parallel:
        return
    u = case.tangents(x, seed + 1, *lead, scale=0.5 * case.radius)
    y = m.expmap(x, u)
    close(m.transp(x, y, u), -m.logmap(y, x), 1e-11 * case.tolerance)
    v = case.tangents(x, seed + 2, *lead)
    close(m.transp(y, x, m.transp(x, y, v)), v, 1e-11 * case.tolerance)

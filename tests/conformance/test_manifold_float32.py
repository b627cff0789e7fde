"""In float32 every operation on every manifold of CASES is what it is in float64, rounded."""

import torch

from manifed.manifolds.base import TOLERANCE
from tests.conformance.manifold_cases import results
from tests.conformance.manifold_marks import ALL
from tests.tensors import generator

ROUNDING = 2e-5
"""Largest error relative to one plus the largest entry: 170 units of float32."""


@ALL
def test_every_operation_keeps_the_type_and_its_digits(case):
    """Also at y = x and u = 0, where quotients such as sin t / t are 0 / 0."""
    m = case.manifold
    x = case.points(5, 3)
    step = case.tangents(x, 6, 3, scale=0.5 * case.retraction_radius)
    for u in (step, 0 * step):
        tensors = x, m.retr(x, u) if bool(u.any()) else x, u, u
        found, expected = (
            results(m, *every)
            | ({"mean": m.frechet_mean(torch.stack(every[:2]))} if m.has_logmap else {})
            for every in ([t.float() for t in tensors], tensors)
        )
        for name, exact in expected.items():
            error = float((found[name] - exact).abs().max() / (1 + exact.abs().max()))
            assert found[name].dtype == torch.float32, name
            assert error <= ROUNDING, f"{name}: {error:.2g} > {ROUNDING:g}"


@ALL
def test_drawn_points_and_noise_are_on_the_manifold_and_tangent(case):
    m = case.manifold
    x = m.random(3, *case.shape, dtype=torch.float32, generator=generator(7))
    u = m.tangent_gaussian(x, 0.3, generator(8))
    bound = TOLERANCE[torch.float32] / 10
    for point in (x, m.projx(x), m.retr(x, 0.1 * u)):
        assert point.dtype == torch.float32
        assert m.membership_defect(point).max() <= bound
    assert u.dtype == torch.float32
    assert m.tangency_defect(x, u).max() <= bound
    assert (m.norm_bound(x, u) >= m.norm(x.double(), u.double()) * (1 - 1e-6)).all()

"""In float32 every operation on every manifold of CASES is what it is in float64, rounded."""

from collections.abc import Callable

import torch
from torch import Tensor

from manifed.manifolds.base import TOLERANCE
from tests.conformance.manifold_marks import ALL

ROUNDING = 2e-5
"""Largest error relative to one plus the largest entry: 170 units of float32."""

Operation = Callable[..., Tensor]
AT_A_STEP: dict[str, Operation] = {
    "proju": lambda m, x, y, u: m.proju(x, u),
    "tangent_part": lambda m, x, y, u: m.tangent_part(x, u),
    "egrad2rgrad": lambda m, x, y, u: m.egrad2rgrad(x, u),
    "projx": lambda m, x, y, u: m.projx(x),
    "inner": lambda m, x, y, u: m.inner(x, u, u),
    "norm": lambda m, x, y, u: m.norm(x, u),
    "retr": lambda m, x, y, u: m.retr(x, u),
    "invretr": lambda m, x, y, u: m.invretr(x, y),
    "transp": lambda m, x, y, u: m.transp(x, y, u),
}
WITH_LOG: dict[str, Operation] = {
    "expmap": lambda m, x, y, u: m.expmap(x, u),
    "logmap": lambda m, x, y, u: m.logmap(x, y),
    "dist": lambda m, x, y, u: m.dist(x, y),
    "frechet_mean": lambda m, x, y, u: m.frechet_mean(torch.stack([x, y])),
}


def operations(manifold):
    return AT_A_STEP | (WITH_LOG if manifold.has_logmap else {})


@ALL
def test_every_operation_keeps_the_type_and_its_digits(case):
    """Also at y = x and u = 0, where quotients such as sin t / t are 0 / 0."""
    m = case.manifold
    x = case.points(5, 3)
    step = case.tangents(x, 6, 3, scale=0.5 * case.retraction_radius)
    for u in (step, 0 * step):
        tensors = x, m.retr(x, u) if bool(u.any()) else x, u
        for name, operation in operations(m).items():
            exact = operation(m, *tensors)
            found = operation(m, *[t.to(torch.float32) for t in tensors])
            error = float((found - exact).abs().max() / (1 + exact.abs().max()))
            assert found.dtype == torch.float32, name
            assert error <= ROUNDING, f"{name}: {error:.2g} > {ROUNDING:g}"


@ALL
def test_drawn_points_and_noise_are_on_the_manifold_and_tangent(case):
    m = case.manifold
    generator = torch.Generator().manual_seed(7)
    x = m.random(3, *case.shape, dtype=torch.float32, generator=generator)
    u = m.tangent_gaussian(x, 0.3, generator)
    bound = TOLERANCE[torch.float32] / 10
    for point in (x, m.projx(x), m.retr(x, 0.1 * u)):
        assert point.dtype == torch.float32
        assert float(m.membership_defect(point).max()) <= bound
    assert u.dtype == torch.float32
    assert float(m.tangency_defect(x, u).max()) <= bound
    assert bool((m.norm_bound(x, u) >= m.norm(x.double(), u.double()) * (1 - 1e-6)).all())

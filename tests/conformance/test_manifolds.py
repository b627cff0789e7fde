"""The identities that every manifold of CASES fulfils, unbatched and batched.

That what its methods return lies on it, and is tangent, is said in test_manifold_defects.py.
"""

import copy

import pytest
import torch
from scipy import stats

from tests.conformance.manifold_cases import CASES, results
from tests.conformance.manifold_marks import ALL, AMBIENT, drawn


@ALL
@drawn
def test_random_points_are_drawn_from_the_generator(case, seed, lead):
    x = case.points(seed, *lead)
    assert x.shape == (*lead, *case.shape)
    assert x.dtype == torch.float64
    assert case.manifold.check_point_on_manifold(x, atol=1e-12, rtol=1e-12)
    assert torch.equal(x, case.points(seed, *lead))


@ALL
@drawn
def test_projx_is_idempotent(case, seed, lead):
    for x in (case.manifold.projx(case.ambient(seed, *lead)), case.points(seed, *lead)):
        assert case.gap(case.manifold.projx(x), x) <= 1e-12 * case.tolerance


@ALL
@drawn
def test_proju_is_the_metric_orthogonal_projection(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    u = m.proju(x, case.ambient(seed + 1, *lead))
    assert m.check_vector_on_tangent(x, u, atol=1e-11, rtol=1e-11)
    for v in (u, case.tangents(x, seed + 2)):
        case.close(m.proju(x, v), v, 1e-12)
    if case.is_inner_ambient:
        a = case.ambient(seed + 3, *lead)
        b = case.ambient(seed + 4, *lead)
        left = m.inner(x, m.proju(x, a), b)
        case.close(left, m.inner(x, a, m.proju(x, b)), 1e-12 * float(1 + left.abs().max()))


@ALL
@drawn
def test_inner_is_symmetric_bilinear_and_norm_its_root(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    u, v = (case.tangents(x, seed + i) for i in (1, 2))
    product = m.inner(x, u, v)
    assert product.shape == lead
    case.close(product, m.inner(x, v, u), 1e-13)
    case.close(m.inner(x, u + 3 * v, v), product + 3 * m.inner(x, v, v), 1e-12)
    case.close(m.norm(x, u) ** 2, m.inner(x, u), 1e-12)
    for method in (m.norm, m.inner):
        assert method(x, u, keepdim=True).shape == (*lead, *[1] * m.ndim)
    assert m.component_inner(x, u).expand(u.shape).shape == u.shape
    assert not m.norm(x, torch.zeros_like(x)).any()


@AMBIENT
@drawn
def test_egrad2rgrad_represents_the_differential(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    g = case.ambient(seed + 1, *lead)
    u = case.tangents(x, seed + 2)
    rgrad = m.egrad2rgrad(x, g)
    assert m.check_vector_on_tangent(x, rgrad, atol=1e-11, rtol=1e-11)
    case.close(m.inner(x, rgrad, u), (g * u).sum(m.point_dims()), 1e-11)


@ALL
@drawn
def test_a_step_of_nothing_stays(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    for move in [m.retr, m.expmap] if m.has_logmap else [m.retr]:
        assert case.gap(move(x, torch.zeros_like(x)), x) <= 1e-13 * case.tolerance


@AMBIENT
def test_retraction_is_of_first_order(case):
    """The log-log slope of |R(tu) - exp(tu)| is at least 2, or the difference is rounding."""
    m = case.manifold
    x = case.points(1)
    u = case.tangents(x, 2)
    ts = torch.logspace(-2.5, -1, 7, dtype=torch.float64)
    exact = m.expmap if m.has_logmap else torch.add
    errors = torch.stack([(m.retr(x, t * u) - exact(x, t * u)).norm() for t in ts])
    if float(errors.max()) >= 1e-11:
        slope = stats.linregress(ts.log(), errors.clamp_min(1e-300).log()).slope
        assert slope >= 1.9, f"slope {slope:.2f}"


@ALL
@drawn
def test_invretr_inverts_retr(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    for scale in (0.0, 1e-6, case.retraction_radius):
        u = case.tangents(x, seed + 1, scale=scale)
        case.close(m.invretr(x, m.retr(x, u)), u, 1e-12)


@ALL
@drawn
def test_transp_is_linear_and_isometric_where_claimed(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    y = m.retr(x, case.tangents(x, seed + 1, scale=0.5 * case.radius))
    u, v = (case.tangents(x, seed + i) for i in (2, 3))
    tu, tv = (m.transp(x, y, w) for w in (u, v))
    case.close(m.transp(x, y, 2 * u - v), 2 * tu - tv, 1e-12)
    if m.is_transp_isometric:
        case.close(m.inner(y, tu, tv), m.inner(x, u, v), 1e-12)
    case.close(m.transp(x, x, u), u, 1e-12)


@ALL
def test_no_method_changes_its_arguments(case):
    m = case.manifold
    x = case.points(31, 2)
    u = case.tangents(x, 32, scale=0.2)
    y = m.retr(x, u)
    g = case.ambient(34, 2)
    c = torch.ones(2, *m.coords_shape(case.shape)).double()
    arguments = (x, y, u, g, c)
    before = [a.clone() for a in arguments]
    results(m, x, y, u, g)
    m.projx(g), m.from_coords(x, c), m.retr_transp(x, u, u)
    m.check_point_on_manifold(x), m.check_vector_on_tangent(x, u)
    if m.has_logmap:
        m.frechet_mean(torch.stack([x, y]))
    assert all(map(torch.equal, arguments, before))


@ALL
@pytest.mark.parametrize("seed", [71, 72])
def test_a_batch_is_its_elements_and_the_base_point_broadcasts(case, seed):
    m = case.manifold
    x = case.points(seed, 3)
    u = case.tangents(x, seed + 1, scale=0.3)
    g = case.ambient(seed + 2, 3)
    c = torch.stack([torch.full(m.coords_shape(case.shape), 0.5 + i) for i in range(3)]).double()

    def everything(x, y, u, g, c):
        return results(m, x, y, u, g) | {"from_coords": m.from_coords(x, c), "of g": m.projx(g)}

    batch = (x, m.retr(x, u), u, g, c)
    each = [everything(*one) for one in zip(*batch, strict=True)]
    for name, found in everything(*batch).items():
        case.close(found, torch.stack([one[name] for one in each]), 1e-12)
    many = case.tangents(x[0], seed + 3, 3, scale=0.3)
    rest = (m.retr(x[0], many), many, g, c)
    spread = everything(x[0].expand_as(many), *rest)
    for name, found in everything(x[0], *rest).items():
        case.close(found, spread[name], 1e-11 if name in {"logmap", "dist"} else 1e-12)
    moved = m.transp(x[0], rest[0][0], many)
    case.close(moved[0], spread["transp"][0], 1e-12)
    if m.has_logmap:
        case.close(m.dist(rest[0], x[0]), spread["dist"], 1e-11)


@ALL
def test_equal_settings_make_equal_manifolds_and_no_parameters(case):
    m = case.manifold
    twin = copy.deepcopy(m)
    assert m == twin
    assert hash(m) == hash(twin)
    assert m != "manifold"
    assert list(m.state_dict()) == []
    assert m not in [c.manifold for c in CASES if type(c.manifold) is not type(m)]

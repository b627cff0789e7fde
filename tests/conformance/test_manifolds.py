"""The identities that every manifold of CASES fulfils, unbatched and batched."""

import copy

import pytest
import torch
from scipy import stats

from tests.conformance.manifold_cases import CASES
from tests.conformance.manifold_marks import ALL, AMBIENT, FEW, SEEDS, WITH_INVRETR, close


@ALL
@SEEDS
@FEW
def test_random_points_are_on_the_manifold(case, seed, lead):
    x = case.points(seed, *lead)
    assert x.shape == (*lead, *case.shape)
    assert x.dtype == torch.float64
    ok, reason = case.manifold.check_point_on_manifold(x, explain=True, atol=1e-12, rtol=1e-12)
    assert ok, reason
    assert torch.equal(x, case.points(seed, *lead))


@ALL
@SEEDS
@FEW
def test_projx_lands_on_the_manifold_and_is_idempotent(case, seed, lead):
    y = case.manifold.projx(case.ambient(seed, *lead))
    ok, reason = case.manifold.check_point_on_manifold(y, explain=True, atol=1e-11, rtol=1e-11)
    assert ok, reason
    assert case.gap(case.manifold.projx(y), y) <= 1e-12 * case.tolerance
    x = case.points(seed, *lead)
    assert case.gap(case.manifold.projx(x), x) <= 1e-12 * case.tolerance


@ALL
@SEEDS
@FEW
def test_proju_is_the_metric_orthogonal_projection(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    u = m.proju(x, case.ambient(seed + 1, *lead))
    assert m.check_vector_on_tangent(x, u, atol=1e-11, rtol=1e-11)
    close(m.proju(x, u), u, 1e-12 * case.tolerance)
    v = case.tangents(x, seed + 2, *lead)
    close(m.proju(x, v), v, 1e-12 * case.tolerance)
    if case.is_inner_ambient:
        a = case.ambient(seed + 3, *lead)
        b = case.ambient(seed + 4, *lead)
        left = m.inner(x, m.proju(x, a), b)
        right = m.inner(x, a, m.proju(x, b))
        close(left, right, 1e-12 * case.tolerance * float(1 + left.abs().max()))


@ALL
@SEEDS
@FEW
def test_inner_is_symmetric_bilinear_and_norm_its_root(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    u = case.tangents(x, seed + 1, *lead)
    v = case.tangents(x, seed + 2, *lead)
    product = m.inner(x, u, v)
    assert product.shape == lead
    close(product, m.inner(x, v, u), 1e-13 * case.tolerance)
    close(m.inner(x, u + 3 * v, v), product + 3 * m.inner(x, v, v), 1e-12 * case.tolerance)
    close(m.norm(x, u) ** 2, m.inner(x, u), 1e-12 * case.tolerance)
    assert m.norm(x, u, keepdim=True).shape == (*lead, *[1] * m.ndim)
    assert m.inner(x, u, keepdim=True).shape == (*lead, *[1] * m.ndim)
    broadcast = m.component_inner(x, u).expand(u.shape)
    assert broadcast.shape == u.shape
    close(m.norm(x, torch.zeros_like(x)), 0.0, 0.0)


@AMBIENT
@SEEDS
@FEW
def test_egrad2rgrad_represents_the_differential(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    g = case.ambient(seed + 1, *lead)
    u = case.tangents(x, seed + 2, *lead)
    rgrad = m.egrad2rgrad(x, g)
    assert m.check_vector_on_tangent(x, rgrad, atol=1e-11, rtol=1e-11)
    close(m.inner(x, rgrad, u), case.pair(g, u), 1e-11 * case.tolerance)


@ALL
@SEEDS
@FEW
def test_retraction_fixes_the_base_point_and_stays_on_the_manifold(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    moves = [m.retr, m.expmap] if m.has_logmap else [m.retr]
    u = case.tangents(x, seed + 1, *lead, scale=case.radius)
    for move in moves:
        assert case.gap(move(x, torch.zeros_like(x)), x) <= 1e-13 * case.tolerance
        y = move(x, u)
        ok, reason = m.check_point_on_manifold(y, explain=True, atol=1e-12, rtol=1e-12)
        assert ok, reason


@AMBIENT
def test_retraction_is_of_first_order(case):
    """The log-log slope of |R(tu) - exp(tu)| is at least 2, or the difference is rounding."""
    m = case.manifold
    x = case.points(1)
    u = case.tangents(x, 2)
    ts = torch.logspace(-2.5, -1, 7, dtype=torch.float64)
    if m.has_logmap:
        errors = torch.stack([(m.retr(x, t * u) - m.expmap(x, t * u)).norm() for t in ts])
    else:
        errors = torch.stack([(m.retr(x, t * u) - x - t * u).norm() for t in ts])
    if float(errors.max()) < 1e-11:
        return
    slope = stats.linregress(ts.log().numpy(), errors.clamp_min(1e-300).log().numpy()).slope
    assert slope >= 1.9, f"slope {slope:.2f}"


@WITH_INVRETR
@SEEDS
@FEW
def test_invretr_inverts_retr(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    for scale in (0.0, 1e-6, case.retraction_radius):
        u = case.tangents(x, seed + 1, *lead, scale=scale)
        close(m.invretr(x, m.retr(x, u)), u, 1e-12 * case.tolerance)


@ALL
@SEEDS
@FEW
def test_transp_is_linear_tangent_and_isometric_where_claimed(case, seed, lead):
    m = case.manifold
    x = case.points(seed, *lead)
    y = m.retr(x, case.tangents(x, seed + 1, *lead, scale=0.5 * case.radius))
    u = case.tangents(x, seed + 2, *lead)
    v = case.tangents(x, seed + 3, *lead)
    tu = m.transp(x, y, u)
    tv = m.transp(x, y, v)
    assert m.check_vector_on_tangent(y, tu, atol=1e-12, rtol=1e-12)
    close(m.transp(x, y, 2 * u - v), 2 * tu - tv, 1e-12 * case.tolerance)
    if m.is_transp_isometric:
        close(m.inner(y, tu, tv), m.inner(x, u, v), 1e-12 * case.tolerance)
    if case.is_transp_identity_at_home:
        close(m.transp(x, x, u), u, 1e-12 * case.tolerance)


@ALL
def test_no_method_changes_its_arguments(case):
    m = case.manifold
    x = case.points(31, 2)
    u = case.tangents(x, 32, 2, scale=0.2)
    v = case.tangents(x, 33, 2, scale=0.2)
    c = torch.ones(2, *m.coords_shape(case.shape), dtype=torch.float64)
    y = m.retr(x, u)
    g = case.ambient(34, 2)
    arguments = (x, y, u, v, c, g)
    before = [a.clone() for a in arguments]
    m.projx(g), m.projx(x), m.proju(x, g), m.egrad2rgrad(x, g), m.inner(x, u, v), m.norm(x, u)
    m.retr(x, u), m.transp(x, y, u), m.from_coords(x, c), m.retr_transp(x, u, v)
    m.check_point_on_manifold(x), m.check_vector_on_tangent(x, u)
    if case.has_invretr:
        m.invretr(x, y)
    if m.has_logmap:
        m.expmap(x, u), m.logmap(x, y), m.dist(x, y), m.frechet_mean(torch.stack([x, y]))
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


@ALL
@pytest.mark.parametrize("seed", [71, 72])
def test_a_batch_is_its_elements_and_the_base_point_broadcasts(case, seed):
    m = case.manifold
    x = case.points(seed, 3)
    u = case.tangents(x, seed + 1, 3, scale=0.3)
    y = m.retr(x, u)
    g = case.ambient(seed + 2, 3)
    c = torch.stack([torch.full(m.coords_shape(case.shape), 0.5 + i) for i in range(3)]).double()
    binary = {
        "proju": (m.proju, g), "egrad2rgrad": (m.egrad2rgrad, g), "retr": (m.retr, u),
        "inner": (m.inner, u), "norm": (m.norm, u),
        "from_coords": (m.from_coords, c),
    }  # fmt: skip
    if case.has_invretr:
        binary["invretr"] = (m.invretr, y)
    if m.has_logmap:
        binary |= {"expmap": (m.expmap, u), "logmap": (m.logmap, y), "dist": (m.dist, y)}
    for name, (method, argument) in binary.items():
        loop = torch.stack([method(x[i], argument[i]) for i in range(3)])
        close(method(x, argument), loop, 1e-12 * case.tolerance)
        if name in {"proju", "egrad2rgrad", "inner", "norm", "from_coords"}:
            vector = argument if name in {"proju", "egrad2rgrad", "from_coords"} else g
            loop = torch.stack([method(x[0], vector[i]) for i in range(3)])
            close(method(x[0], vector), loop, 1e-12 * case.tolerance)
    close(m.projx(g), torch.stack([m.projx(g[i]) for i in range(3)]), 1e-12 * case.tolerance)
    many = case.tangents(x[0], seed + 3, 4, scale=0.3)
    targets = m.retr(x[0], many)
    home = x[0].expand_as(targets)
    close(targets, m.retr(home, many), 1e-12 * case.tolerance)
    moved = m.transp(x[0], targets, many)
    close(moved, m.transp(home, targets, many), 1e-12 * case.tolerance)
    close(m.transp(x[0], targets[0], many)[0], moved[0], 1e-12 * case.tolerance)
    if m.has_logmap:
        close(m.expmap(x[0], many), m.expmap(home, many), 1e-12 * case.tolerance)
        close(m.logmap(x[0], targets), m.logmap(home, targets), 1e-11 * case.tolerance)
        close(m.dist(targets, x[0]), m.dist(x[0], targets), 1e-11 * case.tolerance)


@ALL
def test_equal_settings_make_equal_manifolds_and_no_parameters(case):
    m = case.manifold
    twin = copy.deepcopy(m)
    assert m == twin
    assert hash(m) == hash(twin)
    assert m != "manifold"
    assert list(m.state_dict()) == []
    others = [c.manifold for c in CASES if type(c.manifold) is not type(m)]
    assert all(m != other for other in others)

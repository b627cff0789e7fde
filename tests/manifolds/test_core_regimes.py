"""Near, far and ill-conditioned regimes of the core manifolds, and their closed-form facts."""

import math

import pytest
import torch
from scipy import stats

from manifolds.hyperbolic import Lorentz
from manifolds.linalg import expm, positive_qr, skew, standard_normal
from manifolds.spd import SPD
from manifolds.sphere import Sphere
from manifolds.stiefel import Stiefel

FLOAT = torch.float64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normals(seed: int, *size: int) -> torch.Tensor:
    return standard_normal(size, generator(seed))


# -- sphere ------------------------------------------------------------------------------------
@pytest.mark.parametrize("d", [1e-9, 1e-6, 1e-3, 1.0, math.pi - 1e-3, math.pi - 1e-6])
def test_sphere_angles_are_accurate_at_both_ends(d: float):
    x, y = torch.tensor([1.0, 0, 0], dtype=FLOAT), torch.tensor([math.cos(d), math.sin(d), 0.0])
    y = (
        y.to(FLOAT)
        if y.dtype == FLOAT
        else torch.tensor([math.cos(d), math.sin(d), 0], dtype=FLOAT)
    )
    sphere = Sphere()
    assert abs(float(sphere.dist(x, y)) / d - 1) <= 1e-6 if d < 1e-3 else 1e-9
    assert abs(float(sphere.norm(x, sphere.logmap(x, y))) / d - 1) <= 1e-6


def test_sphere_of_zero_distance_and_projection_of_zero():
    sphere = Sphere()
    x = sphere.random(50, 4, generator=generator(1))
    assert float(sphere.dist(x, x).max()) == 0.0
    assert bool(sphere.projx(torch.zeros(3, dtype=FLOAT)).isnan().all())


# -- Stiefel -----------------------------------------------------------------------------------
@pytest.mark.parametrize("metric", ["euclidean", "canonical"])
@pytest.mark.parametrize("shape", [(12, 3), (5, 3), (4, 4), (20, 10)])
def test_stiefel_logarithm_inverts_the_exponential_up_to_norm_2_5(metric, shape):
    m = Stiefel(metric)
    x = m.random(2, *shape, generator=generator(2))
    u = m.from_coords(x, normals(3, 2, *shape))
    for d in (0.1, 1.0, 2.5):
        v = u * (d / m.norm(x, u, keepdim=True))
        assert (m.logmap(x, m.expmap(x, v)) - v).abs().max() <= 1e-12


@pytest.mark.parametrize("metric", ["euclidean", "canonical"])
def test_stiefel_exponential_of_a_rank_deficient_vector_stays_orthonormal(metric):
    m = Stiefel(metric)
    x = m.random(5, 3, generator=generator(4))
    across = torch.zeros(5, 3, dtype=FLOAT)
    across[:, 2] = 1.0
    u = across - x @ (x.mT @ across)
    for step in (1e-8, 1.0, 20.0):
        assert m.check_point_on_manifold(m.expmap(x, step * u), atol=1e-13, rtol=0.0)


@pytest.mark.parametrize("metric", ["euclidean", "canonical"])
def test_stiefel_exponential_solves_the_geodesic_equation(metric):
    """The acceleration is normal (Euclidean); both metrics conserve speed."""
    m = Stiefel(metric)
    x = m.random(6, 2, generator=generator(5))
    u = m.proju(x, normals(6, 6, 2))
    h = 1e-4
    y, before, after = (m.expmap(x, t * u) for t in (0.7, 0.7 - h, 0.7 + h))
    velocity = (after - before) / (2 * h)
    assert abs(m.norm(y, velocity) / m.norm(x, u) - 1) <= 1e-7
    if metric == "euclidean":
        acceleration = (after - 2 * y + before) / h**2
        assert m.proju(y, acceleration).abs().max() <= 1e-6


def test_canonical_and_euclidean_exponentials_of_a_rotation_agree_with_expm():
    a = skew(normals(7, 4, 4))
    x = positive_qr(normals(8, 4, 4))[0]
    for metric in ("euclidean", "canonical"):
        assert (Stiefel(metric).expmap(x, x @ a) - x @ expm(a)).abs().max() <= 1e-14


def test_stiefel_logarithm_refuses_what_has_none():
    m = Stiefel()
    x = torch.eye(3, dtype=FLOAT)
    with pytest.raises(ArithmeticError, match="det"):
        m.logmap(x, -x)
    frame = torch.eye(6, 3, dtype=FLOAT)
    with pytest.raises(ArithmeticError, match="residual"):
        m.logmap(frame, -frame)
    with pytest.raises(NotImplementedError, match="not differentiable"):
        m.logmap(frame.clone().requires_grad_(), frame)


def test_stiefel_transport_is_the_rotation_of_the_inverse_cayley_transform():
    m = Stiefel("canonical", "cayley")
    x = m.random(7, 3, generator=generator(9))
    y = m.retr(x, m.from_coords(x, 0.3 * normals(10, 7, 3)))
    u = m.invretr(x, y)
    half = u - x @ (x.mT @ u) / 2
    w = half @ x.mT - x @ half.mT
    eye = torch.eye(7, dtype=FLOAT)
    rotation = torch.linalg.solve(eye - w / 2, eye + w / 2)
    assert (rotation @ x - y).abs().max() <= 1e-14
    v = m.from_coords(x, normals(11, 7, 3))
    assert (m.transp(x, y, v) - rotation @ v).abs().max() <= 1e-13


@pytest.mark.parametrize(
    ("metric", "retraction"), [("euclidean", "polar"), ("canonical", "cayley")]
)
def test_stiefel_retraction_of_its_metric_is_of_second_order(metric, retraction):
    m = Stiefel(metric, retraction)
    x = m.random(6, 3, generator=generator(12))
    u = m.from_coords(x, normals(13, 6, 3))
    u = u / m.norm(x, u)
    ts = torch.logspace(-2, -1, 6, dtype=FLOAT)
    errors = torch.stack([(m.retr(x, t * u) - m.expmap(x, t * u)).norm() for t in ts])
    slope = stats.linregress(ts.log().numpy(), errors.log().numpy()).slope
    assert slope >= 2.9


@pytest.mark.parametrize("retraction", ["polar", "qr", "cayley"])
def test_stiefel_retraction_of_a_large_noise_stays_on_the_manifold(retraction):
    m = Stiefel(retraction=retraction)
    x = m.random(4, 60, 4, generator=generator(14))
    u = m.from_coords(x, 3 * normals(15, 4, 60, 4))
    assert m.check_point_on_manifold(m.retr(x, u), atol=1e-11, rtol=0.0)


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e12])
def test_stiefel_projection_is_nearest_at_every_condition_number(condition):
    m = Stiefel()
    u = m.random(50, 4, generator=generator(16))
    scaled = u * torch.logspace(0, -math.log10(condition), 4, dtype=FLOAT)
    assert (m.projx(scaled) - u).abs().max() <= 1e-15 * condition
    assert m.check_point_on_manifold(m.projx(scaled), atol=1e-13, rtol=0.0)


@pytest.mark.statistical
def test_stiefel_random_is_haar():
    """Every entry has mean 0 and second moment 1/n: x_11^2 sums to a Beta mean, bounded by z."""
    count = 20_000
    x = Stiefel().random(count, 3, 2, generator=generator(17))
    entries = x[:, 0, 0]
    z = stats.norm.ppf(1 - 0.25e-6)
    assert abs(float(entries.mean())) <= z * math.sqrt(1 / 3 / count)
    variance_of_square = 1 / 5 - 1 / 9
    assert abs(float((entries**2).mean()) - 1 / 3) <= z * math.sqrt(variance_of_square / count)


def test_stiefel_refuses_unknown_options_and_wide_matrices():
    with pytest.raises(ValueError, match="metric"):
        Stiefel("flat")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="retraction"):
        Stiefel(retraction="exp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n >= k"):
        Stiefel().random(2, 3, generator=generator(18))


# -- SPD ---------------------------------------------------------------------------------------
def ill_conditioned(condition: float, seed: int) -> torch.Tensor:
    q = positive_qr(normals(seed, 5, 5))[0]
    w = torch.logspace(0, -math.log10(condition), 5, dtype=FLOAT)
    return (q * w) @ q.mT


@pytest.mark.parametrize(("condition", "tolerance"), [(1e4, 1e-10), (1e8, 1e-7)])
def test_spd_geometry_survives_ill_conditioned_points(condition, tolerance):
    m = SPD()
    x = ill_conditioned(condition, 19)
    u = m.from_coords(x, normals(20, 5, 5))
    u = u / m.norm(x, u)
    y = m.expmap(x, u)
    assert abs(float(m.dist(x, y)) - 1) <= tolerance
    assert float(m.norm(x, m.logmap(x, y) - u)) <= tolerance
    assert abs(float(m.norm(y, m.transp(x, y, u))) - 1) <= tolerance
    assert float(m.norm(y, m.transp(x, y, u) + m.logmap(y, x))) <= 10 * tolerance


def test_spd_is_invariant_under_congruence():
    m = SPD()
    x, y = m.random(2, 4, 4, generator=generator(21))
    a = normals(22, 4, 4)
    moved = m.dist(a @ x @ a.mT, a @ y @ a.mT)
    assert abs(float(m.dist(x, y) - moved)) <= 1e-12


def test_spd_refuses_an_indefinite_point():
    with pytest.raises(torch.linalg.LinAlgError):
        SPD().norm(-torch.eye(2, dtype=FLOAT), torch.eye(2, dtype=FLOAT))


def test_spd_gradients_are_finite_at_repeated_eigenvalues():
    m = SPD()
    x = torch.eye(3, dtype=FLOAT).requires_grad_()
    total = m.dist(x, 2 * torch.eye(3, dtype=FLOAT)) + m.expmap(x, torch.zeros_like(x)).sum()
    assert bool(torch.autograd.grad(total, x)[0].isfinite().all())


# -- Lorentz -----------------------------------------------------------------------------------
def far_point(radius: float, seed: int) -> torch.Tensor:
    direction = Sphere().random(4, generator=generator(seed))
    return Lorentz().projx(torch.cat((torch.ones(1, dtype=FLOAT), math.sinh(radius) * direction)))


@pytest.mark.parametrize(("radius", "tolerance"), [(5, 1e-13), (10, 1e-11), (15, 1e-9), (25, 1e-4)])
def test_lorentz_norms_and_transports_far_from_the_origin(radius, tolerance):
    m = Lorentz()
    x, y = far_point(radius, 23), far_point(radius, 24)
    c = normals(25, 4)
    u = m.from_coords(x, c / c.norm())
    assert abs(float(m.norm(x, u)) - 1) <= tolerance
    assert abs(float(m.norm(y, m.transp(x, y, u))) - 1) <= 10 * tolerance
    back = m.coords(x, m.logmap(x, m.expmap(x, u)))
    assert (back - c / c.norm()).abs().max() <= 10 * tolerance
    assert abs(float(m.dist(x, m.expmap(x, u))) - 1) <= 10 * tolerance


@pytest.mark.parametrize("radius", [0.0, 3.0, 12.0])
def test_lorentz_coordinates_are_an_isometry_with_inverse(radius):
    m = Lorentz()
    x, c = far_point(radius, 26), normals(27, 6, 4)
    tolerance = 1e-14 * math.exp(radius)
    assert (m.coords(x, m.from_coords(x, c)) - c).abs().max() <= tolerance
    assert (m.norm(x, m.from_coords(x, c)) - c.norm(dim=-1)).abs().max() <= tolerance


def test_lorentz_distance_from_the_origin_is_the_radius_and_its_gradient_is_right():
    m = Lorentz()
    o = m.origin(5).requires_grad_()
    y = far_point(7.0, 28)
    d = m.dist(o, y)
    assert abs(float(d.detach()) - 7) <= 1e-14
    gradient = m.egrad2rgrad(o.detach(), torch.autograd.grad(d**2 / 2, o)[0])
    assert (gradient + m.logmap(o.detach(), y)).abs().max() <= 1e-13
    assert float(m.dist(y, y)) == 0.0


def test_lorentz_does_not_change_the_gradient_that_it_converts():
    g = torch.ones(5, dtype=FLOAT)
    Lorentz().egrad2rgrad(Lorentz().origin(5), g)
    assert torch.equal(g, torch.ones(5, dtype=FLOAT))


# -- Fréchet mean ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("manifold", "shape", "radius"),
    [(SPD(), (4, 4), 6.0), (Lorentz(), (6,), 2.0), (Lorentz(), (6,), 8.0), (Sphere(), (6,), 1.4)],
    ids=str,
)
def test_frechet_mean_converges_for_widely_spread_points(manifold, shape, radius):
    x = manifold.random(2, *shape, generator=generator(40))
    u = manifold.from_coords(x, normals(41, 12, 2, *manifold.coords_shape(shape)))
    points = manifold.expmap(x, u * (radius / manifold.norm(x, u, keepdim=True)))
    mean = manifold.frechet_mean(points, max_iterations=60)
    residual = manifold.norm(mean, manifold.logmap(mean, points).mean(0))
    assert float(residual.max()) <= 1e-9

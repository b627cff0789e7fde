"""The Stiefel manifold: logarithms, geodesics, retractions, the Haar measure."""

import math

import pytest
import torch
from scipy import stats

from manifed.manifolds.linalg import expm, positive_qr, skew, standard_normal
from manifed.manifolds.stiefel import Stiefel

FLOAT = torch.float64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normals(seed: int, *size: int) -> torch.Tensor:
    return standard_normal(size, generator(seed))


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
        Stiefel("flat")
    with pytest.raises(ValueError, match="retraction"):
        Stiefel(retraction="exp")
    with pytest.raises(ValueError, match="n >= k"):
        Stiefel().random(2, 3, generator=generator(18))

"""The Stiefel manifold: logarithms, geodesics, retractions, the Haar measure."""

import pytest
import torch

from manifed.manifolds import Stiefel
from tests.tensors import assert_near, generator, normals


@pytest.mark.parametrize("metric", ["euclidean", "canonical"])
@pytest.mark.parametrize("shape", [(12, 3), (5, 3), (4, 4), (20, 10)])
def test_stiefel_logarithm_inverts_the_exponential_up_to_norm_2_5(metric, shape):
    m = Stiefel(metric)
    x = m.random(2, *shape, generator=generator(2))
    u = m.from_coords(x, normals(3, 2, *shape))
    for d in (0.1, 1.0, 2.5):
        v = u * (d / m.norm(x, u, keepdim=True))
        assert_near(m.logmap(x, m.expmap(x, v)), v, 1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "canonical"])
def test_stiefel_exponential_of_a_rank_deficient_vector_stays_orthonormal(metric):
    m = Stiefel(metric)
    x = m.random(5, 3, generator=generator(4))
    across = torch.zeros(5, 3).double()
    across[:, 2] = 1.0
    u = across - x @ (x.mT @ across)
    for step in (1e-8, 1.0, 20.0):
        assert m.check_point_on_manifold(m.expmap(x, step * u), atol=1e-13, rtol=0.0)


def test_stiefel_logarithm_refuses_what_has_none():
    m = Stiefel()
    x = torch.eye(3).double()
    with pytest.raises(ArithmeticError, match="det"):
        m.logmap(x, -x)
    frame = torch.eye(6, 3).double()
    with pytest.raises(ArithmeticError, match="residual"):
        m.logmap(frame, -frame)
    with pytest.raises(NotImplementedError, match="not differentiable"):
        m.logmap(frame.clone().requires_grad_(), frame)


def test_stiefel_refuses_unknown_options_and_wide_matrices():
    with pytest.raises(ValueError, match="metric"):
        Stiefel("flat")
    with pytest.raises(ValueError, match="n >= k"):
        Stiefel().random(2, 3, generator=generator(18))

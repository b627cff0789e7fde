"""The packed fixed-rank manifold means what its dense matrices mean."""

import pytest
import torch

from manifed_extras.fixed_rank import FixedRank
from tests.conformance.manifold_cases import generator, normals

M = FixedRank(7, 5, 2)


def point(seed, *lead):
    return M.random(*lead, *M.point_shape, generator=generator(seed))


def projected(x, matrix):
    """P_x of an ambient matrix, packed."""
    left, right, _ = M.unpack(x)
    return M.proju(x, M.pack(matrix @ right, matrix.mT @ left, left.mT @ matrix @ right))


def test_the_metric_and_the_noise_are_those_of_the_ambient_matrices():
    x = point(1)
    u, v = (M.from_coords(x, normals(s, 3, *M.point_shape)) for s in (2, 3))
    product = (M.embed(x, u) * M.embed(x, v)).sum((-2, -1))
    assert torch.allclose(M.inner(x, u, v), product, rtol=1e-13)
    ambient = normals(4, 7, 5)
    gap = ambient - M.embed(x, projected(x, ambient))
    assert float((gap * M.embed(x, u)).sum((-2, -1)).abs().max()) <= 1e-13


def test_the_retraction_is_the_truncated_svd():
    x = point(5, 4)
    u = 0.1 * M.from_coords(x, normals(6, 4, *M.point_shape))
    moved = M.dense(x) + M.embed(x, u)
    assert torch.allclose(M.dense(M.retr(x, u)), M.dense(M.from_dense(moved)), atol=1e-13)


def test_the_gradient_of_autograd_through_dense_becomes_the_projected_ambient_gradient():
    x = point(11)
    target = normals(12, 7, 5)
    tracked = x.clone().requires_grad_()
    loss = (M.dense(tracked) - target).square().sum()
    packed = torch.autograd.grad(loss, tracked)[0]
    expected = projected(x, 2 * (M.dense(x) - target))
    assert torch.allclose(M.egrad2rgrad(x, packed), expected, atol=1e-12)


def test_the_mean_is_the_truncated_mean_matrix():
    cloud = point(18, 4)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    mean = torch.tensordot(weights / 10, M.dense(cloud), dims=1)
    u, s, vt = torch.linalg.svd(mean)
    expected = (u[:, :2] * s[:2]) @ vt[:2]
    assert torch.allclose(M.dense(M.frechet_mean(cloud, weights)), expected, atol=1e-13)


@pytest.mark.parametrize("name", ["expmap", "logmap", "dist"])
def test_what_has_no_closed_form_is_refused_by_name(name):
    x = point(21)
    with pytest.raises(NotImplementedError, match=f"FixedRank has no closed-form {name}"):
        getattr(M, name)(x, x)
    assert not M.has_logmap


def test_impossible_ranks_are_refused():
    with pytest.raises(ValueError, match=r"1 <= rank <= min\(3, 2\), got 3"):
        FixedRank(3, 2, 3)

"""The packed fixed-rank manifold means what its dense matrices mean."""

import pytest
import torch

from manifed.manifolds.fixed_rank import FixedRank, truncate

M = FixedRank(7, 5, 2)


def normals(seed: int, *size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def point(seed: int, *lead: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return M.random(*lead, *M.point_shape, generator=generator)


def test_the_metric_and_the_noise_are_those_of_the_ambient_matrices():
    x = point(1)
    u, v = (M.from_coords(x, normals(s, 3, *M.point_shape)) for s in (2, 3))
    product = (M.embed(x, u) * M.embed(x, v)).sum((-2, -1))
    assert torch.allclose(M.inner(x, u, v), product, rtol=1e-13)
    ambient = normals(4, 7, 5)
    gap = ambient - M.embed(x, M.project_ambient(x, ambient))
    assert float((gap * M.embed(x, u)).sum((-2, -1)).abs().max()) <= 1e-13


def test_the_retraction_is_the_truncated_svd_and_both_inverses_invert():
    x = point(5, 4)
    u = 0.1 * M.from_coords(x, normals(6, 4, *M.point_shape))
    moved = M.dense(x) + M.embed(x, u)
    assert torch.allclose(M.dense(M.retr(x, u)), M.dense(M.from_dense(moved)), atol=1e-13)
    assert torch.allclose(M.invretr(x, M.retr(x, u)), u, atol=1e-11)
    back = M.invretr_orthographic(x, M.retr_orthographic(x, u))
    assert torch.allclose(back, u, atol=1e-12)


def test_both_retractions_are_of_second_order():
    """Their difference from the geodesic is O(t^3), so is their difference from each other."""
    x = point(7)
    u = M.from_coords(x, normals(8, *M.point_shape))
    gaps = [
        float((M.dense(M.retr(x, t * u)) - M.dense(M.retr_orthographic(x, t * u))).norm())
        for t in (1e-2, 1e-3)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(1e3, rel=0.1)


def test_the_packing_of_a_retracted_point_is_continuous_at_its_base_point():
    x = point(9, 3)
    assert torch.allclose(M.retr(x, torch.zeros_like(x)), x, atol=1e-14)
    u = M.from_coords(x, normals(10, 3, *M.point_shape))
    assert float((M.retr(x, 1e-8 * u) - x).abs().max()) <= 1e-6


def test_the_gradient_of_autograd_through_dense_becomes_the_projected_ambient_gradient():
    x, target = point(11), normals(12, 7, 5)
    tracked = x.clone().requires_grad_()
    loss = (M.dense(tracked) - target).square().sum()
    packed = torch.autograd.grad(loss, tracked)[0]
    expected = M.project_ambient(x, 2 * (M.dense(x) - target))
    assert torch.allclose(M.egrad2rgrad(x, packed), expected, atol=1e-12)


def test_transport_is_the_projection_of_the_dense_vector():
    x, y = point(13), point(14)
    v = M.from_coords(x, normals(15, *M.point_shape))
    expected = M.project_ambient(y, M.embed(x, v))
    assert torch.allclose(M.transp(x, y, v), expected, atol=1e-13)


def test_gradient_descent_completes_a_low_rank_matrix():
    target = M.dense(point(16))
    x = M.from_dense(target + 0.1 * normals(17, 7, 5))
    start = float((M.dense(x) - target).norm())
    for _ in range(60):
        x = M.retr(x, -0.5 * M.project_ambient(x, M.dense(x) - target))
    assert float((M.dense(x) - target).norm()) <= 1e-12 * start


def test_the_mean_is_the_truncated_mean_matrix():
    cloud, weights = point(18, 4), torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    mean = torch.tensordot(weights / 10, M.dense(cloud), dims=1)
    u, s, vt = torch.linalg.svd(mean)
    expected = (u[:, :2] * s[:2]) @ vt[:2]
    assert torch.allclose(M.dense(M.frechet_mean(cloud, weights)), expected, atol=1e-13)


def test_noise_that_swamps_the_point_still_retracts_to_rank_two():
    x = point(19)
    u = 1e6 * M.from_coords(x, normals(20, *M.point_shape))
    y = M.retr(x, u)
    assert M.check_point_on_manifold(y, atol=1e-10)


@pytest.mark.parametrize("name", ["expmap", "logmap", "dist"])
def test_what_has_no_closed_form_is_refused_by_name(name: str):
    x = point(21)
    with pytest.raises(NotImplementedError, match=f"FixedRank has no closed-form {name}"):
        getattr(M, name)(x, x)
    assert not M.has_logmap


def test_impossible_ranks_are_refused():
    with pytest.raises(ValueError, match=r"1 <= rank <= min\(3, 2\), got 3"):
        FixedRank(3, 2, 3)


def test_the_truncation_has_the_derivative_of_finite_differences():
    """Also with zero and with repeated singular values below the cut."""

    def rank_two(a: torch.Tensor) -> torch.Tensor:
        left, right, core = truncate(a, 2)
        return left @ core @ right.mT

    generic = normals(22, 5, 4)
    degenerate = torch.diag(torch.tensor([3.0, 3.0, 1.0, 1.0]).double())
    low = M.dense(point(23))
    for matrix in (generic, degenerate, low):
        assert torch.autograd.gradcheck(rank_two, matrix.clone().requires_grad_(), atol=1e-6)

"""What holds for one problem alone: closed-form optima, scalings, kernel weights, constants."""

import math

import numpy as np
import pytest
import torch

from manifed.manifolds.spd import SPD
from manifed.problems import least_squares, matrix_completion, pca
from manifed.problems.base import Examples
from manifed.problems.federation import shards
from manifed.problems.finite_sum import client_weights
from manifed.problems.frechet_mean import FrechetMean
from manifed.problems.hyperbolic_prediction import HyperbolicPrediction, kernel_weights
from manifed.problems.least_squares import LeastSquares
from manifed.problems.logistic import Logistic
from manifed.problems.matrix_completion import MatrixCompletion
from manifed.problems.partition_specs import EqualSpec, NaturalSpec
from manifed.problems.pca import KPCA, PrincipalEigenvector, principal_angle, sum_scaling
from manifed.problems.problem_specs import PrincipalEigenvectorSpec
from manifed.problems.real_data import Digits
from manifed.problems.synthetic_data import SyntheticEigengap


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows(z: torch.Tensor) -> Examples:
    return Examples({"z": z}, {"z": 1})


def test_the_digits_optimum_is_the_measured_one():
    parts = shards(PrincipalEigenvectorSpec(), Digits(), EqualSpec(), 10, 0)
    assert PrincipalEigenvector().optimum(parts).value == pytest.approx(-0.690581, abs=1e-6)


def test_a_shared_basis_has_optimum_minus_one_over_rows():
    """The mean of N_i = 70 rows of U S V has top eigenvalue 1/70."""
    data = SyntheticEigengap(is_shared_basis=True)
    parts = shards(PrincipalEigenvectorSpec(), data, NaturalSpec(), 16, 0)
    assert PrincipalEigenvector().optimum(parts).value == pytest.approx(-1 / 70, rel=1e-12)


def test_pca_norms_are_never_below_the_exact_norm():
    """Near-parallel rows: the subtraction |z|^2 - s^2 cancels, and the result errs upwards.

    Down to the angle 2^-12, at which nearer rows count.
    """
    x = torch.nn.functional.normalize(normal(0, 50), dim=0)
    away = normal(1, 40, 50)
    away = away - (away @ x).unsqueeze(-1) * x
    tilt = torch.logspace(-12, 0, 40, dtype=torch.float64).unsqueeze(-1)
    z = 3.0 * (x + tilt * torch.nn.functional.normalize(away, dim=-1))
    for problem, point in ((PrincipalEigenvector(), x), (KPCA(1), x.unsqueeze(-1))):
        exact = problem.manifold.norm(point.unsqueeze(0), problem.rgrads(point, rows(z)))
        found = problem.rgrad_norms(point, rows(z))
        assert bool((found >= exact * (1 - 1e-15)).all())
        nearest = 2.0**-12 * 18
        assert bool((found <= exact.clamp_min(nearest) * (1 + 1e-6)).all())


def test_kpca_with_one_component_is_half_the_principal_eigenvector():
    z, x = normal(0, 9, 5), torch.nn.functional.normalize(normal(1, 5), dim=0)
    one, two = KPCA(1), PrincipalEigenvector()
    half = two.rgrads(x, rows(z)) / 2
    assert torch.allclose(one.losses(x.unsqueeze(-1), rows(z)), two.losses(x, rows(z)) / 2)
    assert torch.allclose(one.rgrads(x.unsqueeze(-1), rows(z)).squeeze(-1), half, atol=1e-13)


def test_kpca_scaled_to_sums_is_the_papers_objective():
    """f_i = -1/2 tr(x^T A_i^T A_i x) and f = (1/n) sum_i f_i, f* = -1/2 sum of top eigenvalues."""
    blocks = [normal(i, 4 + i, 6) for i in range(3)]
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    parts = [sum_scaling(rows(a)) for a in blocks]
    problem = KPCA(2)
    x = problem.manifold.random(6, 2, generator=torch.Generator().manual_seed(0))
    expected = sum(-0.5 * torch.trace(x.mT @ a.mT @ a @ x) for a in blocks) / 3
    assert torch.allclose(problem.objective(x, parts, uniform), expected, rtol=1e-12)
    moment = torch.stack([a.mT @ a for a in blocks]).mean(0)
    top = torch.linalg.eigvalsh(moment)[-2:].sum()
    assert problem.optimum(parts, uniform).value == pytest.approx(-0.5 * float(top), rel=1e-12)


def test_principal_angle_is_accurate_near_zero_and_near_a_right_angle():
    basis = torch.eye(5, dtype=torch.float64)
    for angle in (1e-9, 1e-3, 0.7, math.pi / 2 - 1e-9, math.pi / 2):
        turned = math.cos(angle) * basis[:, 1] + math.sin(angle) * basis[:, 2]
        y = torch.stack([basis[:, 0], turned], dim=-1)
        assert float(principal_angle(basis[:, :2], y)) == pytest.approx(angle, rel=1e-9)


def test_the_frechet_mean_of_two_matrices_is_their_geometric_mean():
    a, b = (
        torch.diag(torch.tensor([1.0, 4.0])).double(),
        torch.diag(torch.tensor([9.0, 1.0])).double(),
    )
    found = FrechetMean(SPD()).optimum([rows_of(torch.stack([a, b]))])
    assert torch.allclose(found.x, torch.diag(torch.tensor([3.0, 2.0])).double(), atol=1e-9)


def test_the_shared_factor_changes_no_value_of_the_spd_mean():
    from manifed.problems.spd_mean import SPDMean
    from manifed.problems.synthetic import lognormal_spd

    z = torch.tensor(lognormal_spd(30, 5, np.random.default_rng(0), condition=1e6))
    shard, x = rows_of(z[:29]), z[29]
    plain, shared = FrechetMean(SPD(), -0.5), SPDMean()
    weights = torch.rand(29, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(plain.losses(x, shard), shared.losses(x, shard), rtol=1e-9)
    gap = plain.rgrad_sum(x, shard, weights) - shared.rgrad_sum(x, shard, weights)
    size = plain.manifold.norm(x, plain.rgrad_sum(x, shard, weights))
    assert float(plain.manifold.norm(x, gap)) <= 1e-9 * float(size)


@pytest.mark.parametrize(("size", "condition", "parts"), [(4, 3.0, 1), (6, 1e6, 3)])
def test_the_mean_of_many_matrices_is_stationary_and_that_of_the_plain_descent(
    size, condition, parts, monkeypatch
):
    from manifed.problems import spd_mean
    from manifed.problems.synthetic import lognormal_spd

    monkeypatch.setattr(spd_mean, "_ENTRIES", 10 * size * size)  # rows in several parts
    z = torch.tensor(lognormal_spd(33, size, np.random.default_rng(1), condition=condition))
    shards = [rows_of(part) for part in z.chunk(parts)]
    weights = torch.arange(1.0, parts + 1, dtype=torch.float64)
    problem = spd_mean.SPDMean()
    found = problem.optimum(shards, weights)
    plain = FrechetMean(SPD()).optimum(shards, weights)
    # f is 2-strongly convex: its minimiser is no farther than half a gradient norm from either
    off = found.gradient_norm + plain.gradient_norm
    assert float(SPD().dist(found.x, plain.x)) <= 1e-10 + off < 1e-6
    assert found.value == pytest.approx(plain.value, rel=1e-10)
    assert float(problem.gradient_norm(found.x, shards, weights)) <= 1e-10 * (1 + found.value)
    rough = problem.optimum(shards, weights, tolerance=1e-3)
    assert found.gradient_norm < rough.gradient_norm <= 1e-3 * (1 + rough.value)


def test_many_small_shards_evaluate_like_few():
    parts = [rows(normal(i, 3, 4)) for i in range(5)]
    x = torch.nn.functional.normalize(normal(9, 4), dim=0)
    problem = PrincipalEigenvector()
    share = client_weights(parts)
    expected = sum(p * problem.losses(x, s).mean() for p, s in zip(share, parts, strict=True))
    assert torch.allclose(problem.objective(x, parts), expected, rtol=1e-13)


def rows_of(z: torch.Tensor) -> Examples:
    return Examples({"z": z}, {"z": z.dim() - 1})


def test_a_frechet_mean_refuses_a_manifold_without_logarithm():
    from manifed.manifolds.fixed_rank import FixedRank

    with pytest.raises(ValueError, match="FixedRank has none"):
        FrechetMean(FixedRank(4, 3, 1))


@pytest.mark.parametrize(
    ("width", "rule", "scale", "gamma"),
    [
        ("printed", "printed", 4 * 0.09, 1e-3),
        ("rbf", "printed", 2 * 0.09, 1e-3),
        ("printed", "times-examples", 4 * 0.09, 1e-3 * 12),
        ("rbf", "times-examples", 2 * 0.09, 1e-3 * 12),
    ],
)
def test_kernel_weights_solve_the_stated_system(width, rule, scale, gamma):
    features, query = normal(0, 12, 3), normal(1, 3)
    alpha = kernel_weights(
        features, query, bandwidth=0.3, ridge=1e-3, kernel_width=width, ridge_rule=rule
    )
    for i in range(12):
        gram = torch.exp(-(features - features[i]).square().sum(-1) / scale)
        right = torch.exp(-(features[i] - query).square().sum() / scale)
        assert float(gram @ alpha + gamma * alpha[i] - right) == pytest.approx(0, abs=1e-12)


def test_kernel_weights_of_a_training_feature_select_it():
    features = normal(0, 8, 3)
    alpha = kernel_weights(features, features[5], ridge=1e-9)
    assert int(alpha.argmax()) == 5
    assert float(alpha[5]) == pytest.approx(1.0, abs=1e-3)


def test_positive_weights_pull_towards_their_targets():
    """The printed gradient has the wrong sign: minus it must point from x to y."""
    problem = HyperbolicPrediction()
    x = problem.manifold.random(3, generator=torch.Generator().manual_seed(0))
    y = problem.manifold.random(3, generator=torch.Generator().manual_seed(1))
    shard = Examples(
        {"target": y.unsqueeze(0), "weight": torch.ones(1, dtype=torch.float64)},
        {"target": 1, "weight": 0},
    )
    nearer = problem.manifold.expmap(x, -0.1 * problem.rgrads(x, shard)[0])
    before = problem.manifold.dist(x, y)
    assert float(problem.manifold.dist(nearer, y)) == pytest.approx(0.8 * float(before), rel=1e-9)


def test_decor_least_squares_has_its_closed_form_optimum():
    """x* = (sum A_i^2)^{-1} sum A_i b_i for uniform clients."""
    parts, a, b = [], [], []
    for i in range(1, 5):
        scale, target = i / 2.0, normal(i, 3) / i
        feature = scale * torch.eye(3, dtype=torch.float64)
        parts.append(
            least_squares.sum_scaling(
                Examples({"feature": feature, "target": target}, {"feature": 1, "target": 0})
            )
        )
        a.append(scale**2)
        b.append(scale * target)
    found = LeastSquares().optimum(parts)
    assert torch.allclose(found.x, torch.stack(b).sum(0) / sum(a), rtol=1e-12, atol=1e-12)


def test_logistic_losses_are_stable_at_large_margins():
    shard = Examples(
        {
            "feature": torch.tensor([[1000.0], [1000.0]], dtype=torch.float64),
            "label": torch.tensor([1.0, -1.0], dtype=torch.float64),
        },
        {"feature": 1, "label": 0},
    )
    losses = Logistic().losses(torch.ones(1, dtype=torch.float64), shard)
    assert losses.tolist() == [0.0, 1000.0]


def completion(seed: int, columns: int = 30, *, seen: float = 0.8) -> tuple[Examples, torch.Tensor]:
    left, right = normal(seed, 8, 2), normal(seed + 100, 2, columns)
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand((columns, 8), generator=generator) < seen).double()
    column = mask * (left @ right).mT
    basis = torch.linalg.qr(left).Q
    return Examples({"column": column, "mask": mask}, {"column": 1, "mask": 1}), basis


def test_exact_completion_recovers_the_subspace():
    shard, basis = completion(0)
    problem = MatrixCompletion(2, "grassmann")
    found = problem.optimum([shard])
    assert found.value == pytest.approx(0.0, abs=1e-15)
    metrics = problem.metrics(found.x, found, {"true_basis": basis})
    assert metrics["angle_to_truth"] < 1e-6


def test_completion_depends_on_the_span_alone():
    shard, _ = completion(1)
    problem = MatrixCompletion(2)
    x = problem.manifold.random(8, 2, generator=torch.Generator().manual_seed(0))
    turn = torch.linalg.qr(normal(5, 2, 2)).Q
    assert torch.allclose(problem.losses(x, shard), problem.losses(x @ turn, shard), atol=1e-12)


def test_a_column_seen_too_rarely_takes_the_coefficients_of_least_norm():
    shard, _ = completion(2)
    mask = shard["mask"].clone()
    mask[0], mask[1], mask[1, 3] = 0.0, 0.0, 1.0
    rare = Examples({"column": shard["column"] * mask, "mask": mask}, shard.feature_ndim)
    problem = MatrixCompletion(2)
    x = problem.manifold.random(8, 2, generator=torch.Generator().manual_seed(0))
    v = problem.coefficients(x, rare)
    seen = mask[1].bool()
    least = torch.linalg.lstsq(x[seen], rare["column"][1, seen].unsqueeze(-1), driver="gelsd")
    assert torch.equal(v[0], torch.zeros(2, dtype=torch.float64))
    assert torch.allclose(v[1], least.solution.squeeze(-1), atol=1e-12)
    alone = problem.coefficients(x, rare.take(torch.arange(2, 30)))
    assert torch.allclose(v[2:], alone, rtol=1e-12, atol=1e-12)


def test_completion_scaled_to_sums_is_the_papers_objective():
    shard, _ = completion(3)
    problem = MatrixCompletion(2)
    x = problem.manifold.random(8, 2, generator=torch.Generator().manual_seed(0))
    total = problem.losses(x, shard).sum()
    scaled = matrix_completion.sum_scaling(shard)
    assert torch.allclose(problem.losses(x, scaled).mean(), total, rtol=1e-12)


def test_client_weights_are_checked():
    parts = [rows(normal(0, 3, 2)), rows(normal(1, 5, 2))]
    with pytest.raises(ValueError, match="Expected 2 weights, got shape"):
        client_weights(parts, torch.ones(3))
    with pytest.raises(ValueError, match="at least one shard"):
        client_weights([])


def test_stored_squared_norms_change_nothing():
    shard = rows(normal(0, 9, 5))
    stored = PrincipalEigenvectorSpec().prepare(shard, {})
    x = torch.nn.functional.normalize(normal(1, 5), dim=0)
    problem = PrincipalEigenvector()
    norms = problem.rgrad_norms(x, stored)
    torch.testing.assert_close(norms, problem.rgrad_norms(x, shard), rtol=1e-13, atol=0)
    chosen = stored.take(torch.tensor([4, 2]))
    torch.testing.assert_close(problem.rgrad_norms(x, chosen), norms[[4, 2]], rtol=1e-13, atol=0)
    largest = pca.largest_squared_norm([shard])
    assert pca.largest_squared_norm([stored]) == pytest.approx(largest, rel=1e-14)

"""What holds for one problem alone: closed-form optima, scalings, kernel weights, constants."""

import math

import pytest
import torch

from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean, HyperbolicPrediction
from manifed.problems.linear import Logistic
from manifed.problems.pca import KPCA, PrincipalEigenvector, principal_angle
from manifed.problems.problem import client_weights
from manifed.problems.rows import sum_scaling
from reproduction.matrix_completion import MatrixCompletion
from tests.conformance.manifold_cases import float64, generator, normals


def test_kpca_scaled_to_sums_is_the_papers_objective():
    """f_i = -1/2 tr(x^T A_i^T A_i x) and f = (1/n) sum_i f_i."""
    blocks = [normals(i, 4 + i, 6) for i in range(3)]
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    parts = [sum_scaling(Examples({"z": a}), None, "z") for a in blocks]
    problem = KPCA(2)
    x = problem.manifold.random(6, 2, generator=generator(0))
    expected = sum(-0.5 * torch.trace(x.mT @ a.mT @ a @ x) for a in blocks) / 3
    assert torch.allclose(problem.objective(x, parts, uniform), expected, rtol=1e-12)


def test_principal_angle_is_accurate_near_zero_and_near_a_right_angle():
    basis = torch.eye(5).double()
    for angle in (1e-9, 1e-3, 0.7, math.pi / 2 - 1e-9, math.pi / 2):
        turned = math.cos(angle) * basis[:, 1] + math.sin(angle) * basis[:, 2]
        y = torch.stack([basis[:, 0], turned], dim=-1)
        assert float(principal_angle(basis[:, :2], y)) == pytest.approx(angle, rel=1e-9)


def test_a_frechet_mean_refuses_a_manifold_without_logarithm():
    from manifed_extras.fixed_rank import FixedRank

    with pytest.raises(ValueError, match="FixedRank has none"):
        FrechetMean(FixedRank(4, 3, 1))


@pytest.mark.parametrize(("width", "scale"), [("printed", 4 * 0.09), ("rbf", 2 * 0.09)])
@pytest.mark.parametrize(("rule", "gamma"), [("printed", 1e-3), ("times-examples", 12e-3)])
def test_kernel_weights_solve_the_stated_system(width, rule, scale, gamma):
    features = normals(0, 12, 3)
    query = normals(1, 3)
    problem = HyperbolicPrediction(bandwidth=0.3, ridge=1e-3, kernel_width=width, ridge_rule=rule)
    shard = Examples({"feature": features, "target": normals(2, 12, 3)})
    alpha = problem.prepare(shard, {"query_feature": query})["weight"]
    gram, right = (
        torch.exp(-(features - other).square().sum(-1) / scale)
        for other in (features[:, None], query)
    )
    assert (gram @ alpha + gamma * alpha - right).abs().max() <= 1e-12


def test_logistic_losses_are_stable_at_large_margins():
    label = float64([1.0, -1.0])
    shard = Examples({"feature": 1000 * label.abs()[:, None], "label": label})
    losses = Logistic().losses(torch.ones(1).double(), shard)
    assert losses.tolist() == [0.0, 1000.0]


def completion(seed):
    mask = (torch.rand((30, 8), generator=generator(seed)) < 0.8).double()
    column = mask * (normals(seed, 8, 2) @ normals(seed + 100, 2, 30)).mT
    return Examples({"column": column, "mask": mask})


def test_a_column_seen_too_rarely_takes_the_coefficients_of_least_norm():
    shard = completion(2)
    mask = shard["mask"].clone()
    mask[0], mask[1], mask[1, 3] = 0.0, 0.0, 1.0
    rare = Examples({"column": shard["column"] * mask, "mask": mask})
    problem = MatrixCompletion(2)
    x = problem.manifold.random(8, 2, generator=generator(0))
    v = problem.coefficients(x, rare)
    seen = mask[1].bool()
    least = torch.linalg.lstsq(x[seen], rare["column"][1, seen].unsqueeze(-1), driver="gelsd")
    assert torch.equal(v[0], torch.zeros(2).double())
    assert torch.allclose(v[1], least.solution.squeeze(-1), atol=1e-12)
    alone = problem.coefficients(x, rare.take(torch.arange(2, 30)))
    assert torch.allclose(v[2:], alone, rtol=1e-12, atol=1e-12)


def test_client_weights_are_checked():
    parts = [Examples({"z": normals(0, 3, 2)}), Examples({"z": normals(1, 5, 2)})]
    with pytest.raises(ValueError, match="Expected 2 weights, got shape"):
        client_weights(parts, torch.ones(3))
    with pytest.raises(ValueError, match="at least one shard"):
        client_weights([])


def test_pca_norms_are_never_below_the_exact_norm():
    """Near-parallel rows: the subtraction |z|^2 - s^2 cancels, and the result errs upwards.

    Down to the angle 2^-12, at which nearer rows count.
    """
    x = torch.nn.functional.normalize(normals(0, 50), dim=0)
    away = normals(1, 40, 50)
    away = away - (away @ x).unsqueeze(-1) * x
    tilt = torch.logspace(-12, 0, 40, dtype=torch.float64).unsqueeze(-1)
    z = 3.0 * (x + tilt * torch.nn.functional.normalize(away, dim=-1))
    for problem, point in ((PrincipalEigenvector(), x), (KPCA(1), x.unsqueeze(-1))):
        exact = problem.manifold.norm(point.unsqueeze(0), problem.rgrads(point, Examples({"z": z})))
        found = problem.gradients(point, Examples({"z": z})).norms
        assert (found >= exact * (1 - 1e-15)).all()
        nearest = 2.0**-12 * 18
        assert (found <= exact.clamp_min(nearest) * (1 + 1e-6)).all()

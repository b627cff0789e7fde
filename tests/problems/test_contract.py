"""What every problem promises: gradients, norms, sums, broadcasting, stationarity, no mutation."""

import pytest
import torch

from manifed.problems.base import Examples
from manifed.problems.finite_sum import client_weights, pool

SEEDS = [0, 1, 2]


def _clone(examples: Examples) -> dict[str, torch.Tensor]:
    return {key: tensor.clone() for key, tensor in examples.tensors.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_are_the_riemannian_gradients_of_autograd(case, seed):
    examples, x = case.examples(seed, 7), case.point(seed)
    manifold = case.problem.manifold
    gradients = case.problem.rgrads(x, examples)
    for j in range(7):
        leaf = x.clone().requires_grad_()
        loss = case.problem.losses(leaf, examples)[j]
        (egrad,) = torch.autograd.grad(loss, leaf)
        expected = manifold.egrad2rgrad(x, egrad)
        scale = 1 + float(manifold.norm(x, expected))
        assert float(manifold.norm(x, gradients[j] - expected)) <= 1e-9 * scale


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_match_differences_along_the_exponential_map(case, seed):
    examples, x = case.examples(seed, 5), case.point(seed)
    manifold, h = case.problem.manifold, 1e-5
    generator = torch.Generator().manual_seed(seed)
    shape = manifold.coords_shape(tuple(x.shape))
    c = torch.randn(shape, generator=generator, dtype=torch.float64)
    u = manifold.from_coords(x, c)
    u = u / manifold.norm(x, u)
    ahead = case.problem.losses(manifold.expmap(x, h * u), examples)
    behind = case.problem.losses(manifold.expmap(x, -h * u), examples)
    gradients = case.problem.rgrads(x, examples)
    slopes = manifold.inner(x.unsqueeze(0), gradients, u.unsqueeze(0).expand_as(gradients))
    assert torch.allclose((ahead - behind) / (2 * h), slopes, rtol=1e-6, atol=1e-7)


def test_gradients_are_tangent(case):
    examples, x = case.examples(0, 7), case.point(0)
    manifold = case.problem.manifold
    for g in case.problem.rgrads(x, examples):
        assert torch.allclose(manifold.proju(x, g), g, atol=1e-12, rtol=1e-12)


def test_norms_and_sums_are_those_of_the_gradients(case):
    examples, x = case.examples(3, 8), case.point(3)
    manifold = case.problem.manifold
    weights = torch.rand(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = case.problem.rgrads(x, examples)
    norms = manifold.norm(x.unsqueeze(0), gradients)
    assert torch.allclose(case.problem.rgrad_norms(x, examples), norms, rtol=1e-11, atol=1e-12)
    total = (manifold.expand_scalar(weights) * gradients).sum(0)
    assert torch.allclose(
        case.problem.rgrad_sum(x, examples, weights), total, rtol=1e-12, atol=1e-12
    )


def test_the_sum_weighted_by_norm_is_the_sum_of_clipped_gradients(case):
    examples, x = case.examples(4, 8), case.point(4)
    each, manifold = case.problem.gradients(x, examples), case.problem.manifold
    factors = (each.norms.median() / each.norms).clamp_max(1.0)
    clipped = manifold.expand_scalar(factors) * case.problem.rgrads(x, examples)
    assert torch.allclose(each.sum(factors), clipped.sum(0), rtol=1e-11, atol=1e-12)


def test_a_stacked_cohort_equals_a_loop_over_its_clients(case):
    clients = [case.examples(seed, 6) for seed in range(4)]
    x = case.point(0, 4)
    cohort = Examples.stack(clients)
    weights = torch.rand((4, 6), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    problem = case.problem
    for i, shard in enumerate(clients):
        pairs = [
            (problem.losses(x, cohort), problem.losses(x[i], shard)),
            (problem.rgrads(x, cohort), problem.rgrads(x[i], shard)),
            (problem.rgrad_norms(x, cohort), problem.rgrad_norms(x[i], shard)),
            (problem.rgrad_sum(x, cohort, weights), problem.rgrad_sum(x[i], shard, weights[i])),
        ]
        for together, alone in pairs:
            assert torch.allclose(together[i], alone, rtol=1e-12, atol=1e-12)


def test_many_points_meet_one_shard(case):
    shard, x = case.examples(0, 6), case.point(0, 3)
    weights = torch.full((3, 6), 1 / 6, dtype=torch.float64)
    together = case.problem.rgrad_sum(x, shard, weights)
    for i in range(3):
        alone = case.problem.rgrad_sum(x[i], shard, weights[i])
        assert torch.allclose(together[i], alone, rtol=1e-12, atol=1e-12)
    assert case.problem.losses(x, shard).shape == (3, 6)


def test_zero_weight_leaves_an_example_out(case):
    shard, x = case.examples(0, 6), case.point(0)
    kept = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    chosen = shard.take(torch.tensor([0, 1, 3, 5]))
    ones = torch.ones(4, dtype=torch.float64)
    whole = case.problem.rgrad_sum(x, shard, kept)
    assert torch.allclose(whole, case.problem.rgrad_sum(x, chosen, ones), rtol=1e-12, atol=1e-12)


def test_nothing_changes_its_arguments(case):
    shards, x = [case.examples(0, 6), case.examples(1, 4)], case.point(0)
    before, copy = [_clone(shard) for shard in shards], x.clone()
    problem, weights = case.problem, torch.ones(6, dtype=torch.float64)
    problem.losses(x, shards[0])
    problem.rgrads(x, shards[0])
    problem.rgrad_norms(x, shards[0])
    problem.rgrad_sum(x, shards[0], weights)
    problem.objective(x, shards)
    problem.gradient(x, shards)
    problem.metrics(x, problem.optimum(shards), {})
    assert torch.equal(x, copy)
    for shard, saved in zip(shards, before, strict=True):
        assert all(torch.equal(shard[key], saved[key]) for key in saved)


def test_objective_and_gradient_are_the_weighted_means_over_clients(case):
    shards, x = [case.examples(0, 6), case.examples(1, 3)], case.point(0)
    share = torch.tensor([0.25, 0.75], dtype=torch.float64)
    values = [case.problem.losses(x, s).mean() for s in shards]
    expected = 0.25 * values[0] + 0.75 * values[1]
    assert torch.allclose(case.problem.objective(x, shards, share), expected, rtol=1e-12)
    examples, each = pool(shards, share)
    assert torch.allclose(
        case.problem.gradient(x, shards, share),
        case.problem.rgrad_sum(x, examples, each),
        rtol=1e-12,
        atol=1e-12,
    )
    assert torch.allclose(client_weights(shards), torch.tensor([6 / 9, 3 / 9], dtype=torch.float64))


def test_the_optimum_is_stationary_and_no_random_point_beats_it(solvable):
    shards = [solvable.examples(5, 30), solvable.examples(5, 20)]
    found = solvable.problem.optimum(shards)
    assert found.gradient_norm <= 1e-8 * (1 + abs(found.value))
    assert float(solvable.problem.objective(found.x, shards)) == pytest.approx(
        found.value, rel=1e-12
    )
    best = float(solvable.problem.objective(solvable.point(5, 50), shards).min())
    assert found.value <= best


def test_steepest_descent_reaches_the_optimum(solvable):
    shards = [solvable.examples(6, 40)]
    optimum = solvable.problem.optimum(shards)
    x = solvable.point(0)
    found = solvable.problem.descend_from(x, shards)
    assert found.is_converged
    assert found.value <= optimum.value + 1e-8 * (1 + abs(optimum.value))


def test_constants_bound_the_gradients(case):
    shards = [case.examples(7, 20)]
    bound = case.problem.lipschitz(shards).value
    for seed in range(5):
        x = case.point(seed)
        if case.problem.manifold.has_logmap and "Frechet" in type(case.problem).__name__:
            x = shards[0]["z"][seed]
        assert float(case.problem.rgrad_norms(x, shards[0]).max()) <= bound * (1 + 1e-12)
    assert case.problem.smoothness(shards).value > 0

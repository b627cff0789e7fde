"""What every problem promises: gradients, norms, sums, broadcasting, stationarity, no mutation."""

import pytest
import torch

from manifed.problems.examples import Examples
from manifed.problems.problem import client_weights, pool

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_are_the_riemannian_gradients_of_autograd(case, seed):
    examples = case.examples(seed, 7)
    x = case.point(seed)
    manifold = case.problem.manifold
    gradients = case.problem.rgrads(x, examples)
    for j in range(7):
        leaf = x.clone().requires_grad_()
        loss = case.problem.losses(leaf, examples)[j]
        (egrad,) = torch.autograd.grad(loss, leaf)
        expected = manifold.egrad2rgrad(x, egrad)
        scale = 1 + float(manifold.norm(x, expected))
        assert float(manifold.norm(x, gradients[j] - expected)) <= 1e-9 * scale


def test_norms_and_sums_are_those_of_the_gradients(case):
    examples = case.examples(3, 8)
    x = case.point(3)
    manifold = case.problem.manifold
    weights = torch.rand(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = case.problem.rgrads(x, examples)
    norms = manifold.norm(x.unsqueeze(0), gradients)
    assert torch.allclose(case.problem.gradients(x, examples).norms, norms, rtol=1e-11, atol=1e-12)
    total = (manifold.expand_scalar(weights) * gradients).sum(0)
    assert torch.allclose(
        case.problem.gradients(x, examples).sum(weights), total, rtol=1e-12, atol=1e-12
    )


def test_a_stacked_cohort_equals_a_loop_over_its_clients(case):
    clients = [case.examples(seed, 6) for seed in range(4)]
    x = case.point(0, 4)
    cohort = Examples.stack(clients)
    weights = torch.rand((4, 6), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    problem = case.problem
    for i, shard in enumerate(clients):
        together = problem.gradients(x, cohort)
        alone = problem.gradients(x[i], shard)
        pairs = [
            (problem.losses(x, cohort), problem.losses(x[i], shard)),
            (problem.rgrads(x, cohort), problem.rgrads(x[i], shard)),
            (together.norms, alone.norms),
            (together.sum(weights), alone.sum(weights[i])),
        ]
        for all_of_them, one in pairs:
            assert torch.allclose(all_of_them[i], one, rtol=1e-12, atol=1e-12)


def test_nothing_changes_its_arguments(case):
    shard = case.examples(0, 6)
    x = case.point(0)
    problem = case.problem
    held = [x, *shard.tensors.values()]
    before = [tensor.clone() for tensor in held]
    found = problem.gradients(x, shard)
    found.sum(torch.ones_like(found.norms))
    problem.rgrads(x, shard)
    problem.metrics(x, problem.optimum([shard]), {})
    assert all(torch.equal(one, other) for one, other in zip(held, before, strict=True))


def test_objective_and_gradient_are_the_weighted_means_over_clients(case):
    shards = [case.examples(0, 6), case.examples(1, 3)]
    x = case.point(0)
    share = torch.tensor([0.25, 0.75], dtype=torch.float64)
    values = [case.problem.losses(x, s).mean() for s in shards]
    expected = 0.25 * values[0] + 0.75 * values[1]
    assert torch.allclose(case.problem.objective(x, shards, share), expected, rtol=1e-12)
    examples, each = pool(shards, share)
    assert torch.allclose(
        case.problem.gradient(x, shards, share),
        case.problem.gradients(x, examples).sum(each),
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

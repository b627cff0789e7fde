"""What every problem promises: gradients, norms, sums, broadcasting, stationarity, no mutation."""

import pytest
import torch

from manifed.problems.examples import Examples
from manifed.problems.problem import client_weights, pool
from tests.conformance.manifold_cases import float64, generator


@pytest.mark.parametrize("seed", range(3))
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
        assert manifold.norm(x, gradients[j] - expected) <= 1e-9 * (1 + manifold.norm(x, expected))


def test_norms_and_sums_are_those_of_the_gradients(case):
    examples = case.examples(3, 8)
    x = case.point(3)
    manifold = case.problem.manifold
    weights = torch.rand(8, generator=generator(0)).double()
    gradients = case.problem.rgrads(x, examples)
    norms = manifold.norm(x.unsqueeze(0), gradients)
    found = case.problem.gradients(x, examples)
    assert torch.allclose(found.norms, norms, rtol=1e-11, atol=1e-12)
    total = (manifold.expand_scalar(weights) * gradients).sum(0)
    assert torch.allclose(found.sum(weights), total, rtol=1e-12, atol=1e-12)


def test_a_stacked_cohort_equals_a_loop_over_its_clients(case):
    clients = [case.examples(seed, 6) for seed in range(4)]
    x = case.point(0, 4)
    cohort = Examples.stack(clients)
    weights = torch.rand((4, 6), generator=generator(1)).double()

    def everything(x, examples, weights):
        found = case.problem.gradients(x, examples)
        yield case.problem.losses(x, examples)
        yield case.problem.rgrads(x, examples)
        yield from (found.norms, found.sum(weights))

    for i, shard in enumerate(clients):
        pairs = zip(
            everything(x, cohort, weights), everything(x[i], shard, weights[i]), strict=True
        )
        for together, alone in pairs:
            assert torch.allclose(together[i], alone, rtol=1e-12, atol=1e-12)


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
    share = float64([0.25, 0.75])
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
    assert torch.allclose(client_weights(shards), float64([6, 3]) / 9)


def test_the_optimum_is_stationary_and_no_random_point_beats_it(solvable):
    shards = [solvable.examples(5, 30), solvable.examples(5, 20)]
    found = solvable.problem.optimum(shards)
    assert found.gradient_norm <= 1e-8 * (1 + abs(found.value))
    objective = solvable.problem.objective
    assert float(objective(found.x, shards)) == pytest.approx(found.value, rel=1e-12)
    assert found.value <= objective(solvable.point(5, 50), shards).min()

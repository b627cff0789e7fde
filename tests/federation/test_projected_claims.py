"""The numeric claims of the projected federated learning paper, as tests (spec 001 §8)."""

import pytest
import torch

from manifed.algorithms.projected import Projected
from manifed.oracles.minibatch import WithoutReplacement
from manifed.privacy.noise import NoiseSource
from manifed.problems.pca import KPCA
from reproduction.checks_001 import CHECKS
from reproduction.projected_theory import (
    initial_gap,
    optimality_measure,
    stationarity_bound,
    theory_stepsize,
)
from tests.algorithms.test_projected import local_gradients, pca_shards, start
from tests.conformance.federated_loop import federate
from tests.federation.test_projected_theory import client_constants

NOT_HERE = {"C12", "C13", "EQUAL", "PAIR", "STEP"}
"""Times, and searches of a minute on a slow machine: `python -m reproduction 001` runs them."""


@pytest.mark.slow
@pytest.mark.parametrize("claim", [name for name in CHECKS if name not in NOT_HERE])
def test_the_claim_holds(claim):
    found = CHECKS[claim]()
    assert found.verdict == "reproduced", found.numbers


def sampling_variance(problem, x, shards, batch):
    """sigma^2 of Assumption 4.2 at x: batch times the variance of the worst client's mean."""
    worst = 0.0
    for shard in shards:
        each = problem.rgrads(x, shard)
        spread = (each - each.mean(0)).square().sum() / (len(shard) - 1)
        worst = max(worst, float(spread) * (1 - batch / len(shard)))
    return worst


@pytest.mark.slow
def test_the_bound_of_theorem_4_3_holds_with_sampling_on_average():
    problem, shards, batch, rounds = KPCA(3), pca_shards(), 2, 10
    x, constants = start(problem, shards), client_constants(shards, 3)
    eta, server = theory_stepsize(constants, 6, 5)
    update = Projected(
        step_size=eta,
        local_steps=5,
        server_step_size=server,
        minibatch=WithoutReplacement(batch_size=batch),
    )
    gap = float(problem.objective(x, shards)) - problem.optimum(shards).value
    omega = initial_gap(gap, local_gradients(problem, x, shards), eta, server, 5)
    squares, variance = [], 0.0
    for seed in range(20):
        here, source = x, NoiseSource.from_seed(seed)
        for played in federate(problem, shards, update, update, x, rounds, source=source):
            g = optimality_measure(
                here, problem.gradient(here, shards), eta * server * 5, problem.manifold
            )
            squares.append(float(g.square().sum()))
            variance = max(variance, sampling_variance(problem, here, shards, batch))
            here = played.state["anchor"]
    bound = stationarity_bound(omega, 6, eta, 5, rounds, variance, batch)
    assert 0 < sum(squares) / len(squares) <= bound


def test_drift_inside_a_round_is_bounded():
    """(28) with the constants doubled as its proof needs (spec 001, A13), without sampling."""
    problem, shards = KPCA(3), pca_shards()
    constants = client_constants(shards, 3)
    eta, tau, n = theory_stepsize(constants, 6, 5)[0], 5, 6
    update, x = Projected(step_size=eta, local_steps=tau), start(problem, shards)
    before = torch.zeros(n, *x.shape, dtype=torch.float64)
    for played in federate(problem, shards, update, update, x, 10):
        full = problem.gradient(x, shards)
        lag = eta * tau * (full + before.mean(0) - before)
        c, z_hat, drift = before.mean(0) - before, x.expand_as(before), 0.0
        for _ in range(tau):
            z = problem.manifold.projx(z_hat)
            drift += float((z - x).square().sum())
            z_hat = z_hat - eta * (local_gradients(problem, z, shards) + c)
        own = lag - lag.mean(0)
        first = 3 * n * constants.growth**2 * tau**3 * eta**2 * float(full.square().sum())
        assert drift <= first + 18 * tau * float(own.square().sum())
        x, before = played.state["anchor"], played.memory.mean_gradient

"""Theorem 4.3: its constants, step sizes and bound hold in runs."""

import math

import pytest
import torch

from manifed.algorithms.projected import Projected
from manifed.oracles.minibatch import Full, WithoutReplacement
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.pca import KPCA
from reproduction.projected_theory import (
    initial_gap,
    largest_total_step,
    optimality_measure,
    stationarity_bound,
    stiefel_constants,
    theory_stepsize,
)
from tests.algorithms.test_projected import local_gradients, pca_shards, start
from tests.conformance.federated_loop import federate
from tests.conformance.manifold_cases import generator, normals

PROBLEM = KPCA(3)
STIEFEL = PROBLEM.manifold


def client_constants(shards):
    """L_hat and D_f of f_i as one sample each: eigenvalues of A_i^T A_i."""
    grams = torch.stack([s["z"].mT @ s["z"] / len(s) for s in shards])
    largest = torch.linalg.eigvalsh(grams)[:, -3:]
    return stiefel_constants(3, float(largest.max()), float(largest.norm(dim=1).max()))


def test_theory_step_sizes_meet_the_condition_with_equality():
    constants = client_constants(pca_shards())
    eta, server = theory_stepsize(constants, 6, 5)
    assert server == pytest.approx(math.sqrt(6))
    total = eta * server * 5
    assert total == pytest.approx(1 / (24 * 4 * math.sqrt(3) * constants.smoothness))
    assert total <= constants.gamma / (6 * constants.gradient_bound)
    curved = type(constants)(1.0, 1.0, 0.5, 2.0, 1e6)
    assert largest_total_step(curved) == pytest.approx(1e-6)


def sampling_variance(x, shards, batch):
    """sigma^2 of Assumption 4.2 at x: batch times the variance of the worst client's mean."""
    return max(
        float(PROBLEM.rgrads(x, shard).var(0).sum()) * (1 - batch / len(shard)) for shard in shards
    )


@pytest.mark.parametrize(
    ("clients", "local_steps", "rounds", "batch"),
    [
        pytest.param(6, 5, 150, None, marks=pytest.mark.slow),
        pytest.param(6, 5, 10, 2, marks=pytest.mark.slow),
        (6, 1, 60, None),
        (3, 8, 60, None),
    ],
)
def test_the_bound_of_theorem_4_3_holds(clients, local_steps, rounds, batch):
    """In one run without sampling, on average with it."""
    shards = pca_shards(clients)
    x = start(PROBLEM, shards)
    eta, server = theory_stepsize(client_constants(shards), clients, local_steps)
    update = Projected(
        step_size=eta,
        local_steps=local_steps,
        server_step_size=server,
        tube_radius=0.5,
        minibatch=WithoutReplacement(batch_size=batch) if batch else Full(),
    )
    gap = float(PROBLEM.objective(x, shards)) - PROBLEM.optimum(shards).value
    omega = initial_gap(gap, local_gradients(PROBLEM, x, shards), eta, server, local_steps)
    squares = []
    variance = 0.0
    for seed in range(20 if batch else 1):
        here = x
        source = NoiseSource.from_seed(seed)
        for played in federate(PROBLEM, shards, update, update, x, rounds, source=source):
            grad = PROBLEM.gradient(here, shards)
            measure = optimality_measure(here, grad, eta * server * local_steps, STIEFEL)
            squares.append(float(measure.square().sum()))
            assert 0.5 <= float(measure.norm() / grad.norm()) <= 2  # A.2
            if batch:
                variance = max(variance, sampling_variance(here, shards, batch))
            here = played.state["anchor"]
    bound = stationarity_bound(omega, clients, eta, local_steps, rounds, variance, batch or 1)
    assert 0 < sum(squares) / len(squares) <= bound


def test_projections_are_twice_lipschitz_in_the_tube_and_normals_are_bounded():
    """(3), (4) and (15) on random points of St(6, 2) and its tube of radius 1/2."""
    x, y = (STIEFEL.random(500, 6, 2, generator=generator(seed)) for seed in (1, 2))
    a, b = (p @ (w + w.mT) for p, w in zip((x, y), normals(3, 2, 500, 2, 2), strict=True))

    size = torch.linalg.matrix_norm

    def tube(p, v):
        return p + 0.5 * v / size(v)[:, None, None]

    one, two = tube(x, a), tube(y, b)
    moved = size(STIEFEL.projx(one) - STIEFEL.projx(two))
    assert bool((moved <= 2 * size(one - two) + 1e-12).all())  # (3)
    assert bool(((a * (y - x)).sum((-2, -1)) <= size(a) / 2 * size(y - x).square() + 1e-12).all())
    u = normals(4, 500, 6, 2)
    growth = stiefel_constants(2, 1.0, 1.0).growth
    assert growth == pytest.approx(4 * math.sqrt(2))
    assert bool((size(STIEFEL.projx(x + u) - x) <= growth * size(u)).all())  # (15)


def test_drift_inside_a_round_is_bounded():
    """(28) with the constants doubled as its proof needs, without sampling."""
    shards = pca_shards()
    constants = client_constants(shards)
    tau = 5
    n = 6
    eta, _ = theory_stepsize(constants, n, tau)
    update = Projected(step_size=eta, local_steps=tau)
    x = start(PROBLEM, shards)
    before = torch.zeros(n, *x.shape, dtype=torch.float64)
    for played in federate(PROBLEM, shards, update, update, x, 10):
        full = PROBLEM.gradient(x, shards)
        c = before.mean(0) - before
        z_hat = x.expand_as(before)
        drift = 0.0
        for _ in range(tau):
            z = STIEFEL.projx(z_hat)
            drift += float((z - x).square().sum())
            z_hat = z_hat - eta * (local_gradients(PROBLEM, z, shards) + c)
        lag = eta * tau * (full + c)
        own = lag - lag.mean(0)
        first = 3 * n * constants.growth**2 * tau**3 * eta**2 * float(full.square().sum())
        assert drift <= first + 18 * tau * float(own.square().sum())
        x, before = played.state["anchor"], played.memory.mean_gradient

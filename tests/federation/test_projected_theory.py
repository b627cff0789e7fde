"""Theorem 4.3: its constants, step sizes and bound hold in runs."""

import math

import pytest
import torch

from manifed.algorithms.projected import Projected
from manifed.manifolds.stiefel import Stiefel
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


def client_constants(shards, k):
    """L_hat and D_f of f_i as one sample each: eigenvalues of A_i^T A_i."""
    spectra = [torch.linalg.eigvalsh(s["z"].mT @ s["z"] / len(s)).flip(0) for s in shards]
    bound = max(float(w[:k].square().sum().sqrt()) for w in spectra)
    return stiefel_constants(k, max(float(w[0]) for w in spectra), bound)


def test_theory_step_sizes_meet_the_condition_with_equality():
    constants = client_constants(pca_shards(), 3)
    eta, server = theory_stepsize(constants, 6, 5)
    assert server == pytest.approx(math.sqrt(6))
    total = eta * server * 5
    assert total == pytest.approx(1 / (24 * 4 * math.sqrt(3) * constants.smoothness))
    assert total <= constants.gamma / (6 * constants.gradient_bound)
    curved = type(constants)(1.0, 1.0, 0.5, 2.0, 1e6)
    assert largest_total_step(curved) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("clients", "local_steps", "rounds"),
    [pytest.param(6, 5, 150, marks=pytest.mark.slow), (6, 1, 60), (3, 8, 60)],
)
def test_the_bound_of_theorem_4_3_holds(clients, local_steps, rounds):
    problem, shards = KPCA(3), pca_shards(clients)
    x, constants = start(problem, shards), client_constants(shards, 3)
    eta, server_step_size = theory_stepsize(constants, clients, local_steps)
    update = Projected(
        step_size=eta,
        local_steps=local_steps,
        server_step_size=server_step_size,
        tube_radius=0.5,
    )
    total_step = eta * server_step_size * local_steps
    gap = float(problem.objective(x, shards)) - problem.optimum(shards).value
    omega = initial_gap(
        gap, local_gradients(problem, x, shards), eta, server_step_size, local_steps
    )
    squares, here = [], x
    for played in federate(problem, shards, update, update, x, rounds):
        grad = problem.gradient(here, shards)
        measure = optimality_measure(here, grad, total_step, problem.manifold)
        squares.append(float(measure.square().sum()))
        assert 0.5 * float(grad.norm()) <= float(measure.norm()) <= 2 * float(grad.norm())  # A.2
        here = played.state["anchor"]
    bound = stationarity_bound(omega, clients, eta, local_steps, rounds)
    assert 0 < sum(squares) / rounds <= bound


def test_projections_are_twice_lipschitz_in_the_tube_and_normals_are_bounded():
    """(3), (4) and (15) on random points of St(6, 2) and its tube of radius 1/2."""
    stiefel, generator = Stiefel(), torch.Generator().manual_seed(1)
    x, y = (stiefel.random(500, 6, 2, generator=generator) for _ in range(2))
    s = torch.randn(2, 500, 2, 2, generator=generator, dtype=torch.float64)
    a, b = (p @ (w + w.mT) for p, w in zip((x, y), s, strict=True))

    def size(u):
        return u.flatten(-2).norm(dim=-1)

    def tube(p, v):
        return p + 0.5 * v / size(v)[:, None, None]

    one, two = tube(x, a), tube(y, b)
    moved = size(stiefel.projx(one) - stiefel.projx(two))
    assert bool((moved <= 2 * size(one - two) + 1e-12).all())  # (3)
    assert bool(((a * (y - x)).sum((-2, -1)) <= size(a) / 2 * size(y - x).square() + 1e-12).all())
    u = torch.randn(500, 6, 2, generator=generator, dtype=torch.float64)
    growth = stiefel_constants(2, 1.0, 1.0).growth
    assert growth == pytest.approx(4 * math.sqrt(2))
    assert bool((size(stiefel.projx(x + u) - x) <= growth * size(u)).all())  # (15)

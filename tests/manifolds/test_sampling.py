"""All sampling strategies draw one law, exactly; a stuck chain is refused."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from manifed.manifolds.base import Manifold
from manifed.manifolds.hyperbolic import PoincareBall
from manifed.manifolds.spd import SPD
from manifed.manifolds.sphere import Sphere
from reproduction.tangent_samplers import (
    Metropolis,
    StuckChainError,
    normals_from,
)

STDDEV = 0.3
CHAINS = 16_000
"""Chains of the Metropolis law: with dim 5 a band of 2.5 % of the variance at 1e-6."""


def source(seed: int):
    return normals_from(torch.Generator().manual_seed(seed))


def point(manifold: Manifold, shape: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    return manifold.random(*shape, generator=torch.Generator().manual_seed(seed))


def assert_chi_square(manifold: Manifold, x: torch.Tensor, draws: torch.Tensor) -> None:
    """Sum of |v|^2 / stddev^2 over independent draws: chi-square, and both mutants rejected."""
    dof = draws.shape[0] * manifold.dim(tuple(x.shape))
    total = float(manifold.inner(x, draws).sum()) / STDDEV**2
    low, high = stats.chi2.ppf([0.5e-6, 1 - 0.5e-6], dof)
    assert low <= total <= high
    for mutant in (0.98, 1.02):
        assert not low <= mutant**2 * total <= high, f"stddev x {mutant} was accepted"


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("manifold", "shape", "step"),
    [
        (Sphere(), (6,), "adaptive"),
        (Sphere(), (6,), 0.25),
        (PoincareBall(), (5,), "adaptive"),
    ],
)
def test_converged_chains_have_the_exact_law(manifold: Manifold, shape, step):
    """Independent chains of 300 steps; the tail of their relaxation is far below the band."""
    x = point(manifold, shape)
    strategy = Metropolis(burn_in=290, thinning=10, step=step, min_acceptance_rate=0.005)
    draws = strategy.sample(manifold, x.expand(CHAINS, *shape), STDDEV, source(4))
    assert_chi_square(manifold, x, draws)


@pytest.mark.parametrize(
    ("dim", "stddev"), [(2, 0.02), pytest.param(11, 1.0, marks=pytest.mark.slow)]
)
def test_the_published_chain_returns_zero_noise_and_ours_refuses_it(dim: int, stddev: float):
    """SPD, unit steps whatever the target: no move is accepted in 710 steps."""
    x = torch.eye(dim, dtype=torch.float64)
    published = Metropolis(burn_in=700, step=1.0)
    with pytest.raises(StuckChainError, match=r"acceptance_rate >= 0\.01, got 0 over 710 steps"):
        published.sample(SPD(), x, stddev, source(7))
    unguarded = replace(published, min_acceptance_rate=-1.0)
    assert float(unguarded.sample(SPD(), x, stddev, source(7)).abs().max()) == 0.0
    adapted = Metropolis(burn_in=600).sample(SPD(), x, stddev, source(7))
    size = float(SPD().norm(x, adapted)) / (stddev * math.sqrt(SPD().dim((dim, dim))))
    assert 0.3 <= size <= 2.0

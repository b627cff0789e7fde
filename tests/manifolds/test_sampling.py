"""All sampling strategies draw one law, exactly; a stuck chain is refused."""

import math
from dataclasses import replace

import pytest
import torch

from manifed.manifolds import SPD, PoincareBall, Sphere
from reproduction.tangent_samplers import Metropolis, StuckChainError, normals_from
from tests.statistics.laws import assert_chi_square
from tests.tensors import generator

STDDEV = 0.3
CHAINS = 16_000
"""Chains of the Metropolis law: with dim 5 a band of 2.5 % of the variance at 1e-6."""


def source(seed):
    return normals_from(generator(seed))


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
def test_converged_chains_have_the_exact_law(manifold, shape, step):
    """Independent chains of 300 steps; the tail of their relaxation is far below the band."""
    x = manifold.random(*shape, generator=generator(1))
    strategy = Metropolis(burn_in=290, thinning=10, step=step, min_acceptance_rate=0.005)
    draws = strategy.sample(manifold, x.expand(CHAINS, *shape), STDDEV, source(4))
    assert_chi_square(manifold.inner(x, draws).sum() / STDDEV**2, CHAINS * manifold.dim(shape))


@pytest.mark.parametrize(
    ("dim", "stddev"), [(2, 0.02), pytest.param(11, 1.0, marks=pytest.mark.slow)]
)
def test_the_published_chain_returns_zero_noise_and_ours_refuses_it(dim, stddev):
    """SPD, unit steps whatever the target: no move is accepted in 710 steps."""
    x = torch.eye(dim).double()
    published = Metropolis(burn_in=700, step=1.0)
    with pytest.raises(StuckChainError, match=r"acceptance_rate >= 0\.01, got 0 over 710 steps"):
        published.sample(SPD(), x, stddev, source(7))
    unguarded = replace(published, min_acceptance_rate=-1.0)
    assert unguarded.sample(SPD(), x, stddev, source(7)).abs().max() == 0.0
    adapted = Metropolis(burn_in=600).sample(SPD(), x, stddev, source(7))
    size = float(SPD().norm(x, adapted)) / (stddev * math.sqrt(SPD().dim((dim, dim))))
    assert 0.3 <= size <= 2.0

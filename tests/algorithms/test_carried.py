"""A reference that nothing noised is not stretched by its transport, wherever a server puts x."""

import pytest
import torch

from manifed.algorithms.rsvrg import RSVRG
from manifed.manifolds import Lorentz
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean
from tests.tensors import float64

CLIP = 1.0


def far_point(manifold, radius):
    x = float64([0.0, 0.48, 0.6, 0.64]) * radius
    length = x[1:].norm()
    return manifold.projx(torch.cat([x[:1], x[1:] / length * torch.sinh(length)]))


def carried(oracle, radius):
    """Lengths of a reference of length CLIP after transports away from ``radius``."""
    generator = torch.Generator().manual_seed(0)
    manifold = oracle.manifold
    x = far_point(manifold, radius)
    for _ in range(60):
        c = torch.randn(2, 3, generator=generator, dtype=torch.float64)
        v = manifold.from_coords(x, c[0] / c[0].norm() * CLIP)
        y = manifold.expmap(x, manifold.from_coords(x, 0.3 * c[1]))
        yield float(manifold.norm(y, oracle.carried(x, y, v)))


@pytest.fixture
def oracle():
    examples = Examples({"z": Lorentz().origin(4, 4)})
    update = RSVRG(step_size=0.1, inner_steps=1, variant="fresh")
    queries = [update.queries(ExampleMechanism(l2_norm_clip=CLIP), 4)]
    draws = Draws(NoiseSource.from_seed(0), 0, 1)
    return Oracle(FrechetMean(Lorentz()), examples, queries, draws)


@pytest.mark.parametrize("radius", [2.0, 20.0, 25.0, 28.0, 30.0, 33.0, 36.0, 60.0, 200.0])
def test_an_un_noised_reference_is_never_longer_than_its_clip(oracle, radius):
    assert max(carried(oracle, radius)) <= CLIP * (1 + 1e-9)


def test_near_the_origin_it_is_the_transport(oracle):
    assert min(carried(oracle, 5.0)) == pytest.approx(CLIP, rel=1e-9)


def test_transport_alone_stretches_it(oracle, monkeypatch):
    monkeypatch.setattr(Oracle, "carried", lambda own, x, y, v: own.manifold.transp(x, y, v))
    assert max(carried(oracle, 60.0)) > 10 * CLIP

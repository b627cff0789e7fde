"""Checks 15 and 16: what must hold to rounding, and how far the tangent mean is from the mean."""

from collections.abc import Sequence

import torch
from torch import Tensor

from manifed.algorithms.algorithm import Here
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.manifolds.base import Manifold
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.hyperbolic import Lorentz
from manifed.manifolds.spd import SPD
from manifed.manifolds.sphere import Sphere
from manifed.oracles.minibatch import Full
from manifed.oracles.noisy_oracle import Draws, Oracle
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource, Stream
from manifed.problems.data import Equal
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from manifed.problems.real import Digits
from manifed.problems.shards import shards
from reproduction.findings import Finding, Part, log_slope

PROBLEM = PrincipalEigenvector()
SPREADS = (0.4, 0.2, 0.1, 0.05)


class SharedDraws(Draws):
    """Draws of two noises a gradient step, which are one: that of a step of another algorithm."""

    def normals(self, shape: Sequence[int], stream: Stream, step: int) -> Tensor:
        """The noise of gradient step ``step // 2``."""
        return super().normals(shape, stream, step // 2)


def _digits(num_clients: int) -> tuple[Examples, ...]:
    return shards(PROBLEM, Digits(), Equal(shard_size=149), num_clients, 0)


def _displacement(training: RSGD | RSVRG, shard: Examples, x: Tensor, draws: Draws) -> Tensor:
    """What one client uploads."""
    mechanism = ExampleMechanism(l2_norm_clip=2.0, noise=Noise(coefficient=3.0))
    queries = [training.queries(mechanism, len(shard))]
    oracle = Oracle(PROBLEM, shard, queries, draws)
    up = training.client(x, oracle, Here(PROBLEM.manifold, "train", 1, Point(x), None, draws))
    assert isinstance(up, Tensor)
    return up


def svrg_with_one_inner_step() -> float:
    """Largest difference between Algorithm 3 at m = 1 and full-batch Algorithm 2, same noise."""
    (shard,) = _digits(1)
    x = Sphere().random(64, generator=torch.Generator().manual_seed(0))
    address = NoiseSource.from_seed(0), 0, 1
    rsgd = RSGD(step_size=0.3, local_steps=4, minibatch=Full())
    rsvrg = RSVRG(
        step_size=0.3, epochs=4, inner_steps=1, variant="fresh", correction_clip="each",
        minibatch=Full(),
    )  # fmt: skip
    first = _displacement(rsgd, shard, x, Draws(*address))
    second = _displacement(rsvrg, shard, x, SharedDraws(*address))
    return float((first - second).abs().max())


def single_client_returns() -> float:
    """Largest |tangent mean of one upload - the client's point| over the manifolds."""
    worst = 0.0
    for manifold, shape in _SPACES.items():
        generator = torch.Generator().manual_seed(1)
        x, y = (manifold.random(*shape, generator=generator) for _ in range(2))
        back = manifold.expmap(x, manifold.logmap(x, y))
        worst = max(worst, float((back - y).abs().max() / y.abs().max()))
    return worst


def one_full_batch_step() -> float:
    """|x^(t+1) - Exp(-alpha sum_i p_i eta_i)| at K = 1, b = N_i, s = N, with noise."""
    sphere = Sphere()
    x = sphere.random(64, generator=torch.Generator().manual_seed(2))
    source = NoiseSource.from_seed(0)
    long, short = (
        torch.stack(
            [
                _displacement(RSGD(step_size=step, minibatch=Full()), shard, x, Draws(source, i, 1))
                for i, shard in enumerate(_digits(5))
            ]
        ).mean(0)
        for step in (0.3, 1e-3)
    )
    expected = sphere.expmap(x, -0.3 * (short / -1e-3))
    return float((sphere.expmap(x, long) - expected).abs().max())


def check_15() -> Finding:
    """Three identities between the algorithms."""
    numbers = {
        "m=1 RSVRG against full-batch RSGD": svrg_with_one_inner_step(),
        "s=1 tangent mean against the client's point": single_client_returns(),
        "K=1, s=N round against one noised gradient step": one_full_batch_step(),
    }
    return Finding(
        "m=1 RSVRG = full-batch RSGD; s=1 returns the client's point; K=1, s=N is a gradient step",
        max(numbers.values()) <= 1e-9,
        numbers,
        (0,),
    )


_SPACES: dict[Manifold, tuple[int, ...]] = {
    Sphere(): (5,), SPD(): (3, 3), Lorentz(): (3,), Euclidean(1): (4,),
}  # fmt: skip


def mean_differences(manifold: Manifold, shape: tuple[int, ...], seed: int) -> list[float]:
    """dist(tangent mean, Fréchet mean) of eight points within each of ``SPREADS`` of the base."""
    generator = torch.Generator().manual_seed(seed)
    x = manifold.random(*shape, generator=generator)
    coordinates = torch.randn(
        8, *manifold.coords_shape(shape), generator=generator, dtype=torch.float64
    )
    directions = manifold.from_coords(x, coordinates)
    longest = float(manifold.norm(x, directions).max())
    weights = torch.full((8,), 1 / 8, dtype=torch.float64)
    found = []
    for spread in SPREADS:
        points = manifold.expmap(x, spread / longest * directions)
        approximate = manifold.expmap(x, manifold.logmap(x, points).mean(0))
        exact = manifold.frechet_mean(points, weights, max_iterations=500, tolerance=1e-14)
        found.append(float(manifold.dist(approximate, exact)))
    return found


def check_16(seeds: Sequence[int] = range(10)) -> Finding:
    """The difference is of third order on curved manifolds and nothing on flat ones."""
    each = {m: [mean_differences(m, shape, seed) for seed in seeds] for m, shape in _SPACES.items()}
    flat = Part("greatest on a flat one", [max(found) for found in each.pop(Euclidean(1))],
                most=1e-12)  # fmt: skip
    return Finding.judged(
        "tangent mean - Fréchet mean = O(spread^3) on curved manifolds, 0 on flat ones",
        [
            *(
                Part(f"slope, {m.name}", [log_slope(SPREADS, one) for one in found], 2.7, 3.3)
                for m, found in each.items()
            ),
            flat,
        ],
        {},
        seeds,
    )

"""Records of odd matrices are computed together wherever those of even ones are.

A stack of matrices of odd size begins at other addresses, where kernels may give other bits; then
every record would be computed alone, thirty times as slowly.
"""

import pytest
import torch

from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds.spd import SPD, SPDLogEuclidean
from manifed.oracles import blocks
from manifed.oracles.minibatch import Full, Poisson
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean, GeometricMedian

MECHANISM = ExampleMechanism(l2_norm_clip=1.0, noise=Noise(multiplier=1.0))
DESCENT = RSGD(step_size=0.1, minibatch=Full())
REDUCED = RSVRG(step_size=0.1, epochs=1, inner_steps=2, minibatch=Poisson(batch_size=40))
CASES = {
    "mean": (FrechetMean(), DESCENT),
    "mean, RSVRG": (FrechetMean(), REDUCED),
    "log-Euclidean mean": (FrechetMean(manifold=SPDLogEuclidean()), DESCENT),
    "median": (GeometricMedian(), DESCENT),
}


def are_together(case, size, monkeypatch):
    problem, training = CASES[case]
    problem = problem.model_copy()  # what was tried out is kept for each problem
    z = SPD().random(100, size, size, generator=torch.Generator().manual_seed(0))
    said = []
    tried = blocks._are_alike
    monkeypatch.setattr(blocks, "_are_alike", lambda *a: said.append(tried(*a)) or said[-1])
    setup = ClientSetup(problem, training, MECHANISM)
    shard = Examples({"z": z}, {"z": 2})
    x = Point(torch.eye(size, dtype=torch.float64))
    run_update(setup, Seat(0, 1, 0, "train"), x, None, shard, 100, NoiseSource.from_seed(0))
    monkeypatch.setattr(blocks, "_are_alike", tried)
    assert said
    return all(said)


@pytest.mark.parametrize("size", [5, 7, 11])
@pytest.mark.parametrize("case", CASES)
def test_records_of_odd_matrices_are_computed_together_where_even_ones_are(case, size, monkeypatch):
    even = are_together(case, size + 1, monkeypatch)
    assert are_together(case, size, monkeypatch) >= even

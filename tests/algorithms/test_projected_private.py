"""Private projected updates: what is drawn is what is charged, and it has the stated law."""

from functools import lru_cache

import pytest
import torch
from scipy import stats

from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.problems.examples import Examples
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import pca_shards, start
from tests.conformance.federated_loop import federate, last

MECHANISM = ExampleMechanism(l2_norm_clip=0.5, noise=Noise(multiplier=2.0))
STEPS = {"step_size": 1e-3, "local_steps": 5}
ALGORITHMS = [Projected(**STEPS), ProjectedPartial(**STEPS)]


@lru_cache
def summed_squares():
    """(sum of |upload|^2 over the stated variance, degrees of freedom): empty data, one step."""
    clients, rows, rounds = 400, 2, 10
    shards = [Examples({"z": torch.zeros(rows, 10, dtype=torch.float64)}, {"z": 1})] * clients
    problem = KPCA(3)
    training = Projected(step_size=1e-3, upload="plain", tube_radius=1e9)
    x = problem.manifold.random(10, 3, generator=torch.Generator().manual_seed(0))
    total = sum(
        float(played.uploads.tensors()["u"].square().sum())
        for played in federate(problem, shards, training, training, x, rounds, mechanism=MECHANISM)
    )
    stddev = 1e-3 * 2.0 * 0.5 / rows
    dimension = 10 * 3 - 3 * 4 // 2
    return total / stddev**2, clients * rounds * dimension


@pytest.mark.statistical
@pytest.mark.parametrize(("scale", "is_accepted"), [(1.0, True), (0.98, False), (1.02, False)])
def test_the_noise_of_an_upload_is_chi_square_with_the_stated_stddev(scale, is_accepted):
    total, freedom = summed_squares()
    tail = stats.chi2.cdf(total * scale**2, freedom)
    assert (5e-7 < tail < 1 - 5e-7) == is_accepted


@pytest.mark.parametrize("training", ALGORITHMS, ids=lambda training: training.kind)
def test_what_a_client_remembers_and_sends_depends_on_noised_gradients_alone(training):
    """With all examples clipped to nothing, two data sets leave the same bits."""
    mechanism = ExampleMechanism(l2_norm_clip=1e-300, noise=Noise(multiplier=2e300))
    runs = []
    for seed in (0, 1):
        problem, shards = KPCA(3), pca_shards(seed=seed)
        x = start(problem, pca_shards())
        wide = training.model_copy(update={"tube_radius": 1e9})
        runs.append(last(federate(problem, shards, wide, wide, x, 3, mechanism=mechanism)))
    for part in ("uploads", "memory"):
        one, two = (getattr(played, part).tensors() for played in runs)
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=0)

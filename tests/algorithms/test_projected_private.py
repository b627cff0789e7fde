"""Private projected updates: what is drawn is what is charged, and it has the stated law."""

import pytest

from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import pca_shards, start
from tests.conformance.federated_loop import federate, last
from tests.tensors import assert_near

STEPS = {"step_size": 1e-3, "local_steps": 5}
ALGORITHMS = [Projected(**STEPS), ProjectedPartial(**STEPS)]


@pytest.mark.parametrize("training", ALGORITHMS, ids=lambda training: training.kind)
def test_what_a_client_remembers_and_sends_depends_on_noised_gradients_alone(training):
    """With all examples clipped to nothing, two data sets leave the same bits."""
    mechanism = ExampleMechanism(l2_norm_clip=1e-300, noise=Noise(multiplier=2e300))
    runs = []
    for seed in (0, 1):
        problem = KPCA(3)
        shards = pca_shards(seed=seed)
        x = start(problem, pca_shards())
        wide = training.model_copy(update={"tube_radius": 1e9})
        runs.append(last(federate(problem, shards, wide, wide, x, 3, mechanism=mechanism)))
    for part in ("uploads", "memory"):
        one, two = (getattr(played, part).tensors() for played in runs)
        for name in one:
            assert_near(one[name], two[name])

"""What the noise of private projected training is, and what it does to the run."""

from manifed.algorithms.projected import Projected
from manifed.privacy.mechanism import ClientMechanism
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import pca_shards, start
from tests.conformance.federated_loop import federate, last
from tests.tensors import assert_near

UPDATE = Projected(step_size=2e-3, local_steps=5)


def played(update, rounds, noise=None):
    """The start, and what comes of the rounds from there; ``noise``: (clip, multiplier)."""
    problem = KPCA(3)
    shards = pca_shards()
    x = start(problem, shards)
    server = noise and ClientMechanism(l2_norm_clip=noise[0], noise_multiplier=noise[1])
    return x, federate(problem, shards, update, update, x, rounds, client_mechanism=server)


def test_client_level_noise_and_clip_act_on_ambient_uploads():
    plain, silent = (last(played(UPDATE, 4, noise)[1]).state for noise in (None, (1e3, 0.0)))
    assert_near(silent["x"], plain["x"], 1e-13)
    x, rounds = played(UPDATE, 4, (0.01, 0.0))
    for one in rounds:
        assert float((one.state["x"] - x).norm()) <= 0.01 + 1e-12
        x = one.state["anchor"]


def test_plain_uploads_are_algorithm_1_and_forget_the_servers_noise():
    plain = UPDATE.model_copy(update={"upload": "plain"})
    one, two = (last(played(update, 10)[1]).state["x"] for update in (UPDATE, plain))
    assert_near(one, two, 1e-12)

    def imbalance(training):
        """Size of the mean correction in the first and in the last rounds."""
        sizes = [
            float(training.correction(p.state["x"], p.memory).mean(0).norm())
            for p in played(training, 40, (1e3, 1e-8))[1]
        ]
        return sizes[0], sum(sizes[-10:]) / 10

    first, late = imbalance(UPDATE)
    assert late > 3 * first
    first, late = imbalance(plain)
    assert 0.3 * first < late < 2 * first

"""What the noise of private projected training is, and what it does to the run."""

import torch

from manifed.algorithms.projected import Projected
from manifed.privacy.mechanism import ClientMechanism
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import pca_shards, start
from tests.conformance.federated_loop import federate, last


def test_client_level_noise_and_clip_act_on_ambient_uploads():
    problem = KPCA(3)
    shards = pca_shards()
    x = start(problem, shards)
    update = Projected(step_size=2e-3, local_steps=5)
    plain = last(federate(problem, shards, update, update, x, 4)).state["x"]
    wide = ClientMechanism(l2_norm_clip=1e3, noise_multiplier=0.0)
    silent = last(federate(problem, shards, update, update, x, 4, client_mechanism=wide))
    torch.testing.assert_close(silent.state["x"], plain, rtol=0, atol=1e-13)
    tight = ClientMechanism(l2_norm_clip=0.01, noise_multiplier=0.0)
    for played in federate(problem, shards, update, update, x, 4, client_mechanism=tight):
        assert float((played.state["x"] - x).norm()) <= 0.01 + 1e-12
        x = played.state["anchor"]


def test_plain_uploads_are_algorithm_1():
    problem = KPCA(3)
    shards = pca_shards()
    x = start(problem, shards)
    update = Projected(step_size=2e-3, local_steps=5)
    plain = update.model_copy(update={"upload": "plain"})
    one = last(federate(problem, shards, update, update, x, 10)).state["x"]
    two = last(federate(problem, shards, plain, plain, x, 10)).state["x"]
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_plain_uploads_are_algorithm_1_and_forget_the_servers_noise():
    problem = KPCA(3)
    shards = pca_shards()
    x = start(problem, shards)
    rounds = 40
    update = Projected(step_size=2e-3, local_steps=5)
    plain = update.model_copy(update={"upload": "plain"})
    one = last(federate(problem, shards, update, update, x, 10)).state["x"]
    two = last(federate(problem, shards, plain, plain, x, 10)).state["x"]
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12)
    noisy = ClientMechanism(l2_norm_clip=1e3, noise_multiplier=1e-8)

    def imbalance(training):
        """Size of the mean correction in the first and in the last rounds."""
        sizes = [
            float(training.correction(p.state["x"], p.memory).mean(0).norm())
            for p in federate(
                problem, shards, training, training, x, rounds, client_mechanism=noisy
            )
        ]
        return sizes[0], sum(sizes[-10:]) / 10

    first, late = imbalance(update)
    assert late > 3 * first
    first, late = imbalance(plain)
    assert 0.3 * first < late < 2 * first

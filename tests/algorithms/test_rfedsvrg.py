"""RFedSVRG: reductions, its two phases, and that it does not drift."""

import pytest
import torch

from manifed.algorithms.payloads import MeanGradient
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds.stiefel import Stiefel
from manifed.privacy.mechanism import ExampleMechanism
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import local_gradients, pca_shards, start
from tests.conformance.federated_loop import SOURCE, federate, last

UPDATE = RFedSVRG(step_size=2e-3, local_steps=5, maps="retraction")


def test_it_is_the_printed_recursion():
    """The reused first gradient is the one that the recursion evaluates."""
    problem = KPCA(3)
    shards = pca_shards()
    manifold = Stiefel()
    x = start(problem, shards)
    end = last(federate(problem, shards, UPDATE, UPDATE, x, 1))
    g0 = local_gradients(problem, x, shards)
    y = x.expand_as(g0)
    for _ in range(5):
        moved = manifold.proju(y, g0 - g0.mean(0))
        v = local_gradients(problem, y, shards) - moved
        y = manifold.retr(y, -2e-3 * v)
    u = manifold.invretr(x, y)
    torch.testing.assert_close(end.uploads.u, u, rtol=0, atol=1e-12)
    expected = manifold.retr(x, u.mean(0))
    torch.testing.assert_close(end.state["x"], expected, rtol=0, atol=1e-12)


def test_a_client_that_missed_the_first_phase_says_so():
    problem = KPCA(3)
    shards = pca_shards()
    x = start(problem, shards)
    setup = ClientSetup(KPCA(3), UPDATE, ExampleMechanism())
    down = MeanGradient(torch.zeros_like(x))
    with pytest.raises(ValueError, match="phase 'gradient'"):
        run_update(
            setup, Seat(0, 1, 0, "train"), down, UPDATE.initial_memory(x), shards[0], 8, SOURCE
        )

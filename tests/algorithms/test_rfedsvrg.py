"""RFedSVRG: reductions, its two phases, and that it does not drift."""

import pytest
import torch

from manifed.algorithms.payloads import MeanGradient
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds import Stiefel
from manifed.privacy.mechanism import ExampleMechanism
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import PROBLEM, SHARDS, START, local_gradients
from tests.conformance.federated_loop import SOURCE, federate, last
from tests.tensors import assert_near

UPDATE = RFedSVRG(step_size=2e-3, local_steps=5, maps="retraction")


def test_it_is_the_printed_recursion():
    """The reused first gradient is the one that the recursion evaluates."""
    manifold = Stiefel()
    end = last(federate(PROBLEM, SHARDS, UPDATE, UPDATE, START, 1))
    g0 = local_gradients(PROBLEM, START, SHARDS)
    y = START.expand_as(g0)
    for _ in range(5):
        moved = manifold.proju(y, g0 - g0.mean(0))
        v = local_gradients(PROBLEM, y, SHARDS) - moved
        y = manifold.retr(y, -2e-3 * v)
    u = manifold.invretr(START, y)
    assert_near(end.uploads.u, u, 1e-12)
    expected = manifold.retr(START, u.mean(0))
    assert_near(end.state["x"], expected, 1e-12)


def test_a_client_that_missed_the_first_phase_says_so():
    setup = ClientSetup(KPCA(3), UPDATE, ExampleMechanism())
    down = MeanGradient(torch.zeros_like(START))
    with pytest.raises(ValueError, match="phase 'gradient'"):
        run_update(
            setup, Seat(0, 1, 0, "train"), down, UPDATE.initial_memory(START), SHARDS[0], 8, SOURCE
        )

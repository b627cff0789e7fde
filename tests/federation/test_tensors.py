"""Client updates get points as geoopt tensors with their manifold, and give plain tensors."""

import geoopt
import pytest
import torch

from manifed.algorithms.payloads import Displacement, Point
from manifed.algorithms.projected import Projected
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.oracles.minibatch import Full
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import shards, start
from tests.tensors import assert_near

PRIVATE = ExampleMechanism(l2_norm_clip=0.5, noise=Noise(multiplier=0.7))
STEP = 0.1


class GeooptStep(RSGD):
    """One step by geoopt's optimizer, from the oracle's gradient."""

    def client(self, x, oracle, here):
        start = here.down.x
        x = geoopt.ManifoldParameter(start.clone(), manifold=start.manifold)
        x.grad = oracle.gradient(x)  # Riemannian, and egrad2rgrad of the sphere leaves it alone
        geoopt.optim.RiemannianSGD([x], lr=self.step_size).step()
        return Displacement(start.manifold.invretr(start, x))


def updated(training, mechanism=PRIVATE, is_cohort=False, phase="train", memory=None):
    everybody = shards()
    x = start()
    examples = everybody[0]
    sizes = len(examples)
    who = 0
    if is_cohort:
        examples = Examples.stack(everybody)
        sizes = list(map(len, everybody))
        who = tuple(range(len(everybody)))
        x = x.expand(len(everybody), -1)
    setup = ClientSetup(PrincipalEigenvector(), training, mechanism)
    seat = Seat(who, 1, 0, phase)
    return run_update(setup, seat, Point(x), memory, examples, sizes, NoiseSource.from_seed(3))


@pytest.mark.parametrize("mechanism", [ExampleMechanism(), PRIVATE], ids=["plain", "private"])
@pytest.mark.parametrize("is_cohort", [False, True], ids=["client", "cohort"])
def test_a_step_of_geoopts_optimizer_is_a_step_of_rsgd(mechanism, is_cohort):
    fields = {"step_size": STEP, "minibatch": Full(), "maps": "retraction"}
    mine = updated(RSGD(**fields), mechanism, is_cohort).up.u
    theirs = updated(GeooptStep(**fields), mechanism, is_cohort).up.u
    assert float(mine.norm()) > 1e-3
    assert not theirs.requires_grad
    assert_near(theirs.detach(), mine.detach(), 1e-10)


def test_uploads_and_memory_are_plain():
    projected = Projected(step_size=STEP, server_step_size=1.0, local_steps=2, minibatch=Full())
    memory = projected.initial_memory(start())
    svrg = RFedSVRG(step_size=STEP, local_steps=2, minibatch=Full())
    first = updated(svrg, phase="gradient", memory=svrg.initial_memory(start()))
    made = (
        updated(RSGD(step_size=STEP, minibatch=Full())).up,
        updated(projected, ExampleMechanism(), memory=memory).up,
        first.up,
        first.memory,
    )
    assert {type(t) for each in made for t in each.tensors().values()} == {torch.Tensor}

"""Client updates get and give geoopt tensors: points with their manifold, tangents with x."""

import copy
import pickle

import geoopt
import pytest
import torch

from manifed.algorithms.payloads import Displacement, LocalGradient, MeanGradient, Point
from manifed.algorithms.projected import Projected
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds.base import TangentSpace, as_point, as_tangent
from manifed.oracles.minibatch import Full
from manifed.privacy.mechanism import ExampleMechanism, RelativeNoise
from manifed.privacy.noise import NoiseSource
from manifed.problems.base import Examples
from manifed.problems.pca import PrincipalEigenvector
from tests.conformance.client_cases import shards, start

PRIVATE = ExampleMechanism(l2_norm_clip=0.5, noise=RelativeNoise(multiplier=0.7))
STEP = 0.1


class GeooptStep(RSGD):
    """One step by geoopt's optimizer, from the oracle's gradient."""

    def update(self, phase, down, memory, oracle, manifold, draws):
        x = geoopt.ManifoldParameter(down.x.clone(), manifold=down.x.manifold)
        x.grad = oracle.gradient(x)  # Riemannian, and egrad2rgrad of the sphere leaves it alone
        geoopt.optim.RiemannianSGD([x], lr=self.step_size).step()
        return Displacement(down.x.manifold.invretr(down.x, x)), memory


def updated(training, mechanism=PRIVATE, is_cohort=False, phase="train", down=None, memory=None):
    everybody, x = shards(), start()
    setup = ClientSetup(PrincipalEigenvector(), training, mechanism)
    examples, sizes, who = everybody[0], len(everybody[0]), 0
    if is_cohort:
        examples, sizes = Examples.stack(everybody), [len(shard) for shard in everybody]
        who, x = tuple(range(len(everybody))), x.expand(len(everybody), -1)
    seat, source = Seat(who, 1, 0, phase), NoiseSource.from_seed(3)
    return run_update(setup, seat, down or Point(x), memory, examples, sizes, source)


@pytest.mark.parametrize("mechanism", [ExampleMechanism(), PRIVATE], ids=["plain", "private"])
@pytest.mark.parametrize("is_cohort", [False, True], ids=["client", "cohort"])
def test_a_step_of_geoopts_optimizer_is_a_step_of_rsgd(mechanism, is_cohort):
    fields = {"step_size": STEP, "minibatch": Full(), "maps": "retraction"}
    mine = updated(RSGD(**fields), mechanism, is_cohort).up.u
    theirs = updated(GeooptStep(**fields), mechanism, is_cohort).up.u
    assert float(mine.norm()) > 1e-3
    assert not theirs.requires_grad
    torch.testing.assert_close(theirs.detach(), mine.detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("is_cohort", [False, True], ids=["client", "cohort"])
def test_what_goes_up_is_a_point_of_the_tangent_space_at_the_broadcast_point(is_cohort):
    u = updated(RSGD(step_size=STEP, minibatch=Full()), is_cohort=is_cohort).up.u
    assert isinstance(u, geoopt.ManifoldTensor)
    assert torch.equal(u.manifold.base, start().expand(u.shape))
    assert u.manifold.base.manifold == PrincipalEigenvector().manifold
    assert u.manifold.check_point_on_manifold(u.detach(), atol=1e-12)
    assert not u.manifold.check_point_on_manifold(u + start(), atol=1e-3)
    assert type(u + u) is torch.Tensor


def test_ambient_uploads_and_memory_are_plain():
    projected = Projected(step_size=STEP, server_step_size=1.0, local_steps=2, minibatch=Full())
    memory = projected.initial_memory(start())
    turn = updated(projected, ExampleMechanism(), memory=memory)
    assert type(turn.up.u) is torch.Tensor
    svrg = RFedSVRG(step_size=STEP, local_steps=2, minibatch=Full())
    first = updated(svrg, phase="gradient", memory=svrg.initial_memory(start()))
    assert {type(t) for t in first.memory.tensors().values()} == {torch.Tensor}
    assert isinstance(first.up, LocalGradient)
    down = MeanGradient(first.up.u.detach())
    second = updated(svrg, down=down, memory=first.memory)
    assert torch.equal(second.up.u.manifold.base, start())


def test_a_tangent_space_is_a_manifold_of_geoopt_and_survives_a_copy():
    manifold, x = PrincipalEigenvector().manifold, start()
    generator = torch.Generator().manual_seed(0)
    u, v = (
        as_tangent(manifold.tangent_gaussian(x, 1.0, generator), as_point(x, manifold))
        for _ in "uv"
    )
    assert torch.equal(u.inner(v), manifold.inner(x, v))
    torch.testing.assert_close(u.expmap(u.logmap(v)), v.detach(), rtol=0, atol=1e-15)
    torch.testing.assert_close(u.dist(v, p="g"), manifold.norm(x, v - u), rtol=1e-14, atol=0)
    torch.testing.assert_close(u.proju(x + v), v.detach(), rtol=0, atol=1e-15)
    for twin in (copy.deepcopy(u), pickle.loads(pickle.dumps(u))):
        assert torch.equal(twin, u)
        assert isinstance(twin.manifold, TangentSpace)
        assert torch.equal(twin.manifold.base, x)

"""A problem in float32 stays in float32, from the shards to the checkpoint, private or not."""

from functools import partial

import mpmath as mp
import pytest
import torch

from manifed.algorithms.projected import Projected
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.tangent_mean import TangentMean
from manifed.cli.launch import Request, launch
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.exchange import ReplyPolicy
from manifed.federation.plan import ServerDraws
from manifed.federation.rounds import run_rounds
from manifed.federation.stack import StackTransport
from manifed.manifolds import Sphere, Stiefel
from manifed.oracles.minibatch import Full, WithoutReplacement
from manifed.plan import plan as planned
from manifed.privacy.mechanism import ClientMechanism, ExampleMechanism, Noise
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean
from manifed.problems.pca import KPCA, PrincipalEigenvector
from manifed.setting import Federation, Setting
from tests.conformance.federated_loop import stacked
from tests.conformance.manifold_cases import generator, normals
from tests.privacy.clip_bound_cases import exact, frobenius

F32 = torch.float32
F64 = torch.float64
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
SOURCE = NoiseSource.from_seed(3)
PRIVATE = ExampleMechanism(l2_norm_clip=1.0, noise=Noise(multiplier=0.5))
PLAIN = ExampleMechanism()
STEPS = {"step_size": 0.05, "local_steps": 2, "minibatch": Full()}
SVRG = RSVRG(step_size=0.05, inner_steps=2, minibatch=WithoutReplacement(batch_size=4))
RUNS = {
    "rsgd-private": (PrincipalEigenvector(), (5,), RSGD(**STEPS), TangentMean(), PRIVATE),
    "rsgd-spd": (FrechetMean(), (3, 3), RSGD(**STEPS), TangentMean(), PRIVATE),
    "rsvrg": (KPCA(2), (5, 2), SVRG, TangentMean(), PRIVATE),
    "rfedsvrg": (KPCA(2), (5, 2), RFedSVRG(**STEPS), RFedSVRG(**STEPS), PLAIN),
    "projected": (KPCA(2), (5, 2), Projected(**STEPS), Projected(**STEPS), PRIVATE),
}  # fmt: skip


def final(name, way, dtype):
    """The model after three rounds."""
    problem, shape, training, strategy, mechanism = RUNS[name]
    z = normals(1, 3, 12, *shape)
    z = torch.eye(3) + z @ z.mT if shape == (3, 3) else z.reshape(3, -1, 5)
    shards = [Examples({"z": shard.to(dtype)}) for shard in z]
    x = problem.manifold.random(*shape, generator=generator(2)).to(dtype)
    setup = ClientSetup(problem, training, mechanism)
    side = ClientSide(setup, shards, shape, SOURCE, dtype=dtype)
    policy = ReplyPolicy(on_failure="abort")
    federation = Federation(num_clients=3, num_rounds=3, replies=policy)
    setting = Setting(federation, training, problem.manifold, strategy, problem=problem)
    plan = planned(setting, tuple(map(len, shards)), source=SOURCE)
    *_, last = run_rounds(plan, strategy.start(x), way(side), num_rounds=3)
    assert all(t.dtype == dtype for t in last.state.values())
    return strategy.model(last.state, problem.manifold)


SLOW = ("rsgd-spd", "rfedsvrg", "projected")


@pytest.mark.parametrize(
    "name", ["rsgd-private", "rsvrg", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
)
def test_a_run_in_float32_is_the_run_in_float64_rounded_on_every_transport(name):
    exact = final(name, StackTransport, F64)
    for way in (StackTransport, stacked):
        close(final(name, way, F32).to(F64), exact)


@pytest.mark.parametrize("manifold", [Sphere(), Stiefel()], ids=str)
def test_no_upload_moves_the_servers_mean_by_more_than_the_bound(manifold):
    """By more than the bound rounded to float32, with 50 digits; the noise is that of float64."""
    drawn = generator(0)
    shape = (6, 2)[: manifold.ndim]
    x = manifold.random(*shape, dtype=F32, generator=drawn)
    clip = 0.03
    quiet = ClientMechanism(l2_norm_clip=clip, noise_multiplier=0.0)
    for scale in (1e-30, 1e-3, 1.0, 1e30):
        u = scale * manifold.tangent_gaussian(x, 1.0, drawn)
        draws = ServerDraws(SOURCE, 1, 0)
        mean = quiet.noised_mean(u[None], x, manifold, draws.normals, expected_cohort=1.0)[0]
        assert mean.dtype == F32
        assert frobenius(exact(mean)) <= clip * (1 + mp.mpf(2) ** -24)


def test_noise_is_drawn_and_added_in_float64():
    x = Sphere().random(6, generator=generator(0)).to(F32)
    loud = ClientMechanism(l2_norm_clip=0.03, noise_multiplier=2.0)
    draws = ServerDraws(SOURCE, 1, 0)
    one, two = (
        loud.noised_mean(
            torch.zeros(1, 6, dtype=p.dtype), p, Sphere(), draws.normals, expected_cohort=1.0
        )[0]
        for p in (x, x.to(F64))
    )
    assert (one.dtype, two.dtype) == (F32, F64)
    assert torch.equal(one, two.to(F32))


def ran(out, *sets):
    """The model and the manifest of two rounds of the quickstart."""
    few = "federation.num_rounds=2", "federation.num_clients=3", "output.quiet=true"
    sets = (*few, *sets)
    folder = launch(Request("configs/quickstart.toml", sets, out=out))
    return folder.load_tensors("model")["x"], folder.manifest()


def test_a_config_asks_for_float32_and_the_manifest_says_so(tmp_path):
    exact, wide = ran(tmp_path / "wide")
    assert (exact.dtype, wide["machine"]["dtype"]) == (F64, "float64")
    for execution in ("messages", "cohort"):
        sets = ("engine.dtype=float32", f"engine.execution={execution}")
        found, narrow = ran(tmp_path / execution, *sets)
        assert (found.dtype, narrow["machine"]["dtype"]) == (F32, "float32")
        close(found.to(F64), exact)
        assert narrow["config_sha256"] != wide["config_sha256"]

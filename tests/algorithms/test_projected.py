"""Algorithm 1 of projected federated learning: its equivalences, invariants and reductions."""

import math

import pytest
import torch

from manifed.algorithms.payloads import recorded
from manifed.algorithms.projected import Projected
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.manifolds import Sphere, Stiefel
from manifed.oracles.minibatch import Full, WithoutReplacement
from manifed.problems.examples import Examples
from manifed.problems.pca import KPCA
from manifed.problems.synthetic import SyntheticPCA
from tests.conformance.federated_loop import Linear, federate, last
from tests.tensors import assert_near, generator


def pca_shards(clients=6, rows=8, d=10, seed=0):
    """The paper's recipe with the paper's f_i: the sum over rows."""
    import numpy as np

    recipe = SyntheticPCA(num_clients=clients, rows=rows, dimension=d)
    z = recipe.draw(np.random.default_rng(seed)).examples["z"].reshape(
        clients, rows, d
    ) * math.sqrt(rows)
    return [Examples({"z": block}) for block in z]


def start(problem, shards, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return problem.manifold.random(*problem.point_shape(shards[0]), generator=generator)


def local_gradients(problem, x, shards):
    """Grad f_i(x_i), x of shape (n, d, k) or (d, k)."""
    points = x.expand(len(shards), *x.shape[-2:])
    return torch.stack([problem.rgrads(y, s).mean(0) for y, s in zip(points, shards, strict=True)])


def compact_form(problem, shards, x, update, rounds):
    """Equation (5) with full gradients: no corrections, only the gradients of the round before."""
    project = problem.manifold.projx
    n = len(shards)
    tau = update.local_steps
    before = torch.zeros(n, *x.shape, dtype=x.dtype)
    for _ in range(rounds):
        z_hat = z = project(x).expand(n, *x.shape)
        total = torch.zeros_like(before)
        for _ in range(tau):
            g = local_gradients(problem, z, shards)
            z_hat = z_hat - update.step_size * (g + before.mean(0) / tau - before / tau)
            z = project(z_hat)
            total = total + g
        x = project(x) - update.server_step_size * update.step_size * total.mean(0)
        before = total
    return x


UPDATE = Projected(step_size=2e-3, local_steps=5)
PROBLEM = KPCA(3)
SHARDS = pca_shards()
START = start(PROBLEM, SHARDS)


@pytest.mark.parametrize(("size", "local_steps"), [(1.0, 5), (math.sqrt(6), 5), (1.0, 1)])
def test_algorithm_1_is_its_compact_form(size, local_steps):
    """Of one local step that is centralised projected descent (7)."""
    update = Projected(step_size=1e-3, local_steps=local_steps, server_step_size=size)
    end = last(federate(PROBLEM, SHARDS, update, update, START, 20))
    expected = compact_form(PROBLEM, SHARDS, START, update, 20)
    assert_near(end.state["x"], expected, 1e-12)


def test_the_average_moves_by_the_mean_gradient():
    """Equation (6), and the remark after line 17: c_i is the mean of the means minus one's own."""
    update = UPDATE.model_copy(update={"minibatch": WithoutReplacement(batch_size=3)})
    anchor = START
    for played in federate(PROBLEM, SHARDS, update, update, anchor, 10):
        means = played.memory.mean_gradient
        moved = anchor - update.step_size * update.local_steps * means.mean(0)
        assert_near(played.state["x"], moved, 1e-13)
        c = update.correction(played.state["x"], played.memory)
        assert_near(c, means.mean(0) - means, 1e-11)
        anchor = played.state["anchor"]
        assert (anchor.mT @ anchor - torch.eye(3)).norm() <= 1e-12


def test_the_optimum_with_its_own_corrections_is_a_fixed_point():
    x = PROBLEM.optimum(SHARDS).x
    g = local_gradients(PROBLEM, x, SHARDS)
    anchor = x.expand_as(g)
    seen = torch.ones(len(SHARDS), *x[..., :1].shape, dtype=x.dtype)
    memory = recorded({"anchor": anchor, "mean_gradient": g, "has_history": seen})
    end = last(federate(PROBLEM, SHARDS, UPDATE, UPDATE, x, 20, memory=memory))
    assert (end.state["anchor"] - x).norm() <= 1e-12
    assert end.uploads.tensors()["u"].norm() <= 1e-11


# -- every manifold with a projection ---------------------------------------------------------


def heterogeneous(shape, clients=4, rows=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(clients, rows, *shape, generator=generator, dtype=torch.float64)
    return [Examples({"a": block}) for block in a]


@pytest.mark.parametrize(
    ("manifold", "shape"),
    [
        (Sphere(), (5,)),
        (Stiefel(), (6, 2)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_it_converges_where_averaging_stalls(manifold, shape):
    problem = Linear(manifold)
    shards = heterogeneous(shape)
    x = manifold.random(*shape, generator=generator(2))
    update = Projected(step_size=0.1, local_steps=4)
    end = last(federate(problem, shards, update, update, x, 150)).state["anchor"]
    assert manifold.norm(end, problem.gradient(end, shards)) < 1e-5
    rival = RSGD(step_size=0.1, local_steps=4, minibatch=Full(), maps="retraction")
    mean = TangentMean(weights="uniform")
    far = last(federate(problem, shards, rival, mean, x, 150)).state["x"]
    assert manifold.norm(far, problem.gradient(far, shards)) > 1e-3

"""Algorithm 1's server update: reductions to what it must be."""

from types import SimpleNamespace

import torch

from manifed.algorithms.algorithm import Collected
from manifed.algorithms.payloads import Displacement
from manifed.algorithms.tangent_mean import TangentMean
from manifed.federation.rounds import Sums
from manifed.manifolds.euclidean import Euclidean
from manifed.manifolds.sphere import Sphere
from tests.conformance.manifold_cases import float64, generator, normals
from tests.federation.steps import step
from tests.tensors import assert_near


def points(count, dim=5, spread=0.3, seed=0):
    x = Sphere().projx(normals(seed, dim))
    return x, Sphere().expmap(x, spread * Sphere().proju(x, normals(seed + 1000, count, dim)))


def moved(x, mean, manifold):
    seen = Collected({"u": mean}, None, (), 1, lambda: 0.5)
    return step(TangentMean(), {"x": x}, "train", seen, 1, manifold)["x"]


def weighted_mean(uploads, weights, asked=None):
    """As the server takes it; of clients that did not reply, one has the weight that lacks."""
    lacking = [] if asked is None else [float(asked - weights.sum())]
    plan = SimpleNamespace(weights=torch.cat([weights, float64(lacking)]))
    sums = Sums(SimpleNamespace(plan=plan, asked=range(len(plan.weights))))
    sums.add(uploads, range(len(weights)))
    return sums.mean()


def test_on_flat_space_it_is_the_weighted_mean():
    y = normals(1, 4, 3)
    weights = float64([1.0, 2.0, 3.0, 4.0])
    x = torch.zeros(3).double()
    flat = Euclidean(ndim=1)
    mean = weighted_mean(Displacement(flat.logmap(x, y)), weights)["u"]
    expected = (weights[:, None] * y).sum(0) / 10
    assert_near(moved(x, mean, flat), expected, 1e-14)


def test_the_distance_to_the_frechet_mean_shrinks_with_the_cube_of_the_spread():
    """Spec 000, check 16, started from the extrinsic mean."""
    gaps = []
    for spread in (0.4, 0.2, 0.1):
        _, y = points(8, spread=spread, seed=4)
        sphere = Sphere()
        x = sphere.projx(y.mean(0))
        mean = weighted_mean(Displacement(sphere.logmap(x, y)), torch.ones(8).double())["u"]
        gaps.append(float(sphere.dist(moved(x, mean, sphere), sphere.frechet_mean(y))))
    assert gaps[0] / gaps[1] > 6
    assert gaps[1] / gaps[2] > 6


def collected(x, y, uniform):
    mean = {"u": Sphere().logmap(x, y)}
    return Collected(mean, Displacement(mean["u"][None]), (0,), 1, lambda: uniform)


def test_option_2_returns_each_round_with_equal_probability():
    mean = TangentMean(output_rule="uniform")
    sphere = Sphere()
    counts = [0] * 4
    x, y = points(4, seed=2)
    drawn = generator(0)
    for _ in range(1000):
        state = mean.start(x)
        for r, target in enumerate(y, 1):
            uniform = float(torch.rand((), generator=drawn))
            state = step(mean, state, "train", collected(state["x"], target, uniform), r, sphere)
        counts[int((mean.output(state, sphere) - y).norm(dim=1).argmin())] += 1
    # chi-square with 3 degrees of freedom: 1e-6 of the mass lies above
    assert sum((c - 250) ** 2 / 250 for c in counts) < 31.0


def test_the_mean_is_that_of_who_replied_whoever_was_asked():
    u = normals(0, 7, 3)
    weights = torch.arange(1.0, 8.0).double()
    found = weighted_mean(Displacement(u), weights, float64(30.0))["u"]
    whole = weighted_mean(Displacement(u), weights)["u"]
    torch.testing.assert_close(found, whole, rtol=1e-14, atol=0)

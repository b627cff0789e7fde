"""RFedProx: the right sign, its limits, and the wrong sign of the published code."""

import pytest
import torch

from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.manifolds.sphere import Sphere
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.minibatch import Full
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import heterogeneous, pca_shards, start
from tests.conformance.federated_loop import Linear, federate, last

MEAN = TangentMean(weights="uniform", maps="retraction")
FIELDS = {"step_size": 4e-3, "local_steps": 5, "maps": "retraction"}


def pair(manifold, shape, distance=0.3):
    generator = torch.Generator().manual_seed(0)
    x = manifold.random(*shape, generator=generator)
    u = manifold.proju(x, torch.randn(shape, generator=generator, dtype=torch.float64))
    return x, manifold.expmap(x, distance * u / u.norm())


@pytest.mark.parametrize(("manifold", "shape"), [(Sphere(), (6,)), (Stiefel(), (6, 2))])
def test_the_pull_is_minus_the_gradient_of_half_the_squared_distance(manifold, shape):
    x, anchor = pair(manifold, shape)
    update = RFedProx(step_size=1.0, penalty_weight=1.0)
    u = manifold.proju(x, torch.ones(shape, dtype=torch.float64))
    u = u / u.norm()
    ahead = manifold.dist(manifold.expmap(x, 1e-5 * u), anchor).square()
    behind = manifold.dist(manifold.expmap(x, -1e-5 * u), anchor).square()
    slope = float(ahead - behind) / 4e-5
    pull = manifold.inner(x, update.towards(x, anchor, manifold), u)
    assert float(pull) == pytest.approx(-slope, abs=1e-8)


@pytest.mark.parametrize(
    "fields", [{"maps": "retraction"}, {"penalty": "chordal"}], ids=lambda f: next(iter(f.values()))
)
def test_the_cheap_pulls_agree_with_it_to_first_order(fields):
    gaps = []
    for distance in (0.2, 0.1):
        x, anchor = pair(Stiefel(), (6, 2), distance)
        exact = RFedProx(step_size=1.0, penalty_weight=1.0).towards(x, anchor, Stiefel())
        cheap = RFedProx(step_size=1.0, penalty_weight=1.0, **fields).towards(x, anchor, Stiefel())
        gaps.append(float((cheap - exact).norm()) / distance)
    assert gaps[1] < 0.3 * gaps[0] < 0.3 * 0.05


def test_without_penalty_it_is_averaged_gradient_descent():
    problem, shards = KPCA(3), pca_shards()
    x = start(problem, shards)
    prox = RFedProx(penalty_weight=0.0, **FIELDS)
    plain = RSGD(minibatch=Full(), **FIELDS)
    one = last(federate(problem, shards, prox, MEAN, x, 5))
    two = last(federate(problem, shards, plain, MEAN, x, 5))
    torch.testing.assert_close(one.state["x"], two.state["x"], rtol=0, atol=1e-13)


def test_a_larger_penalty_keeps_clients_nearer_and_the_published_sign_pushes_them_away():
    problem, shards = Linear(Sphere()), heterogeneous((5,))
    x = Sphere().random(5, generator=torch.Generator().manual_seed(2))

    def reached(**fields):
        update = RFedProx(step_size=0.05, local_steps=6, **fields)
        mean = TangentMean(weights="uniform")
        return float(
            last(federate(problem, shards, update, mean, x, 1)).uploads.u.norm(dim=-1).mean()
        )

    free = reached(penalty_weight=0.0)
    assert reached(penalty_weight=5.0) < reached(penalty_weight=1.0) < free
    assert reached(penalty_weight=5.0, sign="published-code") > free


@pytest.mark.slow
def test_the_right_sign_drifts_less():
    problem, shards = KPCA(3), pca_shards()
    x = start(problem, shards)

    def plateau(**fields):
        end = last(federate(problem, shards, RFedProx(**FIELDS, **fields), MEAN, x, 100))
        return float(problem.gradient_norm(end.state["x"], shards))

    free = plateau(penalty_weight=0.0)
    assert plateau(penalty_weight=100.0) < 0.85 * free

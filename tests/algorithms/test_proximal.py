"""RFedProx: one step by hand, the right sign, and its limits."""

import pytest
import torch

from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.tangent_mean import TangentMean
from manifed.manifolds import Sphere, Stiefel
from tests.algorithms.test_projected import heterogeneous
from tests.conformance.federated_loop import Linear, federate, last
from tests.tensors import assert_near

MEAN = TangentMean(weights="uniform")


@pytest.mark.parametrize(("manifold", "shape"), [(Sphere(), (6,)), (Stiefel(), (6, 2))])
def test_the_second_step_is_pulled_back_by_the_gradient_of_half_the_squared_distance(
    manifold, shape
):
    generator = torch.Generator().manual_seed(0)
    problem = Linear(manifold)
    x = manifold.random(*shape, generator=generator)
    shards = heterogeneous(shape)[:1]
    y = manifold.expmap(x, -0.3 * problem.gradient(x, shards))
    expected = manifold.expmap(
        y, -0.3 * (problem.gradient(y, shards) - 2.0 * manifold.logmap(y, x))
    )
    update = RFedProx(step_size=0.3, local_steps=2, penalty_weight=2.0)
    found = last(federate(problem, shards, update, MEAN, x, 1)).state["x"]
    assert_near(found, expected, 1e-9)

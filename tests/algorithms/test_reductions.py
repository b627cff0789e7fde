"""Algorithms that are one another in a special case: two runs, one model."""

import pytest
import torch

from manifed.algorithms.projected import Projected
from manifed.algorithms.rfedags import RFedAGS
from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.manifolds import Sphere
from manifed.oracles.minibatch import Full, WithoutReplacement
from manifed.problems.examples import Examples
from manifed.problems.linear import LeastSquares
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import heterogeneous, pca_shards
from tests.conformance.federated_loop import Linear, federate, last
from tests.tensors import assert_near, normals

MEAN = TangentMean(weights="uniform")
SHORT = {"step_size": 2e-3, "local_steps": 5}
DRAWN = {**SHORT, "maps": "retraction"}
ONE = {"step_size": 0.1, "minibatch": Full()}
FLAT = {"step_size": 0.05, "local_steps": 4}


def of_mean(training, **server):
    return training, TangentMean(weights="uniform", **server)


def regression(clients=3):
    z = normals(0, clients, 8, 5)
    return [Examples({"feature": one[:, 1:], "target": one[:, 0]}) for one in z]


PLACES = {
    "stiefel": (KPCA(3), pca_shards()),
    "backwards": (KPCA(3), pca_shards()[::-1]),
    "grassmann": (KPCA(3, on="grassmann"), pca_shards()),
    "sphere": (Linear(Sphere()), heterogeneous((5,))),
    "flat": (LeastSquares(), regression()),
}
AGS = {"server_step_size": 0.7}
CASES = {
    "RFedProx without a penalty averages descent": (
        "stiefel", of_mean(RFedProx(penalty_weight=0.0, **DRAWN)),
        "stiefel", of_mean(RSGD(minibatch=Full(), **DRAWN)),
    ),
    "RFedSVRG with batches of all rows evaluates its first step anew": (
        "stiefel", [RFedSVRG(**DRAWN)] * 2,
        "stiefel", [RFedSVRG(minibatch=WithoutReplacement(batch_size=8), **DRAWN)] * 2,
    ),
    "clients in any order": (
        "stiefel", [Projected(**SHORT)] * 2, "backwards", [Projected(**SHORT)] * 2,
    ),
    "horizontal gradients keep the broadcast basis": (
        "stiefel", [Projected(**SHORT)] * 2, "grassmann", [Projected(**SHORT)] * 2,
    ),
    "RFedAGS of one exact step is descent": (
        "sphere", [RFedAGS(step_size=0.1, **AGS)] * 2, "sphere", of_mean(RSGD(**ONE), **AGS),
    ),
    "RFedAGS of one retracted step is descent": (
        "sphere", [RFedAGS(step_size=0.1, maps="retraction", **AGS)] * 2,
        "sphere", of_mean(RSGD(maps="retraction", **ONE), **AGS),
    ),
    "RFedAGS on flat space with everybody is FedAvg": (
        "flat", [RFedAGS(**FLAT)] * 2, "flat", of_mean(RSGD(minibatch=Full(), **FLAT)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_both_runs_move_to_one_model(case):
    here, one, there, two = CASES[case]
    problem, shards = PLACES[here]
    generator = torch.Generator().manual_seed(3)
    shape = problem.point_shape(shards[0])
    x = problem.manifold.random(*shape, generator=generator)
    found, same = (
        last(federate(*PLACES[place], *parts, x, 10)).state["x"]
        for place, parts in ((here, one), (there, two))
    )
    assert_near(found, same, 1e-12)
    assert (found - x).norm() > 1e-2

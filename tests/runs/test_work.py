"""The declared account of a round is what a counting manifold sees, and the paper's table."""

from collections import Counter

import pytest
import torch

from manifed.algorithms.averaging import ProjectorAverage
from manifed.algorithms.interface import Collected, Work
from manifed.algorithms.projected import Projected, ProjectedPartial
from manifed.algorithms.rfedags import RFedAGS
from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.rsvrg import RSVRG
from manifed.algorithms.second_moment import SecondMoment
from manifed.algorithms.tangent_mean import TangentMean
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.minibatch import Full, WithoutReplacement
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.noise import NoiseSource
from manifed.problems.pca import KPCA
from manifed.runs.work import communication
from tests.algorithms.test_projected import pca_shards, start

TAU = 5
ARGUMENTS = {"step_size": 1e-3, "local_steps": TAU}
BATCH = WithoutReplacement(batch_size=4)
FAST = {"maps": "retraction"}


class Counting(Stiefel):
    """Stiefel, with every call of the geometry noted."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()
        self._is_inside = False

    def _count(self, name, method, *arguments):
        if self._is_inside:
            return method(*arguments)
        self.calls[name] += 1
        self._is_inside = True
        try:
            return method(*arguments)
        finally:
            self._is_inside = False

    def projx(self, x):
        return self._count("projections", super().projx, x)

    def expmap(self, x, u):
        return self._count("exponentials", super().expmap, x, u)

    def logmap(self, x, y):
        return self._count("logarithms", super().logmap, x, y)

    def retr(self, x, u):
        return self._count("retractions", super().retr, x, u)

    def invretr(self, x, y):
        return self._count("inverse_retractions", super().invretr, x, y)

    def transp(self, x, y, v):
        return self._count("transports", super().transp, x, y, v)

    def proju(self, x, u):
        return self._count("transports", super().proju, x, u)


def counting_problem():
    problem = KPCA(3)
    problem.manifold = Counting()
    return problem


def one_round(training, strategy):
    """(calls of one client, calls of the server, matrices up, matrices down) in round 1."""
    problem, shards = counting_problem(), pca_shards()
    setup, manifold = ClientSetup(problem, training, ExampleMechanism()), problem.manifold
    x = start(KPCA(3), shards)
    state, client, server = strategy.initial(x), Counter(), Counter()
    memory, up, down = training.initial_memory(x), 0, 0
    for phase in training.phases:
        sent = strategy.down(state, phase.name)
        manifold.calls = client
        seat = Seat(0, 1, 0, phase.name)
        done = run_update(setup, seat, sent, memory, shards[0], 8, NoiseSource.from_seed(0))
        client["gradients"] += sum(done.queries.values())
        memory, up, down = done.memory, up + len(done.up.names()), down + len(sent.names())
        manifold.calls = server
        stacked = type(done.up).stack([done.up])
        mean = {name: u.mean(0) for name, u in stacked.tensors().items()}
        state = strategy.step(
            state, phase.name, Collected(mean, stacked, (0,), 1, lambda: 0.5), 1, manifold
        )
        strategy.model(state, manifold)
    return Work(**client), Work(**server), up, down


TIED = [
    Projected(**ARGUMENTS),
    ProjectedPartial(**ARGUMENTS),
    RFedAGS(**ARGUMENTS),
    RFedAGS(**ARGUMENTS, **FAST),
    RFedSVRG(**ARGUMENTS),
    RFedSVRG(**ARGUMENTS, **FAST),
    RFedSVRG(**ARGUMENTS, minibatch=BATCH, **FAST),
]
PAIRS = [
    *zip(TIED, TIED, strict=True),
    (RSGD(minibatch=Full(), **ARGUMENTS), TangentMean()),
    (RSGD(minibatch=Full(), **ARGUMENTS, **FAST), TangentMean(**FAST)),
    (RSGD(minibatch=Full(), **ARGUMENTS, output="random-output"), TangentMean()),
    (RSGD(minibatch=Full(), **ARGUMENTS), TangentMean(momentum=0.5, average=ProjectorAverage())),
    (RFedProx(penalty_weight=1.0, **ARGUMENTS), TangentMean()),
    (RFedProx(penalty_weight=1.0, **ARGUMENTS, **FAST), TangentMean(**FAST)),
    (RSVRG(step_size=1e-3, epochs=2, inner_steps=3, minibatch=BATCH), TangentMean()),
    (SecondMoment(), SecondMoment()),
]


@pytest.mark.parametrize(("training", "strategy"), PAIRS, ids=lambda update: update.kind)
def test_what_is_declared_is_what_is_called(training, strategy):
    client, server, up, down = one_round(training, strategy)
    draws = 2 if getattr(training, "output", "") == "random-output" else 1
    declared = strategy.server_work
    if draws == 2:
        declared = Work(exponentials=2)
    assert client == training.client_work
    assert server == declared
    account = communication(training, (10, 3))
    assert (account["matrices_up"], account["matrices_down"]) == (up, down)


def test_the_account_is_the_table_of_the_paper():
    """Gradients, P_M, retractions, inverse retractions, transports; up, down, phases."""
    fast = {**ARGUMENTS, **FAST}
    rows = {
        "ours": (Projected(**ARGUMENTS), (TAU, TAU, 0, 0, 0), (1, 1, 1)),
        "RFedAvg": (RSGD(minibatch=Full(), **fast), (TAU, 0, TAU, 0, 0), (1, 1, 1)),
        "RFedProx": (
            RFedProx(penalty_weight=1.0, **fast),
            (TAU, 0, TAU, TAU - 1, 0),
            (1, 1, 1),
        ),
        "RFedSVRG": (RFedSVRG(**fast), (TAU, 0, TAU, 0, TAU - 1), (2, 2, 2)),
    }
    for name, (training, calls, wire) in rows.items():
        work, sent = training.client_work, communication(training, (20, 5))
        inverse = work.inverse_retractions - (0 if name == "ours" else 1)
        assert calls == (
            work.gradients, work.projections, work.retractions, inverse, work.transports,
        )  # fmt: skip
        assert wire == (sent["matrices_up"], sent["matrices_down"], sent["phases"])
        assert sent["bytes_up"] == wire[0] * 800


def test_the_model_is_what_the_server_projected():
    shards = pca_shards()
    x = start(KPCA(3), shards)
    server = Projected(**ARGUMENTS)
    assert torch.equal(server.model(server.initial(x), Stiefel()), x)

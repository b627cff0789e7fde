"""Calls of the geometry, counted by a manifold, and bytes are those of the paper's table."""

from collections import Counter

from pydantic import PrivateAttr

from manifed.algorithms.algorithm import Collected
from manifed.algorithms.projected import Projected
from manifed.algorithms.rfedprox import RFedProx
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.federation.client import ClientSetup, Seat, run_update
from manifed.manifolds.stiefel import Stiefel
from manifed.oracles.minibatch import Full
from manifed.privacy.mechanism import ExampleMechanism
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.pca import KPCA
from tests.algorithms.test_projected import pca_shards, start
from tests.federation.steps import step

TAU = 5
ARGUMENTS = {"step_size": 1e-3, "local_steps": TAU}
FAST = {"maps": "retraction"}


COUNTED = {
    "projx": "projections", "expmap": "exponentials", "logmap": "logarithms",
    "retr": "retractions", "invretr": "inverse_retractions", "transp": "transports",
    "proju": "transports",
}  # fmt: skip
"""What the table calls each call of the geometry."""


class Counting(Stiefel):
    """Stiefel, with every call of the geometry noted, but for those that another one makes."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()
        self._is_inside = False


def counted(name):
    method = getattr(Stiefel, name)

    def call(self, *arguments):
        if self._is_inside:
            return method(self, *arguments)
        self.calls[COUNTED[name]] += 1
        self._is_inside = True
        try:
            return method(self, *arguments)
        finally:
            self._is_inside = False

    return call


for _name in COUNTED:
    setattr(Counting, _name, counted(_name))


class CountingKPCA(KPCA):
    """KPCA whose manifold counts."""

    @property
    def manifold(self):
        return self._counting

    _counting = PrivateAttr(default_factory=Counting)


def one_round(training, strategy):
    """(calls of one client, calls of the server, matrices up, matrices down) in round 1."""
    problem = CountingKPCA(3)
    shards = pca_shards()
    setup = ClientSetup(problem, training, ExampleMechanism())
    manifold = problem.manifold
    x = start(KPCA(3), shards)
    state = strategy.start(x)
    client = Counter()
    server = Counter()
    memory = training.initial_memory(x)
    up = down = 0
    for phase in training.phases:
        sent = strategy.down(state, phase.name)
        manifold.calls = client
        done = run_update(
            setup, Seat(0, 1, 0, phase.name), sent, memory, shards[0], 8, NoiseSource.from_seed(0)
        )
        client["gradients"] += sum(done.queries.values())
        memory = done.memory
        up += len(done.up.names())
        down += len(sent.names())
        manifold.calls = server
        stacked = type(done.up).stack([done.up])
        state = step(
            strategy,
            state,
            phase.name,
            Collected(
                {name: u.mean(0) for name, u in stacked.tensors().items()},
                stacked,
                (0,),
                1,
                lambda: 0.5,
            ),
            1,
            manifold,
        )
        strategy.model(state, manifold)
    return client, server, up, down


def test_the_account_is_the_table_of_the_paper():
    """Gradients, P_M, retractions, inverse retractions, transports; up, down, phases.

    One inverse retraction is the client's here, who sends log_x(x_i), and the server's there.
    """
    fast = {**ARGUMENTS, **FAST}
    mean = TangentMean(**FAST)
    ours = Projected(**ARGUMENTS)
    svrg = RFedSVRG(**fast)
    rsgd = RSGD(minibatch=Full(), **fast)
    prox = RFedProx(penalty_weight=1.0, **fast)
    rows = [
        (ours, ours, (TAU, TAU, 0, 0, 0), (1, 1, 1)),
        (rsgd, mean, (TAU, 0, TAU, 1, 0), (1, 1, 1)),
        (prox, mean, (TAU, 0, TAU, TAU, 0), (1, 1, 1)),
        (svrg, svrg, (TAU, 0, TAU, 1, TAU - 1), (2, 2, 2)),
    ]
    names = ("gradients", "projections", "retractions", "inverse_retractions", "transports")
    for training, strategy, calls, wire in rows:
        client, server, up, down = one_round(training, strategy)
        assert tuple(client[name] for name in names) == calls
        assert dict(server) == ({"projections": 1} if training is ours else {"retractions": 1})
        assert wire == (up, down, len(training.phases))

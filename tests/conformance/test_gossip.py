"""Exchanges before round 1 and models by node: what every algorithm on a graph relies on."""

from dataclasses import replace

import pytest
import torch
from flwr.app import RecordDict

from manifed.algorithms.algorithm import Phase
from manifed.algorithms.pair_masks import OfferedKey
from manifed.algorithms.payloads import Point
from manifed.algorithms.rsgd import RSGD
from manifed.algorithms.tangent_mean import TangentMean
from manifed.errors import ConfigError, RoundFailed
from manifed.experiment.assembly import initial_point, plan_of
from manifed.federation.client import ClientSetup, ClientSide
from manifed.federation.rounds import Course, free, run_rounds, sent
from manifed.federation.stack import StackTransport
from manifed.flower.handshake import meet
from manifed.manifolds import Sphere
from manifed.oracles.minibatch import Full, Minibatch
from manifed.plan import plan as planned
from manifed.privacy.mechanism import ExampleMechanism, Noise
from manifed.problems.examples import Examples
from manifed.problems.frechet import FrechetMean
from manifed.setting import ClientLevel, Federation, Multiplier, Setting
from tests.algorithms.gossip_runs import experiment, grid_of, reports_of
from tests.algorithms.test_decor import decor
from tests.conformance.federated_loop import SOURCE

KEYED = decor(pair_keys="exchanged")
UPDATE = type(KEYED.training)


def test_a_node_that_lost_what_it_learnt_before_round_1_says_so():
    plan = plan_of(KEYED)
    grid = grid_of(KEYED)
    rounds = run_rounds(
        plan, plan.server_update.start(initial_point(KEYED)),
        meet(grid, plan), free, num_rounds=3,
    )  # fmt: skip
    assert next(rounds).server_round == 1
    for context in grid._contexts.values():
        context.state = RecordDict()
    with pytest.raises(RoundFailed, match="remembers the exchanges before round 1 in round 2"):
        next(rounds)


def test_an_upload_of_another_layout_stays_with_its_client(monkeypatch, caplog):
    short = OfferedKey(torch.zeros(95, dtype=torch.uint8))
    monkeypatch.setattr(UPDATE, "client", lambda self, x, oracle, here: (short, here.memory))
    with pytest.raises(RoundFailed, match="this node is absent"):
        reports_of(KEYED, "messages")
    assert "client: Expected offer of shape (96,), got (95,)" in caplog.text


def test_only_the_clients_asked_get_their_own_rows():
    config = experiment()
    plan = plan_of(config)
    state = reports_of(config)[-1].state
    now = Course(replace(plan, needs_everyone=False), state, first_round=6).opened()
    assert torch.equal(sent(now._replace(asked=(4, 1))).rows.x, state["x"][[4, 1]])


class Asking(RSGD):
    """Shows a point and takes its one charged gradient before round 1, too."""

    step_size: float = 0.1
    minibatch: Minibatch = Full()

    @property
    def setup_phases(self):
        return (Phase("offer", Point, Point, uploads=("point",), aggregation="none"),)


def begun(mechanism=None, privacy=None):
    """The first round of two clients of `Asking` on a sphere."""
    problem = FrechetMean(Sphere())
    update = Asking()
    x = torch.eye(4).double()
    setup = ClientSetup(problem, update, mechanism or ExampleMechanism())
    side = ClientSide(setup, [Examples({"z": x})] * 2, (4,), SOURCE)
    setting = Setting(
        Federation(num_clients=2, num_rounds=1), update, Sphere(), TangentMean(), problem=problem,
        **({"privacy": privacy} if privacy else {}),
    )  # fmt: skip
    setting.check()
    plan = planned(setting, (4, 4), source=SOURCE)
    return next(
        run_rounds(plan, plan.server_update.start(x[0]), StackTransport(side), num_rounds=1)
    )


def test_a_question_to_the_oracle_before_round_1_is_refused():
    private = ExampleMechanism(l2_norm_clip=1.0, noise=Noise(multiplier=1.0))
    with pytest.raises(RoundFailed, match="asked for 1 noised answers 'gradient'"):
        begun(private)


def test_an_upload_off_the_manifold_is_dropped(monkeypatch):
    monkeypatch.setattr(Asking, "client", lambda self, x, oracle, here: (Point(2 * x), here.memory))
    with pytest.raises(RoundFailed, match=r"Expected x on Sphere within .* take manifold.projx"):
        begun()


def test_client_level_privacy_shows_no_uploads_before_round_1():
    level = ClientLevel(l2_norm_clip=1.0, noise=Multiplier(noise_multiplier=1.0), delta=1e-3)
    with pytest.raises(ConfigError, match="shows the server uploads"):
        begun(privacy=level)

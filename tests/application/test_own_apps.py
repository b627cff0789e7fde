"""Strategies and clients of the application in a ServerApp and a ClientApp of one's own."""

import geoopt
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

import manifed
from clients.local_training import client_app
from manifed.algorithms.rfedsvrg import RFedSVRG
from manifed.algorithms.rsgd import RSGD, ScheduledRSGD
from manifed.errors import ConfigError
from manifed.federation.cohorts import FixedSize
from manifed.federation.exchange import ReplyPolicy
from manifed.flower.grids import InlineGrid
from manifed.flower.handshake import HandshakeFailed
from manifed.flower.records import tensors_from_record, tensors_to_record
from manifed.manifolds.sphere import Sphere
from manifed.oracles.minibatch import Full
from manifed.plan import plan
from manifed.privacy.random_numbers import NoiseSource
from manifed.problems.frechet import FrechetMean
from manifed.setting import Federation, Setting
from strategies.tangent_mean import TangentMean
from tests.federation.test_door import points
from tests.tensors import assert_near

SEED = 7
CLIENTS = 4
ROWS = 30
STEPS = RSGD(step_size=0.2, local_steps=1, minibatch=Full())
SIZES = [ROWS] * CLIENTS


def private(noise_multiplier=4.0, clip=1.0, level=manifed.ExampleLevel, **changes):
    noise = manifed.Multiplier(noise_multiplier=noise_multiplier)
    return level(l2_norm_clip=clip, noise=noise, **{"delta": 1e-5, **changes})


PRIVATE = private()
X = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
REPLIES = ReplyPolicy(timeout=5.0)


def shards():
    return points(CLIENTS, ROWS)


def grid_of(update=STEPS, privacy=PRIVATE, data=None, plan=None):
    data = data or shards()
    app = client_app(
        FrechetMean(Sphere()), update,
        lambda context: {"z": data[context.node_config["partition-id"]]},
        privacy=privacy, source=NoiseSource.from_seed(SEED) if plan is None else None, plan=plan,
    )  # fmt: skip
    return InlineGrid(app, CLIENTS, {})


def tangent_mean(**changes):
    given = {"privacy": PRIVATE, "source": NoiseSource.from_seed(SEED), "replies": REPLIES}
    return TangentMean(Sphere(), **{"num_examples": SIZES, **given, **changes})


def model(result):
    return tensors_from_record(result.arrays)["x"]


START = tensors_to_record({"x": X})


@pytest.mark.parametrize(
    "theirs",
    [
        {"privacy": private(3.9)},
        {"privacy": private(clip=1.1)},
        {"privacy": private(neighboring_relation="replace-one")},
        {"privacy": private(level=manifed.ClientLevel)},
        {"privacy": None},
        {"update": STEPS.model_copy(update={"local_steps": 2})},
    ],
    ids=["noise", "clip", "relation", "unit", "none", "more gradients"],
)
def test_a_server_that_prices_what_clients_do_not_do_is_refused(theirs):
    strategy = tangent_mean(replies=ReplyPolicy(timeout=0.2))  # one gradient an update
    with pytest.raises(HandshakeFailed, match="runs another config"):
        strategy.start(grid_of(**theirs), START, num_rounds=1)


def test_the_ledger_is_on_disk_before_a_message_and_the_budget_ends_the_run(tmp_path, monkeypatch):
    ledger = tmp_path / "ledger.jsonl"
    seen = []
    grid = grid_of()
    deliver = grid._deliver

    def noting(message):
        if message.metadata.message_type == "train":
            seen.append(ledger.read_text().count('"reserves"'))
        return deliver(message)

    monkeypatch.setattr(grid, "_deliver", noting)
    tight = private(max_epsilon=2.0)
    strategy = tangent_mean(update=STEPS, privacy=tight, ledger=ledger)
    told = []
    result = strategy.start(
        grid, START, 50, evaluate_fn=lambda r, _: told.append(r) or MetricRecord({"round": r})
    )
    rounds = seen[-1]
    assert list(result.evaluate_metrics_serverapp) == told == list(range(1, rounds + 1))
    assert seen == [r for r in range(1, rounds + 1) for _ in range(CLIENTS)]
    assert 1 < rounds < 50
    assert 1.0 < strategy.statement()["adversaries"][0]["epsilon"] <= 2.0
    again = tangent_mean(update=STEPS, privacy=tight, num_rounds=50)
    theirs = Strategy.start(again, grid_of(), START, num_rounds=50)
    assert_near(model(theirs), model(result))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TangentMean(Sphere()), "num_examples: expected the public size"),
        (
            lambda: tangent_mean(update=RFedSVRG(step_size=0.1, local_steps=2)),
            "expected an update of one exchange",
        ),
        (lambda: tangent_mean(ledger="x", privacy=None), "ledger: expected"),
        (
            lambda: tangent_mean(privacy=manifed.ExampleLevel(epsilon=2, delta=1e-5)),
            "num_rounds: expected it .* the noise depends on it",
        ),
        (
            lambda: grid_of(privacy=manifed.ExampleLevel(epsilon=2, delta=1e-5)),
            "the noise of a 'target' depends on all rounds and sizes",
        ),
        (
            lambda: tangent_mean().start(grid_of(), ArrayRecord()),
            "initial_arrays: expected a point x",
        ),
        (
            lambda: tangent_mean().start(grid_of(), tensors_to_record({"x": 2 * X})),
            "initial_arrays: expected x on",
        ),
        (
            lambda: Strategy.start(
                tangent_mean(cohort=FixedSize(cohort_size=2)), grid_of(), START, 1
            ),
            "num_rounds: expected it",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused_in_one_line(call, said):
    with pytest.raises(ConfigError, match=said) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_a_record_that_cannot_be_computed_with_makes_its_node_absent(caplog):
    data = shards()
    data[1][3, 0] = float("nan")
    strategy = tangent_mean(replies=ReplyPolicy(timeout=0.2))
    with pytest.raises(HandshakeFailed, match="this node is absent") as failed:
        strategy.start(grid_of(data=data), START, num_rounds=1)
    assert "record" not in str(failed.value)


def test_a_second_run_of_a_strategy_is_refused(tmp_path):
    strategy = tangent_mean(update=STEPS, ledger=tmp_path / "ledger.jsonl")
    strategy.start(grid_of(), START, num_rounds=1)
    with pytest.raises(ConfigError, match="expected one run per object"):
        strategy.start(grid_of(), START, num_rounds=1)
    with pytest.raises(ConfigError, match="expected no round after close"):
        strategy.configure_train(2, START, ConfigRecord(), grid_of())


def test_rounds_that_cost_different_amounts_are_priced_ahead_and_no_further():
    schedule = {"kind": "geometric", "scale": 1.0, "ratio": 0.9}
    update = ScheduledRSGD(step_size=0.1, minibatch=Full(), noise_multipliers=schedule)
    with pytest.raises(ConfigError, match="num_rounds: expected it"):
        Strategy.start(tangent_mean(update=update), grid_of(update), START, 1)
    longer = tangent_mean(update=update, num_rounds=1)
    with pytest.raises(ConfigError, match="at most 1, got round 2"):
        Strategy.start(longer, grid_of(update), START, 2)
    strategy = tangent_mean(update=update)
    strategy.start(grid_of(update), START, 3)
    same = manifed.fit(
        FrechetMean(Sphere()), shards(), update, privacy=PRIVATE, rounds=3, seed=SEED, start=X
    )
    assert strategy.statement()["adversaries"] == same.statement["adversaries"]


def test_a_strategy_takes_a_manifold_of_geoopts_that_has_a_counterpart():
    assert type(TangentMean(geoopt.Sphere(), num_examples=SIZES).plan.manifold) is Sphere
    with pytest.raises(TypeError, match="manifold: expected one of geoopt's"):
        TangentMean(geoopt.Lorentz(k=2.0), num_examples=SIZES)


def test_both_apps_take_a_plan_whose_noise_meets_a_target_over_the_whole_run():
    target = manifed.ExampleLevel(
        l2_norm_clip=1.0, noise=manifed.Target(epsilon=2.0, delta=1e-3), noise_source="os"
    )
    federation = Federation(num_clients=CLIENTS, num_rounds=3)
    setting = Setting(federation, STEPS, Sphere(), privacy=target)
    server, client = (plan(setting, tuple(SIZES)) for _ in range(2))
    strategy = TangentMean(Sphere(), update=STEPS, plan=server, num_rounds=3)
    strategy.start(grid_of(privacy=None, plan=client), START, num_rounds=3)
    assert strategy.statement()["adversaries"][0]["epsilon"] == pytest.approx(2.0, abs=1e-2)
    assert "RELEASE" in strategy.text


def test_messages_that_are_made_again_are_charged_again():
    strategy = tangent_mean(update=STEPS, num_rounds=3)
    grid = grid_of()
    first = list(strategy.configure_train(1, START, ConfigRecord(), grid))
    again = list(strategy.configure_train(1, START, ConfigRecord(), grid))
    assert strategy.odometer.rounds_counted == 2
    attempts = [m.content["header"]["attempt"] for m in (*first, *again)]
    assert attempts == [0] * CLIENTS + [1] * CLIENTS
    assert strategy.aggregate_train(1, grid.send_and_receive(again))[0] is not None

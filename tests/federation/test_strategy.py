"""The server loop as a Flower Strategy, and the order of what a round does."""

from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from app.client_app import app as client_app
from manifed.errors import RoundFailed
from manifed.experiment.assembly import initial_point, plan_of
from manifed.experiment.load import load, save
from manifed.flower.client import client_app_of
from manifed.flower.inline import InlineGrid
from manifed.flower.loop import ServerLoop, ignore
from manifed.flower.records import tensors_from_record

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.toml"
SETS = ["federation.num_clients=4", "federation.cohort={kind='fixed-size',cohort_size=2}"]


class Charges:
    """Notes every charge; can refuse to be silent about order."""

    def __init__(self):
        self.charged = []

    def charge(self, server_round, attempt, partitions):
        self.charged.append((server_round, attempt, partitions))

    def attempts(self, server_round):
        return sum(r == server_round for r, _, _ in self.charged)


@pytest.fixture
def parts(tmp_path):
    config = load(QUICKSTART, SETS)
    save(config, tmp_path / "config.toml")
    run_config = {"experiment": str(tmp_path / "config.toml"), "overrides": ""}
    grid = InlineGrid(client_app, 4, run_config)
    plan, charges = plan_of(config), Charges()
    start = plan.server_update.initial(initial_point(config))

    def loop(policy=plan.policy, on_round=ignore):
        changed = type(plan)(**{**vars(plan), "policy": policy})
        return ServerLoop(changed, start, charges.charge, on_round, attempts=charges.attempts)

    return loop, grid, charges


ALGORITHMS = {
    "tangent mean": (),
    "two exchanges": (
        "training={kind='rfedsvrg',step_size=0.1,local_steps=2}",
        "privacy={kind='none'}",
        "federation.cohort={kind='all'}",
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_flowers_own_start_gives_the_model_of_the_loop(name):
    config = load(QUICKSTART, [*SETS, *ALGORITHMS[name]])
    plan, grid = plan_of(config), InlineGrid(client_app_of(lambda _: config), 4, {})
    x = initial_point(config)
    state, charged = plan.server_update.initial(x), ([], [])
    ours = ServerLoop(plan, state, lambda *paid: charged[0].append(paid))
    theirs = ServerLoop(plan, state, lambda *paid: charged[1].append(paid))
    start = ArrayRecord({"x": Array(x.numpy())})
    expected = ours.start(grid, start, num_rounds=3).arrays
    found = Strategy.start(theirs, grid, start, num_rounds=3 * len(plan.phases)).arrays
    assert torch.equal(tensors_from_record(found)["x"], tensors_from_record(expected)["x"])
    assert charged[0] == charged[1]
    assert len(charged[0]) == 3


def test_aggregate_without_configure_is_refused(parts):
    loop, _, _ = parts
    with pytest.raises(RoundFailed, match="configure_train"):
        loop().aggregate_train(1, [])


def test_a_round_is_charged_before_its_messages_leave(parts, monkeypatch):
    loop, grid, charges = parts
    seen = []
    deliver = grid._deliver

    def noting(message):
        seen.append(len(charges.charged))
        return deliver(message)

    monkeypatch.setattr(grid, "_deliver", noting)
    talk = loop()
    talk.start(grid, num_rounds=2)
    handshake = 4
    assert seen[handshake:] == [1, 1, 2, 2]


def test_a_retry_is_a_charge_of_its_own_with_another_cohort_draw(parts, monkeypatch):
    loop, grid, charges = parts
    policy = loop().plan.policy.model_copy(update={"on_failure": "retry"})
    deliver, broken = grid._deliver, []

    def fails_once(message):
        if message.metadata.message_type == "train" and not broken:
            broken.append(message)
            message.content["header"]["config-sha256"] = "another"
        return deliver(message)

    monkeypatch.setattr(grid, "_deliver", fails_once)
    loop(policy).start(grid, num_rounds=1)
    assert [(r, a) for r, a, _ in charges.charged] == [(1, 0), (1, 1)]


def test_bad_replies_end_a_round_when_too_few_are_left(parts, monkeypatch):
    loop, grid, _ = parts
    deliver = grid._deliver

    def spoils(message):
        if message.metadata.message_type == "train":
            message.content["header"]["config-sha256"] = "another"
        return deliver(message)

    monkeypatch.setattr(grid, "_deliver", spoils)
    with pytest.raises(RoundFailed, match=r"Round 1: Expected replies from 2 clients.*config"):
        loop().start(grid, num_rounds=1)


def test_a_round_by_hand_is_used_once_and_only_with_its_own_replies(parts):
    loop, grid, _ = parts
    by_hand = loop()
    arrays = ArrayRecord()
    first = list(by_hand.configure_train(1, arrays, ConfigRecord(), grid))
    replies = list(grid.send_and_receive(first))
    by_hand.aggregate_train(1, replies)
    with pytest.raises(RoundFailed, match="configure_train"):
        by_hand.aggregate_train(1, replies)
    list(grid.send_and_receive(by_hand.configure_train(2, arrays, ConfigRecord(), grid)))
    with pytest.raises(RoundFailed, match=r"Round 2: .*no reply .*\(node \d\)"):
        by_hand.aggregate_train(2, replies)


def test_a_round_that_is_repeated_reports_the_bytes_and_failures_of_both_attempts(
    parts, monkeypatch
):
    loop, grid, _ = parts
    policy = loop().plan.policy.model_copy(update={"on_failure": "retry"})
    deliver, broken = grid._deliver, []

    def fails_once(message):
        if message.metadata.message_type == "train" and not broken:
            broken.append(message)
            message.content["header"]["config-sha256"] = "another"
        return deliver(message)

    reports = []
    talk = loop(policy, reports.append)
    monkeypatch.setattr(grid, "_deliver", fails_once)
    talk.start(grid, num_rounds=1)
    (report,) = reports
    assert len(report.failures) == 1
    assert (report.bytes_down, report.bytes_up) == (4 * 512, 3 * 512)
